// Weights that are made of parameters by any operator, read by any kind of layer: prepared once per
// weight version, differentiated once per step, the same bits however the network is cut.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"
#include "passes/linearise.h"
#include "pipeline/program/check.h"
#include "pipeline/runtime/oracle.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "support/cut_graphs.h"
#include "support/op_check.h"
#include "support/recorded_devices.h"
#include "support/small_networks.h"
#include "support/weight_operators.h"

namespace pipetrain::made_weights {
namespace {

using test::WeightOperand;
using test::WeightOperator;
using test::WeightResult;

const std::vector<std::int64_t> kSizes = {4, 2};
const std::vector<std::string> kLayers = {
    "conv",       "conv-transpose", "matmul-right", "matmul-left", "gemm",   "bias", "batch-norm",
    "layer-norm", "table",          "lstm",         "two-stages",  "output", "loss", "two-ways"};

struct Network {
  OnnxModel model;
  std::map<std::string, TensorRule> rules;
  std::string loss = "auto";
};

/// Input x (batch, 2, 6, 6) → 24 features → a layer whose weight (24 numbers) the operator makes →
/// logits (batch, 5).
class NetworkMaker {
 public:
  NetworkMaker(const WeightOperator& op, const std::string& layer)
      : op_(op), layer_(layer), builder_("made", {.opset = op.opset, .ir_version = 10}) {}

