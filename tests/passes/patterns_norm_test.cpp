// What the vectors of a fused norm may be.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/builder.h"
#include "graph/op.h"
#include "ops/registry/registry.h"
#include "passes/lower.h"
#include "passes/patterns.h"

namespace pipetrain {
namespace {

/// The operators that compute a norm of x (1, 1, 6), one sample of one token, times a value of
/// `shape`: a parameter or activations.
std::string fused_norm(Shape shape, Role role) {
  Graph graph;
  GraphBuilder builder = make_builder(graph);
  const auto value = [&](Shape of, Role as) {
    Value made;
    made.name = "value";
    made.type = {DType::kFloat32, std::move(of)};
    made.role = as;
    return builder.add_value(std::move(made));
  };
  const auto mean = [&](ValueId x) {
    return builder.add("ReduceMean", {x}, {{"axes", Ints{-1}}, {"keepdims", std::int64_t{1}}});
  };
  const ValueId x = value({1, 1, 6}, Role::kInput), by = value(std::move(shape), role);
  const ValueId d = builder.add("Sub", {x, mean(x)});
  const ValueId variance = mean(builder.add("PowScalar", {d}, {{"exponent", 2.0}}));
  const ValueId root = builder.add("Sqrt", {builder.add("Add", {variance, builder.scalar(1e-5)})});
  const ValueId y = builder.add("Mul", {builder.add("Div", {d, root}), by});
  fuse_patterns(graph, std::span(&y, 1));
  remove_dead_nodes(graph, {y});
  std::string ops;
  for (const Node& node : graph.nodes) {
    if (node.op->name != "Reshape") ops += std::string(node.op->name) + " ";
  }
  return ops;
}

// With more samples they are no vector, and the same nodes must compute all micro-batches.
TEST(PatternsNorm, ActivationsOfOneSampleScaleNoNorm) {
  EXPECT_EQ(fused_norm({1, 1, 6}, Role::kInput), "LayerNorm Mul ");
  EXPECT_EQ(fused_norm({1, 1, 6}, Role::kParameter), "LayerNorm ");
  EXPECT_EQ(fused_norm({6}, Role::kInput), "LayerNorm ");
}

}  // namespace
}  // namespace pipetrain
