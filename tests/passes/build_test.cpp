#include "passes/build.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/execute.h"
#include "passes/linearise.h"
#include "passes/lower.h"
#include "support/op_check.h"
#include "support/small_networks.h"

namespace pipetrain {
namespace {

OnnxModel read(const OnnxBuilder& builder) {
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

HostTensor ramp(Shape shape, float scale = 0.05F) {
  HostTensor out(TensorType{DType::kFloat32, shape});
  int next = 0;
  for (float& x : out.span<float>()) x = scale * static_cast<float>((++next * 37) % 19 - 9);
  return out;
}

TrainingGraph build(const OnnxModel& model, std::int64_t samples = 3, LossOptions loss = {}) {
  BuildOptions options;
  options.lower.micro_batch = samples;
  options.loss = std::move(loss);
  return build_training_graph(model, classify_tensors(model, {}), options);
}

OnnxBuilder two_layers() {
  OnnxBuilder builder("mlp");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 3}});
  builder.initializer("w1", ramp({4, 5}));
  builder.initializer("w2", ramp({5, 3}));
  builder.node("MatMul", {"x", "w1"}, {"h"}, {}, "first");
  builder.node("Tanh", {"h"}, {"t"}, {}, "act");
  builder.node("MatMul", {"t", "w2"}, {"logits"}, {}, "second");
  return builder;
}

TEST(Build, MarksWhatOnlyWeightGradientsNeed) {
  const TrainingGraph training = build(read(two_layers()));
  int input_gradients = 0, weight_gradients = 0;
  for (const Node& node : training.graph.nodes) {
    input_gradients += node.part == Part::kInputGradient;
    weight_gradients += node.part == Part::kWeightGradient;
  }
  // I: loss, second (to act), act (to first). W: one product for each of w1 and w2.
  EXPECT_EQ(input_gradients, 3);
  EXPECT_EQ(weight_gradients, 2);
  EXPECT_EQ(training.accumulations.size(), 2U);
  EXPECT_EQ(training.loss.kind, LossKind::kCrossEntropy);
  EXPECT_EQ(training.loss.classes, 3);
}

// Masks follow from these keys, so checkpoints and plans of other versions rely on them.
TEST(Build, KeysOfDropoutsAreTheNumberOfThoseBefore) {
  OnnxBuilder builder("dropouts", {.opset = 17, .ir_version = 8});
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 3}});
  builder.initializer("w", ramp({4, 3}));
  builder.node("Dropout", {"x"}, {"a"}, {}, "first");
  builder.node("Dropout", {"a"}, {"b", "mask"}, {}, "with_mask");
  builder.node("Cast", {"mask"}, {"m"}, {OnnxAttribute::of_int("to", 1)}, "cast");
  builder.node("Mul", {"b", "m"}, {"c"}, {}, "mul");
  builder.node("Dropout", {"c"}, {"d", ""}, {}, "without");
  builder.node("Dropout", {"d"}, {"e"}, {}, "last");
  builder.node("MatMul", {"e", "w"}, {"logits"}, {}, "out");
  const OnnxModel model = read(builder);
  LowerOptions options;
  options.micro_batch = 2;
  const TrainingGraph training = lower(model, classify_tensors(model, {}), options);
  std::vector<std::int64_t> keys;
  for (const Node& node : training.graph.nodes)
    if (node.op->name == "Dropout") keys.push_back(node.attributes.integer("key"));
  // A node with a mask as output is two dropouts with one key.
  EXPECT_EQ(keys, (std::vector<std::int64_t>{0, 1, 1, 3, 3, 5}));
}

TEST(Build, FrozenFrontNeedsNoGradientNodes) {
  const OnnxModel model = read(two_layers());
  ParameterOptions parameters;
  parameters.freeze = {"w1"};
  auto rules = classify_tensors(model, parameters);
  freeze_tensors(rules, parameters);
  BuildOptions options;
  options.lower.micro_batch = 3;
  const TrainingGraph training = build_training_graph(model, rules, options);
  EXPECT_EQ(training.accumulations.size(), 1U);
  for (const Node& node : training.graph.nodes) EXPECT_NE(node.op->name, "TanhGrad");
}