  Network run() {
    builder_.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}, {"", 6}, {"", 6}});
    builder_.node("Flatten", {"x"}, {"rows"}, {}, "flatten");
    node("MatMul", {"rows", parameter("stem.weight", {72, 24}, 0.15)}, "stem");
    node("Tanh", {"stem"}, "h");
    make_weight();
    const std::int64_t features = add_layer();
    node("Tanh", {"layer"}, "bent");
    node("MatMul", {"bent", parameter("head.weight", {features, 5}, 0.3)}, "head");
    node("Add", {"head", further_outputs(parameter("head.bias", {5}, 0.3))}, "logits");
    finish();
    const std::string bytes = builder_.bytes();
    network_.model = read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
    return std::move(network_);
  }

 private:
  std::string tensor(const std::string& name, HostTensor value, TensorUse use) {
    builder_.initializer(name, std::move(value));
    network_.rules[name] = {use, "test", false};
    return name;
  }
  std::string parameter(const std::string& name, Shape shape, double limit) {
    return tensor(name,
                  test::random_tensor({DType::kFloat32, std::move(shape)}, ++seed_, -limit, limit),
                  TensorUse::kTrained);
  }
  std::string node(const std::string& op, std::vector<std::string> inputs,
                   const std::string& output, std::vector<OnnxAttribute> attributes = {}) {
    builder_.node(op, std::move(inputs), {output}, std::move(attributes), output);
    return output;
  }
  std::string shaped(const std::string& name, std::vector<std::int64_t> dims) {
    const std::string result = fmt::format("{}.{}", name, ++shapes_);
    const auto rank = static_cast<std::int64_t>(dims.size());
    builder_.initializer(result + ".shape", test::int64s({rank}, std::move(dims)));
    return node("Reshape", {name, result + ".shape"}, result);
  }
  std::string mean(const std::string& name) {
    node("Cast", {name}, name + ".float", {OnnxAttribute::of_int("to", 1)});
    const std::string flat = shaped(name + ".float", {-1});
    return node("ReduceMean", {flat}, name + ".mean", {OnnxAttribute::of_int("keepdims", 0)});
  }

  void make_weight() {
    std::vector<std::string> inputs, outputs;
    for (const WeightOperand& operand : op_.operands) {
      const std::string name = fmt::format("p{}.weight", inputs.size());
      using Kind = WeightOperand::Kind;
      inputs.push_back(operand.kind == Kind::kAbsent ? "" : name);
      if (operand.kind == Kind::kAbsent) continue;
      tensor(name, operand.value,
             operand.kind == Kind::kParameter   ? TensorUse::kTrained
             : operand.kind == Kind::kStatistic ? TensorUse::kRunningStatistic
                                                : TensorUse::kFrozen);
    }
    for (int k = 0; k < op_.outputs; ++k) outputs.push_back(fmt::format("made{}", k));
    builder_.node(op_.op_type, inputs, outputs, op_.attributes, "maker");
    if (op_.result == WeightResult::kWeights) return;
    node("Mul", {mean("made0"), parameter("base.weight", {24}, 0.9)}, "scaled");
    made_ = "scaled";
  }
  std::string made(std::vector<std::int64_t> dims) { return shaped(made_, std::move(dims)); }

  std::string further_outputs(std::string bias) {
    for (int k = 1; k < op_.outputs; ++k)
      bias = node("Add", {bias, mean(fmt::format("made{}", k))}, fmt::format("bias{}", k));
    return bias;
  }

  /// Adds the value "layer" of shape (batch, features).
  std::int64_t add_layer() {
    const auto flat = [&](const std::string& name) { node("Flatten", {name}, "layer"); };
    const auto ints = [](std::string name, std::vector<std::int64_t> values) {
      return OnnxAttribute::of_ints(std::move(name), std::move(values));
    };
    if (layer_ == "conv") {
      flat(node("Conv", {shaped("h", {-1, 2, 3, 4}), made({3, 2, 2, 2})}, "wide"));
      return 18;
    }
    if (layer_ == "conv-transpose") {
      flat(node("ConvTranspose", {shaped("h", {-1, 2, 3, 4}), made({2, 3, 2, 2})}, "wide"));
      return 60;
    }
    if (layer_ == "matmul-right") {
      flat(node("MatMul", {shaped("h", {-1, 6, 4}), made({4, 6})}, "wide"));
      return 36;
    }
    if (layer_ == "matmul-left") {
      flat(node("MatMul", {made({6, 4}), shaped("h", {-1, 4, 6})}, "wide"));
      return 36;
    }
    if (layer_ == "gemm") {
      node("MatMul", {"h", parameter("narrow.weight", {24, 6}, 0.4)}, "narrow");
      node("Gemm", {"narrow", made({4, 6})}, "layer", {OnnxAttribute::of_int("transB", 1)});
      return 4;
    }
    if (layer_ == "batch-norm") {
      const auto statistic = [&](const std::string& name, double low) {
        return tensor(name, test::random_tensor({DType::kFloat32, Shape{24}}, ++seed_, low, 1),
                      TensorUse::kRunningStatistic);
      };
      node("BatchNormalization",
           {"h", made({24}), parameter("shift", {24}, 0.2), statistic("norm.mean", 0),
            statistic("norm.variance", 0.5)},
           "layer", {OnnxAttribute::of_int("training_mode", 1)});
      return 24;
    }
    if (layer_ == "layer-norm") {
      node("LayerNormalization", {"h", made({24})}, "layer");
      return 24;
    }
    if (layer_ == "table") {
      builder_.initializer("five", HostTensor::scalar<float>(5));
      node("Mul", {node("Abs", {"h"}, "positive"), "five"}, "fifth");
      node("Cast", {"fifth"}, "places", {OnnxAttribute::of_int("to", 7)});
      node("Gather", {made({6, 4}), "places"}, "found");
      flat(node("Mul", {"found", shaped("h", {-1, 24, 1})}, "wide"));
      return 96;
    }
    if (layer_ == "lstm") {
      node("Transpose", {shaped("h", {-1, 8, 3})}, "steps", {ints("perm", {1, 0, 2})});
      node("LSTM", {"steps", made({1, 8, 3}), parameter("again.weight", {1, 8, 2}, 0.5)}, "states",
           {OnnxAttribute::of_int("hidden_size", 2)});
      flat(node("Transpose", {"states"}, "wide", {ints("perm", {2, 0, 1, 3})}));
      return 16;
    }
    if (layer_ == "two-stages" || layer_ == "two-ways") {
      // The other use is of another operator over the same tensor, or of the same result.
      const std::string first = made({24});
      node("Tanh", {node("Mul", {"h", first}, "scaled_h")}, "between");
      node("MatMul", {"between", parameter("middle.weight", {24, 24}, 0.3)}, "middle");
      const std::string second = layer_ == "two-ways" ? node("Sigmoid", {first}, "other") : first;
      node("Add", {"middle", second}, "layer");
      return 24;
    }
    node("Add", {"h", made({24})}, "layer");  // bias, output, loss
    return 24;
  }

  void finish() {
    if (layer_ != "loss") builder_.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
    if (layer_ == "output") builder_.output(made_, DType::kFloat32, {});
    if (layer_ != "loss") return;
    node("Mul", {"logits", "logits"}, "squares");
    node("ReduceMean", {"squares"}, "of_data", {OnnxAttribute::of_int("keepdims", 0)});
    const std::string weight = made({24});
    node("Mul", {weight, weight}, "penalties");
    node("ReduceMean", {"penalties"}, "of_weights", {OnnxAttribute::of_int("keepdims", 0)});
    node("Add", {"of_data", "of_weights"}, "loss");
    builder_.output("loss", DType::kFloat32, {});
    network_.loss = "output";
  }

  const WeightOperator& op_;
  const std::string layer_;
  OnnxBuilder builder_;
  Network network_;
  std::string made_ = "made0";
  std::uint64_t seed_ = 7;
  int shapes_ = 0;
};

