// Orders of models: what another order gains on branching networks, against the definition of what
// crosses a cut; orders as text.
#include "partition/model_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "passes/linearise.h"
#include "profile/estimate.h"

namespace pipetrain {
namespace {

/// Layers by name: what they read, and how wide their result is. The last one is the output.
struct Layer {
  std::string name;
  std::vector<std::string> inputs;
  std::int64_t width;  // 0: the sum of its inputs
};

TrainingGraph network_of(const std::vector<Layer>& layers) {
  constexpr std::int64_t kInput = 16;
  OnnxBuilder builder("branches");
  std::map<std::string, std::int64_t> width = {{"x", kInput}};
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", kInput}});
  for (const Layer& layer : layers) {
    if (layer.width == 0) {
      builder.node("Sum", layer.inputs, {layer.name}, {}, layer.name);
      width[layer.name] = width[layer.inputs[0]];
      continue;
    }
    HostTensor weight(TensorType{DType::kFloat32, Shape({width[layer.inputs[0]], layer.width})});
    std::ranges::fill(weight.span<float>(), 0.01F);
    builder.initializer("w" + layer.name, weight);
    builder.node("MatMul", {layer.inputs[0], "w" + layer.name}, {layer.name}, {}, layer.name);
    width[layer.name] = layer.width;
  }
  builder.output(layers.back().name, DType::kFloat32,
                 {{"batch", -1}, {"", width[layers.back().name]}});
  const std::string bytes = builder.bytes();
  const OnnxModel model = read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
  BuildOptions options;
  options.lower.micro_batch = 8;
  return build_training_graph(model, classify_tensors(model, {}), options);
}

/// Branches of two layers between one input and a sum, as wide inside as `inner` says.
std::vector<Layer> inception(const std::vector<std::int64_t>& inner) {
  std::vector<Layer> out = {{"stem", {"x"}, 64}};
  Layer sum{"sum", {}, 0};
  for (const std::int64_t width : inner) {
    const std::string name = "b" + std::to_string(out.size());
    out.push_back({name, {"stem"}, width});
    out.push_back({name + "o", {name}, 64});
    sum.inputs.push_back(name + "o");
  }
  out.push_back(sum);
  out.push_back({"head", {"sum"}, 4});
  return out;
}

/// Two towers in turns, as some exporters write them, and their sum.
std::vector<Layer> two_towers(const std::vector<std::int64_t>& a,
                              const std::vector<std::int64_t>& b) {
  std::vector<Layer> out;
  std::string last_a = "x", last_b = "x";
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i < a.size()) out.push_back({"a" + std::to_string(i), {last_a}, a[i]});
    if (i < a.size()) last_a = out.back().name;
    if (i < b.size()) out.push_back({"b" + std::to_string(i), {last_b}, b[i]});
    if (i < b.size()) last_b = out.back().name;
  }
  out.push_back({"both", {last_a, last_b}, 0});
  out.push_back({"head", {"both"}, 4});
  return out;
}

/// Down and up again, with the results of the way down added on the way up.
std::vector<Layer> u_net(std::int64_t depth) {
  std::vector<Layer> out = {{"d0", {"x"}, 256}};
  for (std::int64_t i = 1; i < depth; ++i)
    out.push_back({"d" + std::to_string(i), {"d" + std::to_string(i - 1)}, 256 >> i});
  std::string last = out.back().name;
  for (std::int64_t i = depth - 2; i >= 0; --i) {
    const std::string at = std::to_string(i);
    out.push_back({"u" + at, {last}, 256 >> i});
    out.push_back({"s" + at, {"u" + at, "d" + at}, 0});
    last = "s" + at;
  }
  out.push_back({"head", {last}, 4});
  return out;
}