/// x → BatchNorm → logits, and beside it another BatchNorm → "auxiliary", an output without a loss.
OnnxBuilder two_norms(bool running, std::int64_t training_mode = 1) {
  OnnxBuilder builder("norms", {.opset = 17, .ir_version = 8});
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 3}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 3}});
  builder.output("auxiliary", DType::kFloat32, {{"batch", -1}, {"", 3}});
  // What exporters write for a norm that keeps no running statistics: the batch's own.
  builder.node("ReduceMean", {"x"}, {"mean"},
               {OnnxAttribute::of_ints("axes", {0}), OnnxAttribute::of_int("keepdims", 0)});
  builder.node("Exp", {"mean"}, {"variance"});
  for (const std::string output : {"logits", "auxiliary"}) {
    for (const char* part : {".scale", ".bias", ".mean", ".variance"})
      builder.initializer(output + part, ramp({3}, 0.1F));
    builder.node("BatchNormalization",
                 {"x", output + ".scale", output + ".bias", running ? output + ".mean" : "mean",
                  running ? output + ".variance" : "variance"},
                 {output}, {OnnxAttribute::of_int("training_mode", training_mode)},
                 output + ".norm");
  }
  return builder;
}

TEST(Build, RunningStatisticsAreThoseOfNormsThatAreTrainedAndKeepThem) {
  const TrainingGraph kept = build(read(two_norms(/*running=*/true)));
  ASSERT_EQ(kept.statistics.size(), 1U);
  EXPECT_EQ(kept.graph[kept.statistics[0].state_mean].name, "logits.mean");
  EXPECT_TRUE(build(read(two_norms(/*running=*/false))).statistics.empty());
}

TEST(Build, NotesNormsOfOneValuePerChannel) {
  const OnnxModel model = read(two_norms(/*running=*/true));
  EXPECT_TRUE(build(model, 2).notes.empty());
  const std::vector<std::string> notes = build(model, 1).notes;
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_TRUE(notes[0].starts_with(
      "\"logits.norm\" normalizes one value of each channel in a micro-batch of 1, "))
      << notes[0];
}

// Computed statistics are those of the batch where the file says so, and otherwise anything.
TEST(Build, ComputedStatisticsAreReadUnlessTheFileTrains) {
  const auto norms_of_batch = [](bool running, std::int64_t training_mode) {
    const OnnxModel model = read(two_norms(running, training_mode));
    LowerOptions options;
    options.micro_batch = 3;
    const TrainingGraph training = lower(model, classify_tensors(model, {}), options);
    return std::ranges::count_if(training.graph.nodes,
                                 [](const Node& node) { return node.op->name == "BatchNorm"; });
  };
  EXPECT_EQ(norms_of_batch(/*running=*/false, 1), 2);
  EXPECT_EQ(norms_of_batch(/*running=*/false, 0), 0);
  EXPECT_EQ(norms_of_batch(/*running=*/true, 1), 2);
  EXPECT_EQ(norms_of_batch(/*running=*/true, 0), 2);
}

TEST(Build, ALossOfWeightsAloneIsRefusedByName) {
  OnnxBuilder builder("penalty");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("penalty", DType::kFloat32, {});
  builder.initializer("w.weight", ramp({4, 5}));
  builder.node("ReduceL2", {"w.weight"}, {"penalty"}, {OnnxAttribute::of_int("keepdims", 0)},
               "norm");
  const auto made = [&] { build(read(builder), 3, {.loss = "output"}); };
  test::expect_error(ErrorKind::kModel, "\"penalty\" depends on no input", made);
}

/// Every float32 value as float64.
void widen(TrainingGraph& training) {
  for (Value& value : training.graph.values) {
    if (value.type.dtype != DType::kFloat32) continue;
    value.type.dtype = DType::kFloat64;
    value.data = test::as_float(value.data, DType::kFloat64);
  }
}

