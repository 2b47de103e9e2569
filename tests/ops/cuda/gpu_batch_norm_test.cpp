// Batch normalization with channels last on a GPU: every way of sharing the tensor among threads,
// larger than op_check.h lets the emulator run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "graph/op.h"
#include "support/blocked.h"
#include "support/device_kernel.h"
#include "support/emulated_kernels.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

const Attributes kPlain{{"epsilon", 1e-5}};
const Attributes kRectified{{"epsilon", 1e-5}, {"clip_min", 0.0}, {"clip_open", std::int64_t{1}}};
const Attributes kClipped{{"epsilon", 1e-5}, {"clip_min", -0.5}, {"clip_max", 0.75}};

TensorType laid_out(TensorType type, DType dtype) {
  if (type.shape.rank() != 4) return type;
  type.dtype = dtype;
  type.layout = Layout::kChannelsLast;
  return type;
}

/// Feature maps with channels last in a type, everything else as it is.
HostTensor laid_out(const HostTensor& tensor, DType dtype) {
  if (tensor.shape().rank() != 4) return tensor;
  const HostTensor last = to_layout(tensor, Layout::kChannelsLast);
  if (dtype != DType::kFloat16) return as_float(last, dtype);
  HostTensor out(laid_out(last.type(), dtype));
  for (std::size_t i = 0; i < last.span<float>().size(); ++i)
    out.view().as<std::uint16_t>()[i] = float_to_half(last.span<float>()[i]);
  return out;
}

Node node_of(std::string_view op, const Attributes& attributes) {
  Node node;
  node.op = find_op(op);
  node.attributes = attributes;
  node.name = "test";
  return node;
}

/// In all orders of threads, which must not change a bit.
std::vector<HostTensor> run_in_orders(const Node& node, const std::vector<HostTensor>& inputs,
                                      const std::vector<TensorType>& outputs) {
  std::vector<HostTensor> first;
  for (int order = 0; order < (device_under_test() ? 2 : emulated_orders()); ++order) {
    set_emulated_order(order);
    const auto results = run_made(make_gpu_kernel, node, inputs, outputs, {});
    if (order == 0) first = results;
    for (std::size_t i = 0; i < results.size(); ++i)
      expect_same_bits(results[i], first[i], fmt::format("output {} in order {}", i, order));
  }
  set_emulated_order(0);
  return first;
}

/// Against the reference kernel in double on the rounded numbers. `results`: of the feature map.
void check(std::string_view op, const Attributes& attributes, const std::vector<HostTensor>& inputs,
           DType dtype, DType result, double tolerance = 2e-5) {
  SCOPED_TRACE(fmt::format("{} of {} over {} to {}", op, inputs[1].type().text(), name_of(dtype),
                           name_of(result)));
  const Node node = node_of(op, attributes);
  std::vector<HostTensor> stored, exact;
  std::vector<TensorType> types, outputs;
  for (const HostTensor& input : inputs) {
    stored.push_back(laid_out(input, dtype));
    exact.push_back(as_float(to_layout(stored.back(), Layout::kRowMajor), DType::kFloat64));
    types.push_back(input.type());
  }
  for (const TensorType& type : infer_op(op, attributes, types))
    outputs.push_back(laid_out(type, result));
  const auto expected = run_op(op, attributes, exact);
  const auto results = run_in_orders(node, stored, outputs);
  ASSERT_EQ(results.size(), expected.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const HostTensor rows = as_float(to_layout(results[i], Layout::kRowMajor), DType::kFloat64);
    const DType type = outputs[i].dtype;
    const double last = type == DType::kBFloat16 ? 0.004 : type == DType::kFloat16 ? 5e-4 : 0;
    expect_close(rows, expected[i], tolerance + last, fmt::format("output {}", i));
  }
}

struct Maps {
  HostTensor x, dy, residual, scale, bias, mean, variance;

