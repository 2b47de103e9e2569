// Batch normalization on the CPU, for row-major and channel-blocked tensors alike. One thread
// processes all elements of a channel, so the result does not depend on the number of threads.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "ops/kernel/element_types.h"
#include "ops/norm/batch_norm.h"
#include "ops/norm/batch_norm_bfloat16_cpu.h"
#include "ops/norm/channel_blocks_cpu.h"

namespace pipetrain {
namespace {

using namespace norm;

BlockedShape blocked_shape(const Shape& x, std::int64_t lanes) {
  const BatchNormShape shape(x);
  return {shape.images, shape.channels / lanes, shape.positions * lanes, shape.population()};
}

/// Runs `body(block)` for every block of channels.
template <class Body>
void for_each_block(const BlockedShape& shape, Body body) {
  const std::int64_t elements = shape.images * shape.blocks * shape.run;
#pragma omp parallel for schedule(static) if (elements >= 1 << 15)
  for (std::int64_t block = 0; block < shape.blocks; ++block) body(block);
}

float inverse_deviation(double variance, double epsilon) {
  return static_cast<float>(1.0 / std::sqrt(variance + epsilon));
}

template <int kLanes>
std::unique_ptr<Kernel> make_training(const KernelRequest& request) {
  const BlockedShape shape = blocked_shape(request.inputs[0].shape, kLanes);
  const double epsilon = batch_norm_epsilon(request.node.attributes);
  const Clip clip{BatchNormLimits(request.node.attributes)};
  const Activation activation(request.node.attributes, DType::kFloat32);
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        for_each_block(shape, [&](std::int64_t block) {
          const std::int64_t channel = block * kLanes;
          const float* x = in[0].as<float>() + block * shape.run;
          const std::array<Statistics, kLanes> found = statistics<kLanes>(shape, x);
          std::array<float, kLanes> mean;
          std::array<float, kLanes> factor;
          for (int lane = 0; lane < kLanes; ++lane) {
            const auto i = static_cast<std::size_t>(lane);
            mean[i] = static_cast<float>(found[i].mean);
            // Uses the variance as the gradient will read it, so that both clip the same elements.
            const auto variance = static_cast<double>(static_cast<float>(found[i].variance));
            factor[i] = inverse_deviation(variance, epsilon) * in[1].as<float>()[channel + lane];
            if (out.size() > 1 && out[1]) out[1].as<float>()[channel + lane] = mean[i];
            if (out.size() > 2 && out[2]) {
              out[2].as<float>()[channel + lane] = static_cast<float>(found[i].variance);
            }
          }
          if (activation.loop) {
            return normalize_activated<kLanes>(shape, activation, x, mean.data(), factor.data(),
                                               in[2].as<float>() + channel,
                                               out[0].as<float>() + block * shape.run);
          }
          const float* residual = data_or_null<float>(in, 3);
          normalize<kLanes>(shape, clip, x, mean.data(), factor.data(), in[2].as<float>() + channel,
                            residual ? residual + block * shape.run : nullptr,
                            out[0].as<float>() + block * shape.run);
        });
      });
}

template <int kLanes>
std::unique_ptr<Kernel> make_inference(const KernelRequest& request) {
  const BlockedShape shape = blocked_shape(request.inputs[0].shape, kLanes);
  const double epsilon = batch_norm_epsilon(request.node.attributes);
  const Clip clip{BatchNormLimits(request.node.attributes)};
  return make_kernel([shape, epsilon, clip](std::span<const Tensor> in, std::span<const Tensor> out,
                                            const RunContext&) {
    for_each_block(shape, [&](std::int64_t block) {
      const std::int64_t channel = block * kLanes;
      std::array<float, kLanes> factor;
      for (int lane = 0; lane < kLanes; ++lane) {
        factor[static_cast<std::size_t>(lane)] =
            inverse_deviation(in[4].as<float>()[channel + lane], epsilon) *
            in[1].as<float>()[channel + lane];
      }
      normalize<kLanes>(shape, clip, in[0].as<float>() + block * shape.run,
                        in[3].as<float>() + channel, factor.data(), in[2].as<float>() + channel,
                        /*residual=*/nullptr, out[0].as<float>() + block * shape.run);
    });
  });
}