/// Every element of every gradient of a whole network, in double, against the central difference of
/// its loss. With steps of h = 1e-7 the difference is off by the third derivative times h^2 / 6,
/// far less than the rounding of the loss, which is about 1: some ten units of 1.1e-16, divided by
/// 2 h, are less than 1e-8. No Relu here has an input so near to 0 that a step takes it across.
TEST(Build, GradientsOfAWholeNetworkAgreeWithDifferences) {
  const OnnxModel model = test::difficult_network(/*tied=*/true);
  const auto rules = classify_tensors(model, {});
  BuildOptions options;
  options.lower.micro_batch = 4;
  options.lower.mode.dropout = false;
  TrainingGraph training = build_training_graph(model, rules, options);
  widen(training);
  std::map<ValueId, HostTensor> feeds;
  feeds[training.inputs[0].value] = test::as_float(ramp({4, 2, 6, 6}, 0.1F), DType::kFloat64);
  const std::int64_t labels[] = {0, 4, 2, 1};
  feeds[training.loss.label] = HostTensor::of<std::int64_t>({4}, labels);
  feeds[training.loss.loss_scale] = HostTensor::scalar<double>(0.25);
  std::vector<ValueId> contributions;
  for (const Accumulation& accumulation : training.accumulations)
    contributions.push_back(accumulation.contribution);
  const std::vector<HostTensor> values =
      execute(training.graph, Backend::kReference, feeds, contributions);
  for (std::size_t i = 0; i < values.size(); ++i)
    feeds[training.accumulations[i].accumulator] = values[i];
  const auto loss = [&] {
    return 0.25 * execute(training.graph, Backend::kReference, feeds, {training.loss.loss_sum})[0]
                      .span<double>()[0];
  };
  constexpr double kStep = 1e-7, kRounding = 1e-8;
  for (const Parameter& parameter : training.parameters) {
    const HostTensor gradient =
        execute(training.graph, Backend::kReference, feeds, {parameter.gradient})[0];
    HostTensor& weight = training.graph[parameter.value].data;
    double largest = 0;
    for (std::size_t e = 0; e < weight.span<double>().size(); ++e) {
      double& element = weight.span<double>()[e];
      const double before = element, expected = gradient.span<double>()[e];
      element = before + kStep;
      const double above = loss();
      element = before - kStep;
      const double below = loss();
      element = before;
      EXPECT_NEAR((above - below) / (2 * kStep), expected, kRounding + 1e-6 * std::abs(expected))
          << parameter.name << ", element " << e;
      largest = std::max(largest, std::abs(expected));
    }
    EXPECT_GT(largest, 1000 * kRounding) << parameter.name;
  }
}

TEST(Build, EveryUnsupportedOperatorIsNamedAtOnce) {
  OnnxBuilder builder("bad");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("y", DType::kFloat32, {});
  builder.node("NonMaxSuppression", {"x"}, {"a"}, {}, "nms");
  builder.node("Bogus", {"a"}, {"b"}, {}, "one");
  builder.node("Bogus", {"b"}, {"y"}, {}, "two");
  try {
    build(read(builder));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kModel);
    EXPECT_NE(error.message().find("NonMaxSuppression"), std::string::npos);
    EXPECT_NE(error.message().find("Bogus"), std::string::npos);
    EXPECT_NE(error.message().find("2 nodes"), std::string::npos);
  }
}

