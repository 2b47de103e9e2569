// The kernels for depthwise convolutions by themselves, also where oneDNN's are chosen: against the
// reference in double, from every layout to every other, with the same bits for any number of
// threads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/conv/conv_cases.h"
#include "ops/conv/depthwise_planar_cpu.h"
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

/// The same by the kernels for long rows, from row-major order to row-major order.
HostTensor run_planar(const ConvCase& c, bool input_gradient, const HostTensor& from,
                      const HostTensor& w, const HostTensor& b, int threads) {
  const Depthwise shape = shape_of(c, Layout::kRowMajor, Layout::kRowMajor);
  const DepthwisePlanarPass pass =
      input_gradient ? depthwise_planar_input_gradient(shape) : depthwise_planar_forward(shape);
  HostTensor out({DType::kFloat32, input_gradient ? c.x : c.y()});
  const Buffer workspace(depthwise_planar_workspace_bytes(pass, threads));
  depthwise_planar_run(pass, from.view().as<const float>(), w.view().as<const float>(),
                       b ? b.view().as<const float>() : nullptr, out.view().as<float>(),
                       workspace.data(), threads);
  return out;
}
std::vector<HostTensor> planar_gradients(const ConvCase& c, const HostTensor& x,
                                         const HostTensor& dy, int threads) {
  const Depthwise shape = shape_of(c, Layout::kRowMajor, Layout::kRowMajor);
  std::vector<HostTensor> out = {HostTensor({DType::kFloat32, c.w}),
                                 HostTensor({DType::kFloat32, Shape{c.w[0]}})};
  const Buffer workspace(depthwise_planar_weight_gradient_workspace_bytes(shape, threads));
  depthwise_planar_weight_gradient(shape, x.view().as<const float>(), dy.view().as<const float>(),
                                   /*add=*/false, out[0].view().as<float>(),
                                   out[1].view().as<float>(), workspace.data(), threads);
  return out;
}

/// Operands of a case, and what the reference makes of them in double.
struct Reference {
  explicit Reference(const ConvCase& c) {
    const auto operand = [](const Shape& shape, std::uint64_t seed) {
      return random_tensor({DType::kFloat64, shape}, seed);
    };
    const HostTensor in = operand(c.x, 1), weight = operand(c.w, 2), gradient = operand(c.y(), 3);
    const HostTensor bias = operand({c.w[0]}, 4);
    const auto single = [](const HostTensor& tensor) { return as_float(tensor, DType::kFloat32); };
    x = single(in), w = single(weight), dy = single(gradient), b = single(bias);
    y = single(run_op("Conv", c.attributes(), {in, weight, bias})[0]);
    dx = single(run_op("ConvInputGrad", c.with_output(c.x), {gradient, weight})[0]);
    for (const HostTensor& each :
         run_op("ConvWeightGrad", c.with_output(c.w, /*bias=*/true), {in, gradient}))
      dw.push_back(single(each));
  }
  HostTensor x, w, dy, b, y, dx;
  std::vector<HostTensor> dw;
};

TEST(Depthwise, AgreesWithReference) {
  constexpr Layout kLayouts[] = {Layout::kRowMajor, Layout::kBlocked8, Layout::kBlocked16};
  for (const ConvCase& c : depthwise_cases()) {
    const Reference exact(c);
    for (const Layout from : kLayouts) {
      for (const Layout to : kLayouts) {
        SCOPED_TRACE(fmt::format("{} {} {}", c.name, static_cast<int>(from), static_cast<int>(to)));
        const HostTensor forward = run(c, from, to, false, exact.x, exact.w, exact.b, 1);
        const HostTensor input = run(c, from, to, true, exact.dy, exact.w, {}, 1);
        const auto weight = gradients(c, from, to, exact.x, exact.dy, 1);
        expect_close(forward, exact.y, 2e-6, "forward");
        expect_close(input, exact.dx, 2e-6, "input gradient");
        expect_same_bits(run(c, from, to, false, exact.x, exact.w, exact.b, 3), forward);
        expect_same_bits(run(c, from, to, true, exact.dy, exact.w, {}, 3), input);
        const auto again = gradients(c, from, to, exact.x, exact.dy, 3);
        for (std::size_t i = 0; i < 2; ++i) {
          expect_close(weight[i], exact.dw[i], 5e-6, "weight gradient");
          expect_same_bits(again[i], weight[i]);
        }
      }
    }
  }
}

TEST(Depthwise, OfRowsAgreesWithReference) {
  std::vector<ConvCase> cases = depthwise_cases();
  const Ints one = {1, 1}, two = {2, 2};
  cases.push_back({"rows_3x3", {2, 5, 9, 56}, {5, 1, 3, 3}, one, one, {1, 1, 1, 1}, 5});
  cases.push_back({"rows_strided", {2, 3, 40, 61}, {3, 1, 5, 5}, two, one, {2, 2, 2, 2}, 3});
  cases.push_back({"rows_long", {1, 3, 6, 300}, {3, 1, 3, 9}, {1, 3}, {2, 2}, {2, 8, 2, 8}, 3});
  for (const ConvCase& c : cases) {
    SCOPED_TRACE(c.name);
    const Reference exact(c);
    const HostTensor forward = run_planar(c, false, exact.x, exact.w, exact.b, 1);
    const HostTensor input = run_planar(c, true, exact.dy, exact.w, {}, 1);
    const auto weight = planar_gradients(c, exact.x, exact.dy, 1);
    expect_close(forward, exact.y, 2e-6, "forward");
    expect_close(input, exact.dx, 2e-6, "input gradient");
    expect_same_bits(run_planar(c, false, exact.x, exact.w, exact.b, 3), forward);
    expect_same_bits(run_planar(c, true, exact.dy, exact.w, {}, 3), input);
    const auto again = planar_gradients(c, exact.x, exact.dy, 3);
    for (std::size_t i = 0; i < 2; ++i) {
      expect_close(weight[i], exact.dw[i], 5e-6, "weight gradient");
      expect_same_bits(again[i], weight[i]);
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
