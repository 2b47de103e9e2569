// Group normalization against values computed by hand, central differences, and the CPU kernels
// against the reference in every layout.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>

#include "support/blocked.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

struct Case {
  Shape x;
  std::int64_t groups;

  Shape channel() const { return {x[1]}; }
  Shape statistic() const { return {x[0], groups}; }
};

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {{2, 6, 2, 5}, 3},    {{3, 4, 7}, 4},       {{2, 8}, 2},        {{1, 6, 2, 3, 2}, 1},
      {{2, 16, 5, 3}, 16},  {{3, 32, 4, 4}, 8},   {{2, 48, 3, 5}, 3}, {{1, 80, 6, 6}, 8},
      {{2, 32, 40, 33}, 2}, {{1, 64, 20, 20}, 1}, {{9, 32, 8, 8}, 2}, {{2, 16, 30, 6, 7}, 4},
      {{3, 32}, 4},         {{2, 16, 1}, 4}};
  return list;
}

Attributes of(std::int64_t groups, double epsilon = 1e-5) {
  return {{"groups", groups}, {"epsilon", epsilon}};
}

TEST(GroupNorm, KnownNumbers) {
  // Group 0 holds 1, 2, 3, 6 (mean 3, variance 3.5), group 1 holds 5 everywhere.
  const HostTensor x = floats({1, 4, 2}, {1, 2, 3, 6, 5, 5, 5, 5});
  const HostTensor scale = floats({4}, {2, 4, 3, 3});
  const HostTensor bias = floats({4}, {10, 20, 30, 40});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const auto out = run_op("GroupNorm", of(2, 0.5), {x, scale, bias}, backend);
    expect_values(out[0], {1, 4, 2}, {8, 9, 20, 26, 30, 30, 40, 40});
    expect_values(out[1], {1, 2}, {3, 5});
    expect_values(out[2], {1, 2}, {0.5, std::sqrt(2.0)});
  }
}

TEST(GroupNorm, GradientsOfEveryInput) {
  for (const Case& c : cases()) {
    if (c.x.count() > 1000) continue;
    check_gradients("GroupNorm", of(c.groups, 1e-3), {{c.x}, {c.channel()}, {c.channel()}});
  }
}

TEST(GroupNorm, CpuAgreesWithReference) {
  for (const Case& c : cases()) {
    const InputSpec x{.shape = c.x, .low = -2, .high = 5}, channel{.shape = c.channel()};
    const InputSpec mean{.shape = c.statistic()};
    const InputSpec inverse{.shape = c.statistic(), .low = 0.5, .high = 2};
    check_cpu("GroupNorm", of(c.groups), {x, channel, channel}, 1e-4);
    check_cpu("GroupNormGrad", of(c.groups), {{c.x}, x, channel, mean, inverse}, 1e-4);
    Attributes clipped = of(c.groups);
    clipped.set("clip_min", -0.5);
    clipped.set("clip_max", 0.75);
    check_cpu("GroupNorm", clipped, {x, channel, channel}, 1e-4);
    check_cpu("GroupNormGrad", clipped, {{c.x}, x, channel, mean, inverse, channel}, 1e-4);
    Attributes activated = of(c.groups);
    activated.set("activation", std::string("Silu"));
    check_cpu("GroupNorm", activated, {x, channel, channel}, 1e-4);
    check_cpu("GroupNormGrad", activated, {{c.x}, x, channel, mean, inverse, channel}, 1e-4);
  }
}