TEST(Build, FreeDimensionsAreNamed) {
  OnnxBuilder builder("free");
  builder.input("speech", DType::kFloat32, {{"batch", -1}, {"frames", -1}, {"", 4}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("w", ramp({4, 2}));
  builder.node("MatMul", {"speech", "w"}, {"y"});
  const OnnxModel model = read(builder);
  try {
    build(model);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("frames"), std::string::npos);
    EXPECT_NE(error.message().find("`dim`"), std::string::npos);
  }
}

TEST(Build, HeadIsLeftToTheLoss) {
  OnnxBuilder builder = two_layers();
  builder.output("probabilities", DType::kFloat32, {});
  builder.node("Softmax", {"logits"}, {"probabilities"}, {OnnxAttribute::of_int("axis", -1)},
               "head");
  LossOptions loss;
  loss.output = "probabilities";
  const TrainingGraph training = build(read(builder), 3, loss);
  for (const Node& node : training.graph.nodes) EXPECT_NE(node.op->name, "Softmax");
  EXPECT_EQ(training.notes.size(), 1U);
}

TEST(Build, GeluIsRecognisedInTheFormsThatExportersWrite) {
  for (const int form : {0, 1, 2}) {
    OnnxBuilder builder("gelu");
    builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
    builder.output("y", DType::kFloat32, {});
    builder.initializer("w", ramp({4, 4}));
    builder.initializer("root", HostTensor::scalar<float>(1.41421356F));
    builder.initializer("one", HostTensor::scalar<float>(1));
    builder.initializer("half", HostTensor::scalar<float>(0.5F));
    builder.node("MatMul", {"x", "w"}, {"h"});
    builder.node("Div", {"h", "root"}, {"d"});
    builder.node("Erf", {"d"}, {"e"});
    builder.node("Add", {"e", "one"}, {"a"});
    if (form == 0) {
      builder.node("Mul", {"h", "a"}, {"m"});
      builder.node("Mul", {"m", "half"}, {"y"});
    } else if (form == 1) {
      builder.node("Mul", {"half", "h"}, {"m"});
      builder.node("Mul", {"m", "a"}, {"y"});
    } else {
      builder.node("Mul", {"a", "half"}, {"m"});
      builder.node("Mul", {"m", "h"}, {"y"});
    }
    const OnnxModel model = read(builder);
    LossOptions loss;
    loss.loss = "mse";
    const TrainingGraph training = build(model, 2, loss);
    int fused = 0;
    for (const Node& node : training.graph.nodes) {
      fused += node.op->name == "Gelu";
      EXPECT_NE(node.op->name, "Erf");
    }
    EXPECT_EQ(fused, 1) << "form " << form;
  }
}

TEST(Build, LossOptionsReachTheNode) {
  LossOptions loss;
  loss.label_smoothing = 0.1;
  loss.class_weights = {1, 2, 3};
  loss.ignore_index = 7;
  const TrainingGraph training = build(read(two_layers()), 3, loss);
  int found = 0;
  for (const Node& node : training.graph.nodes) {
    if (!node.op->name.starts_with("SoftmaxCrossEntropy")) continue;
    ++found;
    EXPECT_EQ(node.attributes.real("label_smoothing", 0), 0.1) << node.op->name;
    EXPECT_EQ(node.attributes.reals("class_weights", {}), (Reals{1, 2, 3})) << node.op->name;
    EXPECT_EQ(node.attributes.integer("ignore_index", 0), 7) << node.op->name;
  }
  EXPECT_EQ(found, 2);  // the loss and its gradient
}

std::map<std::string, Part> parts(const TrainingGraph& training) {
  std::map<std::string, Part> out;
  for (const Node& node : training.graph.nodes) {
    const bool of_model = node.part == Part::kForward || node.part == Part::kPrepare;
    if (of_model && !(node.op->flags & kView)) out[node.name] = node.part;
  }
  return out;
}

/// A kernel is made of one that groups share; with as many samples as groups, it might be another.
TEST(Build, WeightsThatAreRepeatedForGroupsArePrepared) {
  OnnxBuilder builder("groups");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}, {"", 5}, {"", 5}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("base", ramp({1, 3, 1, 3, 3}));
  builder.initializer("groups", test::int64s({5}, {4, 3, 1, 3, 3}));
  builder.initializer("kernel", test::int64s({4}, {12, 1, 3, 3}));
  builder.node("Expand", {"base", "groups"}, {"all"}, {}, "expand");
  builder.node("Reshape", {"all", "kernel"}, {"w"}, {}, "reshape");
  builder.node("Conv", {"x", "w"}, {"y"}, {OnnxAttribute::of_int("group", 4)}, "conv");
  LossOptions loss;
  loss.loss = "mse";
  EXPECT_EQ(parts(build(read(builder), 3, loss)).at("expand"), Part::kPrepare);
  EXPECT_EQ(parts(build(read(builder), 1, loss)).at("expand"), Part::kPrepare);
  EXPECT_EQ(parts(build(read(builder), 4, loss)).at("expand"), Part::kForward);
}