  explicit Maps(const Shape& shape)
      : x(random_tensor({DType::kFloat32, shape}, 1, -2, 5)),
        dy(random_tensor({DType::kFloat32, shape}, 2)),
        residual(random_tensor({DType::kFloat32, shape}, 3)),
        scale(random_tensor({DType::kFloat32, {shape[1]}}, 4, 0.5, 2)),
        bias(random_tensor({DType::kFloat32, {shape[1]}}, 5)),
        mean(random_tensor({DType::kFloat32, {shape[1]}}, 6, 1, 2)),
        variance(random_tensor({DType::kFloat32, {shape[1]}}, 7, 0.5, 2)) {}
};

// Groups of 8 channels in tiles of 1, 4, 8 (the last one idle in part), 8 by 5 and 32 by 2; single
// channels in tiles of 4 and 32 by 2. Chunks end within the rows of a thread.
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> list = {{5, 8, 17, 49}, {3, 24, 20, 21}, {2, 56, 25, 31},
                                          {2, 320, 9, 8}, {3, 512, 5, 9},  {1, 3, 61, 70},
                                          {2, 35, 9, 31}, {1, 8, 1, 1},    {2, 16, 1, 1}};
  return list;
}

TEST(GpuBatchNorm, AllTilesOfChannels) {
  for (const Shape& shape : shapes()) {
    const Maps m(shape);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      check("BatchNorm", kPlain, {m.x, m.scale, m.bias}, dtype, dtype);
      check("BatchNorm", kRectified, {m.x, m.scale, m.bias, m.residual}, dtype, dtype);
      check("BatchNormGrad", kPlain, {m.dy, m.x, m.scale, m.mean, m.variance}, dtype, dtype);
    }
    const DType narrow = DType::kBFloat16;
    check("BatchNorm", kClipped, {m.x, m.scale, m.bias}, narrow, narrow);
    check("BatchNormGrad", kClipped, {m.dy, m.x, m.scale, m.mean, m.variance, m.bias}, narrow,
          narrow);
    check("BatchNormInference", kClipped, {m.x, m.scale, m.bias, m.mean, m.variance}, narrow,
          narrow);
    check("BatchNormInferenceGrad", kRectified, {m.dy, m.x, m.scale, m.mean, m.variance, m.bias},
          narrow, narrow);
    // A type of its own for the result.
    check("BatchNorm", kRectified, {m.x, m.scale, m.bias, m.residual}, narrow, DType::kFloat32);
    check("BatchNormGrad", kPlain, {m.dy, m.x, m.scale, m.mean, m.variance}, DType::kFloat32,
          narrow);
  }
}

TEST(GpuBatchNorm, AddsToRowMajorTensors) {
  const Maps m({3, 8, 150});
  for (const Attributes& attributes : {kPlain, kRectified})
    check("BatchNorm", attributes, {m.x, m.scale, m.bias, m.residual}, DType::kFloat32,
          DType::kFloat32);
}

// As many chunks as blocks are wanted: a thread that adds up partial sums loads twice.
TEST(GpuBatchNorm, ManyChunks) {
  const Maps m({1, 3, 600, 470});
  check("BatchNorm", kPlain, {m.x, m.scale, m.bias}, DType::kFloat32, DType::kFloat32);
  check("BatchNormGrad", kPlain, {m.dy, m.x, m.scale, m.mean, m.variance}, DType::kFloat32,
        DType::kFloat32);
}

// 50,700 numbers whose sum is about 0.8: long sums in float32 lose more than 1e-4 of it.
TEST(GpuBatchNorm, SumsThatCancel) {
  const Shape shape{3, 2, 130, 130};
  const auto map = [&](std::uint64_t seed, double low, double high) {
    return random_tensor({DType::kFloat32, shape}, seed, low, high);
  };
  const auto channel = [](std::uint64_t seed, double low, double high) {
    return random_tensor({DType::kFloat32, {2}}, seed, low, high);
  };
  check("BatchNormGrad", kClipped,
        {map(17, -1, 1), map(34, -2, 5), channel(51, -1, 1), channel(68, -1, 1),
         channel(85, 0.5, 2), channel(102, -1, 1)},
        DType::kFloat32, DType::kFloat32, 5e-5);
}