TEST(GroupNorm, BlockedTensorsGiveTheSameNumbers) {
  for (const Case& c : cases()) {
    for (const Layout layout : {Layout::kBlocked8, Layout::kBlocked16}) {
      if (c.x.rank() < 3 || c.x[1] % (layout == Layout::kBlocked8 ? 8 : 16) != 0) continue;
      for (const std::string activation : {"", "limits", "Silu"}) {
        Attributes attributes = of(c.groups);
        if (activation == "limits") attributes.set("clip_min", 0.1);
        if (activation == "Silu") attributes.set("activation", activation);
        const HostTensor x = random_tensor({DType::kFloat32, c.x}, 1, -2, 5);
        const HostTensor dy = random_tensor({DType::kFloat32, c.x}, 2);
        const HostTensor scale = random_tensor({DType::kFloat32, c.channel()}, 3);
        const HostTensor bias = random_tensor({DType::kFloat32, c.channel()}, 4);
        const TensorType map = in_layout({DType::kFloat32, c.x}, layout);
        const TensorType statistic{DType::kFloat32, c.statistic()};
        const TensorType sums{DType::kFloat32, {c.x[0], c.x[1]}};
        const auto expected = run_op("GroupNorm", attributes, {x, scale, bias});
        const auto y = run_in_layouts("GroupNorm", attributes, {to_layout(x, layout), scale, bias},
                                      {map, statistic, statistic});
        expect_close(to_layout(y[0], Layout::kRowMajor), expected[0], 1e-4);
        expect_close(y[1], expected[1], 1e-5);
        expect_close(y[2], expected[2], 1e-5);
        const auto gradients =
            run_op("GroupNormGrad", attributes, {dy, x, scale, expected[1], expected[2], bias});
        const auto blocked = run_in_layouts(
            "GroupNormGrad", attributes,
            {to_layout(dy, layout), to_layout(x, layout), scale, expected[1], expected[2], bias},
            {map, sums, sums});
        expect_close(to_layout(blocked[0], Layout::kRowMajor), gradients[0], 1e-4);
        expect_close(blocked[1], gradients[1], 1e-4);
        expect_close(blocked[2], gradients[2], 1e-4);
      }
    }
  }
}

// A frozen scale, a network's first layer.
TEST(GroupNorm, OutputsThatNobodyReads) {
  const HostTensor x = random_tensor({DType::kFloat32, {2, 6, 5}}, 1, -2, 5);
  const HostTensor dy = random_tensor(x.type(), 2);
  const HostTensor channel = random_tensor({DType::kFloat32, {6}}, 3);
  const auto statistics = run_op("GroupNorm", of(3), {x, channel, channel});
  const std::vector<HostTensor> in = {dy, x, channel, statistics[1], statistics[2]};
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const auto all = run_op("GroupNormGrad", of(3), in, backend);
    Node node;
    node.op = find_op("GroupNormGrad");
    node.attributes = of(3);
    std::vector<TensorType> types, results;
    std::vector<Tensor> given;
    for (const HostTensor& tensor : in) {
      types.push_back(tensor.type());
      given.push_back(tensor.view());
    }
    for (const HostTensor& tensor : all) results.push_back(tensor.type());
    const auto kernel = make_kernel(backend, {node, types, results});
    const Buffer workspace(kernel->workspace_bytes());
    RunContext context;
    context.workspace = workspace.data();
    for (std::size_t wanted = 0; wanted < all.size(); ++wanted) {
      HostTensor one(results[wanted]);
      std::vector<Tensor> out;
      for (const TensorType& type : results) out.push_back({type});
      out[wanted] = one.view();
      kernel->run(given, out, context);
      expect_same_bits(one, all[wanted]);
    }
  }
}