/// What is repeated for each of 4 samples has a node of its own for 1 of them, too.
TEST(Build, WeightsThatAreRepeatedForSamplesAreNodesOfMicroBatchesOfEverySize) {
  OnnxBuilder builder("token");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}, {"", 4}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("token", ramp({1, 4}));
  builder.initializer("one", test::int64s({2}, {1, 4}));
  builder.node("Shape", {"x"}, {"samples"}, {OnnxAttribute::of_int("end", 1)}, "shape");
  builder.node("Concat", {"samples", "one"}, {"sizes"}, {OnnxAttribute::of_int("axis", 0)},
               "sizes");
  builder.node("Expand", {"token", "sizes"}, {"all"}, {}, "expand");
  builder.node("Concat", {"all", "x"}, {"y"}, {OnnxAttribute::of_int("axis", 1)}, "join");
  const OnnxModel model = read(builder);
  BuildOptions options;
  options.loss.loss = "mse";
  options.lower.micro_batch = 4;
  const TrainingGraph first =
      build_training_graph(model, {{"token", {TensorUse::kTrained, "test", true}}}, options);
  options.lower.micro_batch = 1;
  options.first = &first;
  const TrainingGraph last =
      build_training_graph(model, {{"token", {TensorUse::kTrained, "test", true}}}, options);
  EXPECT_EQ(parts(first).at("expand"), Part::kForward);
  EXPECT_EQ(parts(last), parts(first));
  EXPECT_EQ(linearise(last).order.size(), linearise(first).order.size());
}

TEST(Linearise, CountsWhatCrossesACut) {
  const TrainingGraph training = build(read(two_layers()));
  const Chain chain = linearise(training);
  ASSERT_EQ(chain.order.size(), 4U);  // first, act, second, loss
  EXPECT_EQ(chain.forward_bytes[0], 0U);
  EXPECT_EQ(chain.forward_bytes[1], 3 * 5 * sizeof(float));
  EXPECT_EQ(chain.forward_bytes[3], 3 * 3 * sizeof(float));
  EXPECT_EQ(chain.backward_bytes[2], 3 * 5 * sizeof(float));
  EXPECT_EQ(
      stages_of_chain(training, chain, {0, 2})[static_cast<std::size_t>(chain.order[2].index)], 1);
}

/// Two branches whose nodes stand in turns in the file, joined at the end.
OnnxBuilder two_branches(bool in_turns) {
  OnnxBuilder builder("branches");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
  std::vector<std::pair<std::string, int>> layers;
  for (int layer = 0; layer < 4; ++layer) {
    for (const char* branch : {"a", "b"}) layers.emplace_back(branch, layer);
  }
  if (!in_turns) {
    std::stable_sort(layers.begin(), layers.end(),
                     [](const auto& left, const auto& right) { return left.first < right.first; });
  }
  for (const auto& [branch, layer] : layers) {
    // Each branch narrows at its end, so only its result should cross a cut.
    const std::string name = branch + std::to_string(layer);
    const std::int64_t from = layer == 0 ? 4 : 64, to = layer == 3 ? 4 : 64;
    builder.initializer("w" + name, ramp({from, to}));
    builder.node("MatMul", {layer == 0 ? "x" : branch + std::to_string(layer - 1), "w" + name},
                 {name}, {}, name);
  }
  builder.node("Add", {"a3", "b3"}, {"logits"}, {}, "join");
  return builder;
}

TEST(Linearise, OneBranchAfterTheOtherWhereTheFileHasThemInTurns) {
  const TrainingGraph turns = build(read(two_branches(/*in_turns=*/true)));
  const TrainingGraph apart = build(read(two_branches(/*in_turns=*/false)));
  const Chain found = linearise(turns), given = linearise(apart);
  std::vector<std::string> names, expected;
  for (const NodeId id : found.order) names.push_back(turns.graph[id].name);
  for (const NodeId id : given.order) expected.push_back(apart.graph[id].name);
  EXPECT_EQ(names, expected);
  EXPECT_EQ(found.forward_bytes, given.forward_bytes);
  EXPECT_EQ(found.backward_bytes, given.backward_bytes);
  // Every node comes after those that it reads.
  std::map<int, std::size_t> position;
  for (std::size_t i = 0; i < found.order.size(); ++i) position[found.order[i].index] = i;
  for (const NodeId id : found.order) {
    for (const ValueId input : turns.graph[id].inputs) {
      const NodeId producer = input ? turns.graph[input].producer : NodeId{};
      if (producer && position.contains(producer.index)) {
        EXPECT_LT(position[producer.index], position[id.index]);
      }
    }
  }
}

}  // namespace
}  // namespace pipetrain
