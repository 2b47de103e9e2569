#include "passes/fuse_elementwise.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "graph/op.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "support/op_check.h"
#include "support/small_networks.h"

namespace pipetrain {
namespace {

using test::random_tensor;

/// x (batch, 40) → product → twelve random element-wise nodes, some of them read twice → product.
OnnxModel random_network(std::uint64_t seed) {
  RandomStream random(seed, 2);
  const auto below = [&](std::size_t n) { return random.below(static_cast<std::uint32_t>(n)); };
  OnnxBuilder builder("elements");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 40}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 3}});
  builder.initializer("w", random_tensor({DType::kFloat32, {40, 70}}, seed));
  builder.initializer("v", random_tensor({DType::kFloat32, {70, 3}}, seed + 1));
  builder.initializer("row", random_tensor({DType::kFloat32, {70}}, seed + 2));
  builder.initializer("scale", random_tensor({DType::kFloat32, {1}}, seed + 3));
  builder.node("MatMul", {"x", "w"}, {"h"}, {}, "first");
  std::vector<std::string> values = {"h"};
  for (int k = 0; k < 12; ++k) {
    const std::string name = "e" + std::to_string(k);
    const auto value = [&] { return below(3) ? values.back() : values[below(values.size())]; };
    const std::uint32_t kind = below(8);
    if (kind < 3) {
      static const char* const kUnary[] = {"Tanh", "Relu", "Sigmoid", "Gelu", "Elu", "Softplus"};
      builder.node(kUnary[below(6)], {value()}, {name}, {}, name);
    } else if (kind < 5) {
      builder.node(below(2) ? "Add" : "Mul", {value(), below(2) ? "row" : "scale"}, {name}, {},
                   name);
    } else if (kind == 5) {
      builder.node("Identity", {value()}, {name}, {}, name);
    } else {
      builder.node(below(2) ? "Add" : "Mul", {value(), value()}, {name}, {}, name);
    }
    values.push_back(name);
  }
  builder.node("MatMul", {values.back(), "v"}, {"logits"}, {}, "last");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

TrainingGraph build(const OnnxModel& model, bool fuse) {
  BuildOptions options;
  options.lower.micro_batch = 6;
  options.fusion = fuse ? FusionTarget::kCpu : FusionTarget::kNone;
  return build_training_graph(model, classify_tensors(model, {}), options);
}

std::vector<HostTensor> run(const TrainingGraph& training, Backend backend = Backend::kCpu) {
  test::Feeds feeds;
  feeds[training.inputs[0].value] =
      random_tensor(training.graph[training.inputs[0].value].type, 11);
  feeds[training.loss.label] = random_tensor(training.graph[training.loss.label].type, 12, 0, 3);
  feeds[training.loss.loss_scale] = test::floats(Shape{}, {0.25F});
  for (const Accumulation& use : training.accumulations)
    feeds[use.accumulator] = HostTensor(training.graph[use.accumulator].type);
  return test::run_graph(training.graph, backend, feeds);
}

int count(const TrainingGraph& training, std::string_view op) {
  int found = 0;
  for (const Node& node : training.graph.nodes) found += node.op->name == op;
  return found;
}

TEST(FuseElementwise, ChangesNoBitOfLossAndGradients) {
  int groups = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const OnnxModel model = random_network(seed);
    const TrainingGraph alone = build(model, false), fused = build(model, true);
    groups += count(fused, "Fused");
    ASSERT_EQ(alone.graph.values.size(), fused.graph.values.size());
    const auto expected = run(alone), actual = run(fused);
    const auto same = [&](ValueId id) {
      test::expect_same_bits(actual[static_cast<std::size_t>(id.index)],
                             expected[static_cast<std::size_t>(id.index)]);
    };
    same(fused.loss.loss_sum);
    for (const Accumulation& use : fused.accumulations) same(use.contribution);
    if (HasFailure()) FAIL() << "seed " << seed << "\n" << fused.graph.to_text();
  }
  EXPECT_GT(groups, 80);
}

