// The kernels for depthwise convolutions by themselves, also where oneDNN's are chosen: against the
// reference in double, from every layout to every other, with the same bits for any number of
// threads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/conv/conv_cases.h"
#include "ops/conv/depthwise_cpu.h"
#include "support/blocked.h"

namespace pipetrain::test {
namespace {

Depthwise shape_of(const ConvCase& c, Layout x, Layout y) {
  const auto shape = depthwise(conv_geometry(c.attributes(), c.x, c.w),
                               in_layout({DType::kFloat32, c.x}, x).layout,
                               in_layout({DType::kFloat32, c.y()}, y).layout);
  EXPECT_TRUE(shape.has_value()) << c.name;
  return *shape;
}

/// y, or dx of `from` with `input_gradient`, in row-major order.
HostTensor run(const ConvCase& c, Layout x, Layout y, bool input_gradient, const HostTensor& from,
               const HostTensor& w, const HostTensor& b, int threads) {
  const Depthwise shape = shape_of(c, x, y);
  const DepthwisePass pass =
      input_gradient ? depthwise_input_gradient(shape) : depthwise_forward(shape);
  const HostTensor source = to_layout(from, input_gradient ? y : x);
  HostTensor out(
      in_layout({DType::kFloat32, input_gradient ? c.x : c.y()}, input_gradient ? x : y));
  const Buffer workspace(depthwise_workspace_bytes(pass, threads));
  depthwise_run(pass, source.view().as<const float>(), w.view().as<const float>(),
                b ? b.view().as<const float>() : nullptr, out.view().as<float>(), workspace.data(),
                threads);
  return to_layout(out, Layout::kRowMajor);
}

/// dw and db.
std::vector<HostTensor> gradients(const ConvCase& c, Layout x, Layout y, const HostTensor& input,
                                  const HostTensor& dy, int threads) {
  const Depthwise shape = shape_of(c, x, y);
  std::vector<HostTensor> out = {HostTensor({DType::kFloat32, c.w}),
                                 HostTensor({DType::kFloat32, Shape{c.w[0]}})};
  const HostTensor from = to_layout(input, x), gradient = to_layout(dy, y);
  const Buffer workspace(depthwise_weight_gradient_workspace_bytes(shape, threads));
  depthwise_weight_gradient(shape, from.view().as<const float>(), gradient.view().as<const float>(),
                            /*add=*/false, out[0].view().as<float>(), out[1].view().as<float>(),
                            workspace.data(), threads);
  return out;
}

TEST(Depthwise, AgreesWithReference) {
  constexpr Layout kLayouts[] = {Layout::kRowMajor, Layout::kBlocked8, Layout::kBlocked16};
  for (const ConvCase& c : depthwise_cases()) {
    const HostTensor x = random_tensor({DType::kFloat64, c.x}, 1);
    const HostTensor w = random_tensor({DType::kFloat64, c.w}, 2);
    const HostTensor dy = random_tensor({DType::kFloat64, c.y()}, 3);
    const HostTensor b = random_tensor({DType::kFloat64, {c.w[0]}}, 4);
    const auto single = [](const HostTensor& tensor) { return as_float(tensor, DType::kFloat32); };
    const HostTensor y = single(run_op("Conv", c.attributes(), {x, w, b})[0]);
    const HostTensor dx = single(run_op("ConvInputGrad", c.with_output(c.x), {dy, w})[0]);
    const auto dw = run_op("ConvWeightGrad", c.with_output(c.w, /*bias=*/true), {x, dy});
    for (const Layout from : kLayouts) {
      for (const Layout to : kLayouts) {
        if (c.x.rank() != 4 && (from != Layout::kRowMajor || to != Layout::kRowMajor)) continue;
        SCOPED_TRACE(fmt::format("{} {} {}", c.name, static_cast<int>(from), static_cast<int>(to)));
        const HostTensor forward = run(c, from, to, false, single(x), single(w), single(b), 1);
        const HostTensor input = run(c, from, to, true, single(dy), single(w), {}, 1);
        const auto weight = gradients(c, from, to, single(x), single(dy), 1);
        expect_close(forward, y, 2e-6, "forward");
        expect_close(input, dx, 2e-6, "input gradient");
        expect_close(weight[0], single(dw[0]), 5e-6, "weight gradient");
        expect_close(weight[1], single(dw[1]), 5e-6, "bias gradient");
        expect_same_bits(run(c, from, to, false, single(x), single(w), single(b), 3), forward);
        expect_same_bits(run(c, from, to, true, single(dy), single(w), {}, 3), input);
        const auto again = gradients(c, from, to, single(x), single(dy), 3);
        for (int i = 0; i < 2; ++i) expect_same_bits(again[i], weight[i]);
      }
    }
  }
}

TEST(Depthwise, IsOneChannelAGroupOverOneAxisOrTwo) {
  const auto is_depthwise = [](const ConvCase& c) {
    return depthwise(conv_geometry(c.attributes(), c.x, c.w), Layout::kRowMajor, Layout::kRowMajor)
        .has_value();
  };
  const Ints one = {1, 1}, none = {0, 0, 0, 0};
  EXPECT_TRUE(is_depthwise({"", {2, 8, 5, 5}, {8, 1, 3, 3}, one, one, none, 8}));
  EXPECT_FALSE(is_depthwise({"", {2, 8, 5, 5}, {16, 1, 3, 3}, one, one, none, 8}));
  EXPECT_FALSE(is_depthwise({"", {2, 8, 5, 5}, {8, 2, 3, 3}, one, one, none, 4}));
  EXPECT_FALSE(is_depthwise({"", {2, 1, 5, 5}, {1, 1, 3, 3}, one, one, none, 1}));
}

}  // namespace
}  // namespace pipetrain::test