/// Slowest stage and bytes over the cuts of the best plan.
std::pair<double, std::size_t> planned(const TrainingGraph& training, const Profile& profile,
                                       const Chain& chain, const PlanRequest& request) {
  const ChainCosts costs = chain_costs(training, chain, profile);
  const Plan plan = plan_stages(costs, request);
  std::size_t bytes = 0;
  for (const int cut : plan.cuts()) {
    // By definition: what one side makes and the other reads, each value once.
    std::map<int, int> place;
    for (std::size_t i = 0; i < chain.order.size(); ++i)
      place[chain.order[i].index] = static_cast<int>(i);
    const auto place_of = [&](NodeId id) {
      const Node& node = training.graph[id];
      const auto found = place.find(node.gradient_of ? node.gradient_of.index : id.index);
      return found == place.end() ? -1 : found->second;
    };
    std::set<int> sent;
    for (std::size_t n = 0; n < training.graph.nodes.size(); ++n) {
      const int reader = place_of({static_cast<int>(n)});
      for (const ValueId input : training.graph.nodes[n].inputs) {
        const NodeId producer = input ? training.graph[input].producer : NodeId{};
        if (!producer || reader < 0 || place_of(producer) < 0) continue;
        if ((place_of(producer) < cut) != (reader < cut)) sent.insert(input.index);
      }
    }
    std::size_t crossing = 0;
    for (const int value : sent)
      crossing += training.graph.values[static_cast<std::size_t>(value)].type.bytes();
    EXPECT_EQ(crossing, costs.forward_bytes[static_cast<std::size_t>(cut)] +
                            costs.backward_bytes[static_cast<std::size_t>(cut)]);
    bytes += crossing;
  }
  return {plan.bottleneck_seconds, bytes};
}

TEST(ModelOrder, IsNeverWorseAndBetterWhereBranchesAreUneven) {
  struct Case {
    const char* name;
    std::vector<Layer> layers;
    int stages;
    bool gains;
  };
  const std::vector<Case> cases = {
      // 3 + 3 and 2 + 2 + 2, but in the order of the file no prefix is half of it.
      {"inception", inception({1536, 1024, 1536, 1024, 1024}), 2, true},
      {"wide inception", inception({1024, 1792, 1280, 512, 768, 1536, 256, 1792}), 3, true},
      {"two towers", two_towers({512, 256, 512, 128, 64}, {1024, 768, 64}), 3, false},
      {"u-net", u_net(5), 3, false},
      {"a chain", {{"l0", {"x"}, 64}, {"l1", {"l0"}, 64}, {"l2", {"l1"}, 4}}, 2, false},
  };
  for (const Case& at : cases) {
    const TrainingGraph training = network_of(at.layers);
    const Profile profile = estimate_profile(training, {.name = "slow",
                                                        .flops_per_second = 1e9,
                                                        .bytes_per_second = 1e12,
                                                        .launch_seconds = 1e-9});
    PlanRequest request;
    request.stages = at.stages;
    request.micro_batches = 4;
    const Chain standard = linearise(training);
    const ChainCosts costs = chain_costs(training, standard, profile);
    const std::vector<int> order = better_order(training, profile, standard, costs, request);
    const auto before = planned(training, profile, standard, request);
    ASSERT_TRUE(!at.gains || !order.empty()) << at.name;
    if (order.empty()) continue;
    EXPECT_NE(order, order_of(training, standard)) << at.name;
    const Chain other = chain_in_order(training, order);
    EXPECT_EQ(order_of(training, other), order) << at.name;
    const auto after = planned(training, profile, other, request);
    EXPECT_LE(after.first, before.first) << at.name;
    EXPECT_TRUE(after.first < 0.99 * before.first || after.second < before.second) << at.name;
    EXPECT_TRUE(!at.gains || after.first < 0.95 * before.first) << at.name;
    EXPECT_EQ(better_order(training, profile, standard, costs, request), order) << at.name;
  }
}

TEST(ModelOrder, AsTextAndBack) {
  for (const std::vector<int>& order :
       {std::vector<int>{0}, {0, 1, 2, 3}, {3, 2, 1, 0}, {0, 2, 3, 4, 1, 5}, {1, 0, 2}}) {
    EXPECT_EQ(parse_order(order_text(order), static_cast<int>(order.size())), order);
  }
  EXPECT_EQ(order_text(std::vector<int>{0, 2, 3, 4, 1, 5}), "0 2-4 1 5");
  for (const char* wrong : {"", "0-2", "0-4", "0 1 2 2", "0 1 2 3 4", "3-0", "0-1-3", "a", "-1",
                            "0,1,2,3", "0-99999999999999999999"}) {
    try {
      parse_order(wrong, 4);
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << wrong;
    }
  }
}

TEST(ModelOrder, OnlyOrdersWithInputsFirstAreTaken) {
  const TrainingGraph training = network_of(inception({8, 16}));
  const Chain chain = linearise(training);
  std::vector<int> order = order_of(training, chain);
  std::vector<int> reversed(order.rbegin(), order.rend()), twice = order;
  twice[1] = twice[0];
  for (const std::vector<int>& wrong : {reversed, twice, std::vector<int>{0}}) {
    try {
      chain_in_order(training, wrong);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    }
  }
  EXPECT_EQ(chain_in_order(training, order).forward_bytes, chain.forward_bytes);
}

}  // namespace
}  // namespace pipetrain