/// The results with every feature map `offset` bytes behind an aligned address.
std::vector<std::vector<std::byte>> run_displaced(const Node& node,
                                                  const std::vector<HostTensor>& inputs,
                                                  const std::vector<TensorType>& outputs,
                                                  std::size_t offset) {
  const auto kernel = make_gpu_kernel(request_of(node, inputs, outputs));
  std::vector<Buffer> buffers;
  const auto place = [&](const TensorType& type) {
    buffers.emplace_back(type.bytes() + 64);
    return Tensor{type, buffers.back().data() + (type.shape.rank() == 4 ? offset : 0)};
  };
  std::vector<Tensor> in, out;
  for (const HostTensor& input : inputs) {
    in.push_back(place(input.type()));
    std::memcpy(in.back().data, input.view().data, input.type().bytes());
  }
  for (const TensorType& type : outputs) out.push_back(place(type));
  const Buffer workspace(kernel->workspace_bytes() + 64);
  RunContext context;
  context.workspace = workspace.data();
  kernel->run(in, out, context);
  std::vector<std::vector<std::byte>> results;
  for (const Tensor& tensor : out) {
    const auto* bytes = static_cast<const std::byte*>(tensor.data);
    results.emplace_back(bytes, bytes + tensor.type.bytes());
  }
  return results;
}

TEST(GpuBatchNorm, AlignmentChangesNoBit) {
  const Maps m({3, 40, 10, 11});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto compare = [&](std::string_view op, std::vector<HostTensor> inputs) {
      std::vector<TensorType> types, outputs;
      for (const HostTensor& input : inputs) types.push_back(input.type());
      for (const TensorType& type : infer_op(op, kRectified, types))
        outputs.push_back(laid_out(type, dtype));
      for (HostTensor& input : inputs) input = laid_out(input, dtype);
      const Node node = node_of(op, kRectified);
      EXPECT_EQ(run_displaced(node, inputs, outputs, 0), run_displaced(node, inputs, outputs, 4))
          << op << " over " << name_of(dtype);
    };
    compare("BatchNorm", {m.x, m.scale, m.bias, m.residual});
    compare("BatchNormGrad", {m.dy, m.x, m.scale, m.mean, m.variance, m.bias});
  }
}

// The gradient recomputes y, and must get the bits of the forward pass. x has few values, so that
// many are at a limit.
TEST(GpuBatchNorm, TheGradientPassesWhereYWasNotClipped) {
  const Shape shape{2, 16, 40, 33};
  HostTensor x = random_tensor({DType::kFloat32, shape}, 1, -2, 3);
  for (float& value : x.span<float>()) value = std::round(value * 16) / 16;
  const Maps m(shape);
  for (const Layout layout : {Layout::kRowMajor, Layout::kChannelsLast}) {
    // cuDNN's forward pass rounds in other places.
    if (layout == Layout::kRowMajor && device_under_test()) continue;
    const auto run = [&](std::string_view op, std::vector<HostTensor> inputs) {
      std::vector<TensorType> types, outputs;
      for (const HostTensor& input : inputs) types.push_back(input.type());
      for (TensorType type : infer_op(op, kRectified, types)) {
        if (type.shape.rank() == 4) type.layout = layout;
        outputs.push_back(type);
      }
      for (HostTensor& input : inputs)
        if (input.shape().rank() == 4) input = to_layout(input, layout);
      return run_made(make_gpu_kernel, node_of(op, kRectified), inputs, outputs, {});
    };
    // With this bias the most frequent value of a channel is near the limit.
    HostTensor bias = m.bias;
    const auto plain = run("BatchNorm", {x, m.scale, bias});
    for (std::size_t c = 0; c < 16; ++c) {
      const float inverse = 1 / std::sqrt(plain[2].span<float>()[c] + 1e-5F);
      bias.span<float>()[c] =
          -(0.25F - plain[1].span<float>()[c]) * (inverse * m.scale.span<float>()[c]);
    }
    const auto forward = run("BatchNorm", {x, m.scale, bias});
    HostTensor dy(x.type());
    for (float& value : dy.span<float>()) value = 1;
    const auto backward =
        run("BatchNormInferenceGrad", {dy, x, m.scale, forward[1], forward[2], bias});
    const auto y = forward[0].span<float>(), dx = backward[0].span<float>();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < y.size(); ++i) wrong += (y[i] > 0) != (dx[i] != 0);
    EXPECT_EQ(wrong, 0U);
  }
}