using Graphs = std::vector<std::unique_ptr<TrainingGraph>>;
std::unique_ptr<TrainingGraph> graph_of(const Network& network, std::int64_t samples,
                                        const Graphs& larger = {}, bool plain = false) {
  BuildOptions options;
  if (!larger.empty()) options.first = larger.front().get();
  options.lower.micro_batch = samples;
  options.loss.loss = network.loss;
  options.fusion = plain ? FusionTarget::kNone : FusionTarget::kCpu;
  options.with_gradients = !plain;
  return std::make_unique<TrainingGraph>(
      build_training_graph(network.model, network.rules, options));
}

/// A network cut into stages, and a program for it.
struct Pipeline {
  Pipeline(const Network& network, const std::vector<int>& starts, const std::string& schedule,
           std::vector<int> replicas = {}, bool one_micro_batch = false)
      : stages(static_cast<int>(starts.size())) {
    if (one_micro_batch) sizes = {8};
    for (const std::int64_t size : sizes) graphs.push_back(graph_of(network, size, graphs));
    test::CutGraphs cut = test::cut_graphs(graphs, starts);
    variants = std::move(cut.variants);
    ScheduleOptions options;
    options.name = schedule;
    options.stages = stages;
    options.micro_batches = one_micro_batch ? 1 : 4;
    options.replicas = std::move(replicas);
    options.gradient_sync = cut.has_tied_stages;
    program = lower(generate(options), cut.edges);
    check(program);
  }

  int stages;
  std::vector<std::int64_t> sizes = kSizes;
  Graphs graphs;
  std::vector<RuntimeVariant> variants;
  Program program;
};

RuntimeOptions runtime_options() {
  RuntimeOptions options;
  options.optimizer = default_settings(OptimizerKind::kAdamW);
  options.timeout_seconds = 60;
  options.pin = false;
  return options;
}

/// Two steps: one of small micro-batches only, one whose last is small.
template <class Runner>
std::string train(const Pipeline& pipeline, Runner& runner) {
  test::FixedData data(32, 5);
  std::string out;
  for (std::int64_t step = 0; step < 2; ++step) {
    const bool one = pipeline.sizes.size() == 1;
    const std::int64_t count = one || step == 0 ? 8 : 14, most = one ? 8 : 2 << step;
    data.set_mini_batch(8 * step, count, most, step, pipeline.sizes);
    runner.run(pipeline.program, data);
    for (const MicroBatch& micro_batch : data.micro_batches())
      out += fmt::format("{:a} ", micro_batch.loss_sum);
  }
  for (const Value& value : pipeline.graphs[0]->graph.values) {
    if (value.role != Role::kParameter && value.role != Role::kState) continue;
    const HostTensor content = runner.read(value.name);
    if (!content) continue;  // no stage needs it
    out += value.name + " ";
    for (const float x : content.span<float>()) out += fmt::format("{:a} ", x);
  }
  return out;
}

std::string trained_by_runtime(const Pipeline& pipeline) {
  Runtime runtime(pipeline.variants, {&pipeline.program}, runtime_options());
  return train(pipeline, runtime);
}

/// On devices with memory and queues of their own, in which nothing happens before it must.
std::string trained_on_devices(const Pipeline& pipeline) {
  const std::size_t count = pipeline.program.device.size();
  test::RecordedMachine machine(static_cast<int>(count), 1);
  RuntimeOptions options = runtime_options();
  for (std::size_t d = 0; d < count; ++d)
    options.devices.push_back(&machine.device(static_cast<int>(d)));
  const std::string result = [&] {
    Runtime runtime(pipeline.variants, {&pipeline.program}, options);
    return train(pipeline, runtime);
  }();
  EXPECT_EQ(machine.problems(), std::vector<std::string>());
  return result;
}