TEST(FuseElementwise, ChangesNoBitOfWhatIsStoredNarrow) {
  int narrow_steps = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    const bool on_cpu = seed % 2 == 1;
    const Backend backend = on_cpu ? Backend::kCpu : Backend::kReference;
    const OnnxModel model = random_network(seed / 2);
    BuildOptions options;
    options.lower.micro_batch = on_cpu ? 60 : 6;  // several blocks
    options.precision = seed % 4 < 2 ? DType::kBFloat16 : DType::kFloat16;
    const auto made = [&] {
      return build_training_graph(model, classify_tensors(model, {}), options);
    };
    const TrainingGraph alone = made();
    TrainingGraph fused = made();
    fuse_elementwise(fused, on_cpu ? FusedTypes::kCpu : FusedTypes::kStored);
    fused.graph.verify();
    for (const Node& node : fused.graph.nodes) {
      if (node.op->name != "Fused") continue;
      const std::string program = node.attributes.text("program", "");
      narrow_steps +=
          program.find(fmt::format("as={}", name_of(options.precision))) != std::string::npos;
    }
    const auto expected = run(alone, backend), actual = run(fused, backend);
    const auto same = [&](ValueId id) {
      test::expect_same_bits(actual[static_cast<std::size_t>(id.index)],
                             expected[static_cast<std::size_t>(id.index)]);
    };
    same(fused.loss.loss_sum);
    for (const Accumulation& use : fused.accumulations) same(use.contribution);
    if (HasFailure()) FAIL() << "seed " << seed << "\n" << fused.graph.to_text();
  }
  EXPECT_GT(narrow_steps, 12);
}

// Comparisons, logic, choices and casts no longer end a chain, forward and backward.
TEST(FuseElementwise, MasksAreStepsToo) {
  OnnxBuilder builder("masks");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 40}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 3}});
  builder.initializer("w", random_tensor({DType::kFloat32, {40, 70}}, 1));
  builder.initializer("v", random_tensor({DType::kFloat32, {70, 3}}, 2));
  builder.initializer("low", random_tensor({DType::kFloat32, {1}}, 3, -1, 0));
  builder.initializer("high", random_tensor({DType::kFloat32, {1}}, 4, 0, 1));
  builder.node("MatMul", {"x", "w"}, {"h"}, {}, "first");
  builder.node("Greater", {"h", "low"}, {"above"}, {}, "greater");
  builder.node("LessOrEqual", {"h", "high"}, {"below"}, {}, "less");
  builder.node("And", {"above", "below"}, {"inside"}, {}, "and");
  builder.node("Not", {"inside"}, {"outside"}, {}, "not");
  builder.node("Cast", {"outside"}, {"share"}, {OnnxAttribute::of_int("to", 1)}, "cast");
  builder.node("Tanh", {"h"}, {"t"}, {}, "tanh");
  builder.node("Mul", {"h", "share"}, {"m"}, {}, "mul");
  builder.node("Where", {"inside", "t", "m"}, {"chosen"}, {}, "where");
  builder.node("MatMul", {"chosen", "v"}, {"logits"}, {}, "last");
  const std::string bytes = builder.bytes();
  const OnnxModel model = read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
  const TrainingGraph alone = build(model, false), fused = build(model, true);
  for (const char* op : {"Greater", "LessOrEqual", "And", "Not", "Cast"}) {
    EXPECT_EQ(count(alone, op), 1) << op;
    EXPECT_EQ(count(fused, op), 0) << op;
  }
  EXPECT_EQ(count(alone, "Where"), 3);  // two of them for the gradients of the choice
  EXPECT_LE(count(fused, "Where"), 1);
  const auto expected = run(alone), actual = run(fused);
  const auto same = [&](ValueId id) {
    test::expect_same_bits(actual[static_cast<std::size_t>(id.index)],
                           expected[static_cast<std::size_t>(id.index)]);
  };
  same(fused.loss.loss_sum);
  for (const Accumulation& use : fused.accumulations) same(use.contribution);
  if (HasFailure()) FAIL() << fused.graph.to_text();
}

TEST(FuseElementwise, SkipAndActivationAreOneNodeForwardAndBackward) {
  OnnxBuilder builder("skip");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 8}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 8}});
  for (const char* name : {"w0", "w1", "w2"})
    builder.initializer(name, random_tensor({DType::kFloat32, {8, 8}}, 3));
  builder.node("MatMul", {"x", "w0"}, {"a"}, {}, "a");
  builder.node("MatMul", {"a", "w1"}, {"b"}, {}, "b");
  builder.node("Add", {"b", "a"}, {"sum"}, {}, "sum");
  builder.node("Relu", {"sum"}, {"y"}, {}, "y");
  builder.node("MatMul", {"y", "w2"}, {"c"}, {}, "c");
  builder.node("Add", {"c", "y"}, {"logits"}, {}, "logits");
  const std::string bytes = builder.bytes();
  const OnnxModel model = read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
  const TrainingGraph fused = build(model, true);
  std::vector<std::string> programs;
  for (const Node& node : fused.graph.nodes) {
    if (node.op->name == "Fused") programs.push_back(node.attributes.text("program", ""));
  }
  EXPECT_EQ(programs, (std::vector<std::string>{"Add 0 1; Relu 2", "Sum 0 1; ReluGrad 3 2"}));
}

}  // namespace
}  // namespace pipetrain