TEST(GpuBatchNorm, VarianceSurvivesALargeMean) {
  HostTensor x(TensorType{DType::kFloat32, {2, 8, 40, 50}});
  const auto values = x.span<float>();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 10001.0F : 9999.0F;
  for (std::size_t c = 0; c < 8; ++c) values[c * 2000] = 0;  // and the first number is far away
  const HostTensor ones = floats({8}, std::vector<float>(8, 1));
  check("BatchNorm", kPlain, {x, ones, ones}, DType::kFloat32, DType::kFloat32);
  for (std::size_t c = 0; c < 8; ++c) values[c * 2000] = 10001;
  check("BatchNorm", kPlain, {x, ones, ones}, DType::kFloat32, DType::kFloat32);
}

TEST(GpuBatchNorm, InfinitiesAndNaNStayInTheirChannel) {
  for (const Shape& shape : {Shape{2, 8, 20, 30}, Shape{1, 4, 15, 20}}) {
    HostTensor x = random_tensor({DType::kFloat32, shape}, 1);
    const auto count = static_cast<std::size_t>(shape[1]);
    const auto values = x.span<float>();
    const auto positions = static_cast<std::size_t>(shape.count(2, 4));
    values[0] = INFINITY;                  // the first number of channel 0
    values[2 * positions - 1] = INFINITY;  // the last one of channel 1 in an image
    values[2 * positions + 7] = std::nanf("");
    const HostTensor ones = floats({shape[1]}, std::vector<float>(count, 1));
    const HostTensor last = laid_out(x, DType::kFloat32);
    const auto out = run_made(make_gpu_kernel, node_of("BatchNorm", kPlain), {last, ones, ones},
                              {last.type(), ones.type(), ones.type()}, {});
    ASSERT_EQ(out.size(), 3U);
    const auto mean = out[1].span<float>(), variance = out[2].span<float>();
    for (std::size_t c = 0; c < count; ++c) {
      EXPECT_EQ(std::isfinite(mean[c]), c > 2);
      EXPECT_EQ(std::isnan(variance[c]), c <= 2);
    }
    if (count > 4) continue;  // in a rehearsal these are the CPU's kernels
    EXPECT_EQ(mean[0], INFINITY);
    EXPECT_EQ(mean[1], INFINITY);
    EXPECT_TRUE(std::isnan(mean[2]));
  }
}

TEST(GpuBatchNorm, ResultsNobodyReads) {
  const Maps m({2, 16, 9, 10});
  const DType dtype = DType::kBFloat16;
  const HostTensor dy = laid_out(m.dy, dtype), x = laid_out(m.x, dtype);
  const TensorType map = x.type(), channels = m.scale.type();
  for (const char* op : {"BatchNormGrad", "BatchNormInferenceGrad"}) {
    const std::vector<HostTensor> inputs = {dy, x, m.scale, m.mean, m.variance, m.bias};
    const Node node = node_of(op, kRectified);
    const auto all = run_made(make_gpu_kernel, node, inputs, {map, channels, channels}, {});
    const auto only_x = run_made(make_gpu_kernel, node, inputs, {map, {}, {}}, {});
    const auto no_x = run_made(make_gpu_kernel, node, inputs, {{}, channels, channels}, {});
    ASSERT_EQ(all.size(), 3U);
    expect_same_bits(only_x[0], all[0], op);
    expect_same_bits(no_x[1], all[1], op);
    expect_same_bits(no_x[2], all[2], op);
  }
}

}  // namespace
}  // namespace pipetrain::test