TEST(GroupNorm, VarianceSurvivesALargeMean) {
  std::vector<float> values(2 * 8 * 64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 10001.0F : 9999.0F;
  const HostTensor ones = floats({8}, std::vector<float>(8, 1.0F));
  const auto out =
      run_op("GroupNorm", of(4, 0), {floats({2, 8, 8, 8}, values), ones, ones}, Backend::kCpu);
  expect_values(out[1], {2, 4}, std::vector<double>(8, 10000), 1e-6);
  expect_values(out[2], {2, 4}, std::vector<double>(8, 1), 1e-5);
}

// Two samples are few tasks for three threads: their blocks are shared out instead.
TEST(GroupNorm, ThreadsDoNotChangeBits) {
  const HostTensor x = random_tensor({DType::kFloat32, {2, 64, 32, 32}}, 1);
  const HostTensor channel = random_tensor({DType::kFloat32, {64}}, 2);
  const int before = omp_get_max_threads();
  for (const std::int64_t groups : {1, 2, 64}) {
    omp_set_num_threads(1);
    const auto one = run_op("GroupNorm", of(groups), {x, channel, channel}, Backend::kCpu);
    const auto gradient =
        run_op("GroupNormGrad", of(groups), {x, x, channel, one[1], one[2]}, Backend::kCpu);
    omp_set_num_threads(3);
    const auto three = run_op("GroupNorm", of(groups), {x, channel, channel}, Backend::kCpu);
    const auto shared =
        run_op("GroupNormGrad", of(groups), {x, x, channel, one[1], one[2]}, Backend::kCpu);
    omp_set_num_threads(before);
    for (std::size_t i = 0; i < 3; ++i) {
      expect_same_bits(three[i], one[i], "threads");
      expect_same_bits(shared[i], gradient[i], "threads");
    }
  }
}

TEST(GroupNorm, RefusesWhatDoesNotFit) {
  const TensorType x{DType::kFloat32, Shape{2, 6, 4}}, channel{DType::kFloat32, Shape{6}};
  expect_error(ErrorKind::kModel, "divides the channels, got 4", [&] {
    infer_op("GroupNorm", of(4), {x, channel, channel});
  });
  expect_error(ErrorKind::kModel, "scale of a group normalization must be float32 (6)", [&] {
    infer_op("GroupNorm", of(3), {x, {DType::kFloat32, Shape{3}}, channel});
  });
  expect_error(ErrorKind::kModel, "non-empty input", [&] {
    infer_op("GroupNorm", of(3), {{DType::kFloat32, Shape{2, 6, 0}}, channel, channel});
  });
}

// --- imports; expected values are from PyTorch ---

HostTensor powers() {
  HostTensor x(TensorType{DType::kFloat32, Shape{2, 4, 3}});
  for (int i = 0; i < 24; ++i) x.view().as<float>()[i] = std::pow(static_cast<float>(i), 1.3f) / 7;
  return x;
}

TEST(GroupNormImport, PerChannelAndPerGroup) {
  const Attributes groups = {{"num_groups", std::int64_t{2}}};
  const Imported per_channel = import_node("GroupNormalization", 21, groups,
                                           {data(powers()), data(floats({4}, {1, 2, 0.5, -1})),
                                            data(floats({4}, {0, 0.1f, 0.2f, 0.3f}))});
  expect_values(per_channel.run()[0], {2, 4, 3},
                {-1.2888279, -0.9340982, -0.4153808, 0.4816181, 1.8237015,  3.2712941,
                 -0.5137903, -0.2431361, 0.0394051,  0.0344661, -0.5721809, -1.1973293,
                 -1.4430957, -0.8826836, -0.3091763, 0.6535244, 1.8490896,  3.0672939,
                 -0.5246481, -0.2406629, 0.0478435,  0.0185755, -0.5755910, -1.1779194},
                1e-5);
  const Imported per_group =
      import_node("GroupNormalization", 18, groups,
                  {data(powers()), data(floats({2}, {1, 1})), data(floats({2}, {0, 10}))});
  const std::vector<double> y = per_group.run()[0].to_doubles();
  EXPECT_NEAR(y[0], -1.2888279, 1e-5);
  EXPECT_NEAR(y[6], 10 + (-0.5137903 - 0.2) / 0.5, 1e-5);
}

TEST(InstanceNormImport, EachChannelOfEachSample) {
  const Imported imported = import_node("InstanceNormalization", 6, {},
                                        {data(powers()), data(floats({4}, {1, 2, 0.5, -1})),
                                         data(floats({4}, {0, 0.1f, 0.2f, 0.3f}))});
  expect_values(imported.run()[0], {2, 4, 3},
                {-1.1411377, -0.1523660, 1.2935038, -2.3178027, 0.0382584, 2.5795441,
                 -0.4078984, 0.1912289,  0.8166693, 1.5185003,  0.3122621, -0.9307636,
                 -1.2199457, -0.0094283, 1.2293754, -2.3416946, 0.0846854, 2.5570109,
                 -0.4107312, 0.1967762,  0.8139554, 1.5219100,  0.3055703, -0.9274776},
                1e-5);
}

TEST(GroupNormImport, ScalesOfAnotherRank) {
  const ImportInput x = data(floats({1, 2, 2}, {1, 3, 5, 9}));
  const Imported imported =
      import_node("InstanceNormalization", 6, {{"epsilon", 0.0}},
                  {x, data(floats({2, 1}, {1, 2})), data(floats({2, 1}, {0, 1}))});
  expect_values(imported.run()[0], {1, 2, 2}, {-1, 1, -1, 3});
}

}  // namespace
}  // namespace pipetrain::test