/// Both gradients of one block of channels:
///   dbias = sum dy, dscale = sum dy x^, dx = scale / deviation * (dy - [dbias + x^ dscale] /
///   population)
/// with x^ = (x - mean) / deviation; the bracket applies only to batch statistics.
template <int kLanes, bool kBatch, Behind kBehind>
void gradient_block(const BlockedShape& shape, double epsilon, const Clip& clip,
                    const Activation& activation, std::int64_t block, std::span<const Tensor> in,
                    std::span<const Tensor> out) {
  const std::int64_t channel = block * kLanes;
  const float* dy = in[0].as<float>() + block * shape.run;
  const float* x = in[1].as<float>() + block * shape.run;
  float* dx = out[0] ? out[0].as<float>() + block * shape.run : nullptr;
  const float* variances = in[4].as<float>() + channel;
  std::array<float, kLanes> factor;
  for (int lane = 0; lane < kLanes; ++lane)
    factor[static_cast<std::size_t>(lane)] =
        inverse_deviation(variances[lane], epsilon) * in[2].as<float>()[channel + lane];
  const BlockNumbers<kLanes> numbers(
      in[3].as<float>() + channel, factor.data(),
      kBehind == Behind::kNothing ? nullptr : in[5].as<float>() + channel);
  const auto sums = gradient_sums<kLanes, kBehind>(shape, clip, activation, numbers, dy, x, dx);

  std::array<float, kLanes> shift;  // dbias / population
  std::array<float, kLanes>
      slope;  // dscale / (deviation * population), to be multiplied by x - mean
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto i = static_cast<std::size_t>(lane);
    const double inverse = 1.0 / std::sqrt(static_cast<double>(variances[lane]) + epsilon);
    const double dscale = sums.second(lane) * inverse;
    shift[i] = static_cast<float>(sums.first(lane) / shape.population);
    slope[i] = static_cast<float>(dscale * inverse / shape.population);
    if (out.size() > 1 && out[1]) out[1].as<float>()[channel + lane] = static_cast<float>(dscale);
    if (out.size() > 2 && out[2]) {
      out[2].as<float>()[channel + lane] = static_cast<float>(sums.first(lane));
    }
  }
  if (!dx) return;

  const Pattern factors = numbers.factors;
  const Pattern shifts = repeat<kLanes>(shift.data()), slopes = repeat<kLanes>(slope.data());
  store_gradient<kLanes, kBehind>(
      shape, clip, numbers, dy, x, dx, [&](float passed, float centred, std::size_t lane) {
        if constexpr (kBatch) {
          return factors[lane] * (passed - shifts[lane] - centred * slopes[lane]);
        } else {
          return factors[lane] * passed;
        }
      });
}

template <int kLanes, bool kBatch>
std::unique_ptr<Kernel> make_gradient(const KernelRequest& request) {
  const BlockedShape shape = blocked_shape(request.inputs[1].shape, kLanes);
  const double epsilon = batch_norm_epsilon(request.node.attributes);
  const Clip clip{BatchNormLimits(request.node.attributes)};
  const Activation activation(request.node.attributes, DType::kFloat32);
  const auto run = activation.loop ? gradient_block<kLanes, kBatch, Behind::kActivation>
                   : clip.any      ? gradient_block<kLanes, kBatch, Behind::kLimits>
                                   : gradient_block<kLanes, kBatch, Behind::kNothing>;
  return make_kernel([=](std::span<const Tensor> in, std::span<const Tensor> out,
                         const RunContext&) {
    for_each_block(
        shape, [&](std::int64_t block) { run(shape, epsilon, clip, activation, block, in, out); });
  });
}

/// The factory for the layout, which all tensors (N, C, …) of the node must share. Row-major
/// tensors without positions are treated as blocked ones.
template <MakeKernel make_1, MakeKernel make_8, MakeKernel make_16>
std::unique_ptr<Kernel> by_layout(const KernelRequest& request) {
  const TensorType& x = request.inputs[0];
  if (batch_norm_takes_bfloat16(request)) return make_batch_norm_bfloat16(request);
  if (x.dtype != DType::kFloat32) return nullptr;
  for (const auto* types : {&request.inputs, &request.outputs}) {
    for (const TensorType& type : *types) {
      PT_CHECK(type.shape.rank() < 2 || type.layout == x.layout, kInternal,
               "batch normalization needs all its tensors in one layout");
    }
  }
  if (x.layout == Layout::kBlocked8) return make_8(request);
  if (x.layout == Layout::kBlocked16) return make_16(request);
  const bool flat = x.shape.count(2, x.shape.rank()) == 1;
  if (flat && x.shape[1] % 16 == 0) return make_16(request);
  if (flat && x.shape[1] % 8 == 0) return make_8(request);
  return make_1(request);
}

constexpr KernelEntry kKernels[] = {
    {"BatchNorm", by_layout<make_training<1>, make_training<8>, make_training<16>>},
    {"BatchNormGrad",
     by_layout<make_gradient<1, true>, make_gradient<8, true>, make_gradient<16, true>>},
    {"BatchNormInference", by_layout<make_inference<1>, make_inference<8>, make_inference<16>>},
    {"BatchNormInferenceGrad",
     by_layout<make_gradient<1, false>, make_gradient<8, false>, make_gradient<16, false>>},
};

}  // namespace

std::span<const KernelEntry> batch_norm_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