/// The graph with all its numbers in double.
void widen(Graph& graph) {
  for (Value& value : graph.values) {
    if (value.type.dtype != DType::kFloat32) continue;
    value.type.dtype = DType::kFloat64;
    if (value.data) value.data = test::as_float(value.data, DType::kFloat64);
  }
  for (Node& node : graph.nodes) {
    for (const char* name : {"to", "dtype"}) {
      if (node.attributes.integer(name, 0) == static_cast<std::int64_t>(DType::kFloat32))
        node.attributes.set(name, static_cast<std::int64_t>(DType::kFloat64));
    }
  }
}

/// The loss of a mini-batch in double, by the reference kernels.
class LossInDouble {
 public:
  explicit LossInDouble(const Network& network)
      : training_(graph_of(network, 2, {}, /*plain=*/true)) {
    widen(training_->graph);
    data_.set_mini_batch(0, 8, 2, 0, kSizes);
  }

  /// With every element of a parameter moved along a direction.
  double at(ValueId parameter, const HostTensor& direction, double distance) {
    HostTensor& stored = training_->graph.values[static_cast<std::size_t>(parameter.index)].data;
    HostTensor moved(stored.type());
    for (std::size_t e = 0; e < moved.span<double>().size(); ++e)
      moved.span<double>()[e] = stored.span<double>()[e] + distance * direction.span<double>()[e];
    std::swap(stored, moved);
    double sum = 0;
    for (const MicroBatch& micro_batch : data_.micro_batches()) sum += of_micro_batch(micro_batch);
    std::swap(stored, moved);
    return sum;
  }
  const TrainingGraph& training() const { return *training_; }

 private:
  double of_micro_batch(const MicroBatch& micro_batch) {
    test::Feeds feeds;
    HostTensor x(TensorType{DType::kFloat32, Shape{2, 2, 6, 6}});
    std::memcpy(x.view().data, micro_batch.columns[0], x.type().bytes());
    for (const GraphInput& input : training_->inputs)
      feeds[input.value] = test::as_float(x, DType::kFloat64);
    if (training_->loss.label) {
      HostTensor y(training_->graph[training_->loss.label].type);
      std::memcpy(y.view().data, micro_batch.columns[1], y.type().bytes());
      feeds[training_->loss.label] = y;
    }
    RunContext context;
    context.seed = runtime_options().seed;
    context.step = micro_batch.step;
    context.first_sample = micro_batch.first_sample;
    context.samples = training_->micro_batch;
    const auto values = test::run_graph(training_->graph, Backend::kReference, feeds, context);
    return values[static_cast<std::size_t>(training_->loss.loss_sum.index)].to_doubles()[0] *
           micro_batch.loss_scale;
  }

  std::unique_ptr<TrainingGraph> training_;
  test::FixedData data_{32, 5};
};

/// Gradients of the first step against central differences.
void check_gradients(const Network& network) {
  const Pipeline whole(network, {0}, "gpipe");
  RuntimeOptions options = runtime_options();
  options.backend = Backend::kReference;
  Oracle oracle(whole.variants, whole.stages, options);
  test::FixedData data(32, 5);
  data.set_mini_batch(0, 8, 2, 0, kSizes);
  oracle.run(whole.program, data);
  LossInDouble loss(network);
  for (const Parameter& parameter : loss.training().parameters) {
    const Value& value = loss.training().graph[parameter.value];
    const HostTensor direction = test::random_tensor(value.type, 77);
    constexpr double kStep = 1e-6;
    const double expected =
        (loss.at(parameter.value, direction, kStep) - loss.at(parameter.value, direction, -kStep)) /
        (2 * kStep);
    double along = 0, norm = 0;
    if (const HostTensor gradient = oracle.read_gradient(parameter.name)) {
      for (std::size_t e = 0; e < gradient.span<float>().size(); ++e) {
        const auto g = static_cast<double>(gradient.span<float>()[e]);
        along += g * direction.span<double>()[e];
        norm += g * g;
      }
    }
    EXPECT_NEAR(along, expected, 1e-3 * std::sqrt(norm) + 1e-6) << parameter.name;
  }
}

class MadeWeights : public testing::TestWithParam<int> {
 protected:
  const WeightOperator& op() const {
    return test::weight_operators()[static_cast<std::size_t>(GetParam())];
  }
};

TEST_P(MadeWeights, TrainWithTheSameBitsOnEveryCut) {
  static const std::vector<std::string> kSchedules = {"gpipe", "1f1b", "zb-h1"};
  std::size_t turn = static_cast<std::size_t>(GetParam());
  for (const std::string& layer : kLayers) {
    SCOPED_TRACE(layer);
    const Network network = NetworkMaker(op(), layer).run();
    const Pipeline whole(network, {0}, "gpipe");
    Oracle oracle(whole.variants, 1, runtime_options());
    const std::string expected = train(whole, oracle);
    EXPECT_TRUE(trained_by_runtime(whole) == expected) << "one stage";
    const int nodes = static_cast<int>(linearise(*whole.graphs[0]).order.size());
    const auto same = [&](const std::vector<int>& starts, const std::string& schedule) {
      EXPECT_TRUE(trained_by_runtime({network, starts, schedule}) == expected)
          << starts.size() << " stages, the second from node " << starts[1] << ", " << schedule;
    };
    // Each of the cuts with two stages where several read the weight.
    const bool shared = layer.starts_with("two") || op().outputs > 1;
    for (int cut = shared ? 1 : 1 + static_cast<int>(turn) % (nodes - 1); cut < nodes; ++cut) {
      same({0, cut}, kSchedules[turn++ % kSchedules.size()]);
      if (!shared) break;
    }
    same({0, nodes / 3, 2 * nodes / 3}, kSchedules[turn++ % kSchedules.size()]);
    same({0, nodes / 4, nodes / 2, 3 * nodes / 4}, "interleaved-1f1b");
  }
}

TEST_P(MadeWeights, AreOverwrittenByGradientsOfTheOnlyMicroBatch) {
  for (const std::string& layer : kLayers) {
    for (const std::vector<int>& starts : {std::vector<int>{0}, {0, 1}}) {
      const Pipeline one(NetworkMaker(op(), layer).run(), starts, "1f1b", {},
                         /*one_micro_batch=*/true);
      Oracle oracle(one.variants, one.stages, runtime_options());
      EXPECT_TRUE(trained_by_runtime(one) == train(one, oracle)) << layer;
    }
  }
}

TEST_P(MadeWeights, TrainWithTheSameBitsOnReplicasAndDevices) {
  for (const std::string layer : {"conv", "two-stages", "two-ways"}) {
    SCOPED_TRACE(layer);
    const Network network = NetworkMaker(op(), layer).run();
    const int nodes = static_cast<int>(linearise(*graph_of(network, 4)).order.size());
    const Pipeline cut(network, {0, nodes / 2}, "1f1b",  // tied weights have no replicas
                       layer == "conv" ? std::vector<int>{2, 1} : std::vector<int>());
    Oracle oracle(cut.variants, 2, runtime_options());
    const std::string expected = train(cut, oracle);
    EXPECT_TRUE(trained_by_runtime(cut) == expected) << "cores";
    EXPECT_TRUE(trained_on_devices(cut) == expected) << "devices";
  }
}

TEST_P(MadeWeights, HaveTheGradientsOfCentralDifferences) {
  if (op().op_type == "BitCast") GTEST_SKIP() << "the bits of a float are not those of a double";
  for (const std::string& layer : kLayers) {
    SCOPED_TRACE(layer);
    check_gradients(NetworkMaker(op(), layer).run());
  }
}

class RefusedWeights : public MadeWeights {};

TEST_P(RefusedWeights, AreRefusedByName) {
  test::expect_error(ErrorKind::kModel, "maker",
                     [&] { graph_of(NetworkMaker(op(), "conv").run(), 4); });
}

/// Places in the table of the operators that can, or cannot, be trained.
std::vector<int> places(bool refused) {
  std::vector<int> out;
  const auto& operators = test::weight_operators();
  for (std::size_t i = 0; i < operators.size(); ++i) {
    if ((operators[i].result == WeightResult::kRefused) == refused)
      out.push_back(static_cast<int>(i));
  }
  return out;
}

std::string name_of(const testing::TestParamInfo<int>& info) {
  return test::weight_operators()[static_cast<std::size_t>(info.param)].op_type +
         std::to_string(info.param);
}

INSTANTIATE_TEST_SUITE_P(Operators, MadeWeights, testing::ValuesIn(places(false)), name_of);
INSTANTIATE_TEST_SUITE_P(Operators, RefusedWeights, testing::ValuesIn(places(true)), name_of);

TEST(MadeWeightOperators, CoverEveryOperatorThatIsImported) {
  std::set<std::string> covered;
  for (const WeightOperator& op : test::weight_operators()) covered.insert(op.op_type);
  for (const OpFamily* family : all_families()) {
    for (const ImportRule& rule : family->imports) {
      const std::string name(rule.op_type);
      EXPECT_NE(covered.contains(name), test::operators_without_weights().contains(name)) << name;
    }
  }
}

}  // namespace
}  // namespace pipetrain::made_weights
