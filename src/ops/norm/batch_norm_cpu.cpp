// Batch normalization on the CPU, for row-major and channel-blocked tensors alike. One thread
// processes all elements of a channel, so the result does not depend on the number of threads.
// Statistics take one pass: sums of x - shift and its square, where the shift is the mean of the
// channel's first elements, which avoids cancellation; floats are summed in short runs and the runs
// in double.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "ops/kernel/element_types.h"
#include "ops/norm/batch_norm.h"
#include "ops/norm/batch_norm_behind_cpu.h"
#include "ops/norm/batch_norm_bfloat16_cpu.h"

namespace pipetrain {
namespace {

/// Independent sums kept in registers: enough to hide the latency of an addition, and a multiple of
/// every block.
constexpr int kWidth = 32;
using Pattern = std::array<float, kWidth>;

/// Channels [block * lanes, (block + 1) * lanes) of image n are the `run` floats at (n * blocks +
/// block) * run, channel by channel within each group of `lanes`.
struct BlockedShape {
  std::int64_t images;
  std::int64_t blocks;
  std::int64_t run;
  double population;
  bool parallel;
};

BlockedShape blocked_shape(const Shape& x, std::int64_t lanes) {
  const BatchNormShape shape(x);
  return {shape.images, shape.channels / lanes, shape.positions * lanes, shape.population(),
          x.count() >= 1 << 15};
}

/// Runs `body(block)` for every block of channels.
template <class Body>
void for_each_block(const BlockedShape& shape, Body body) {
#pragma omp parallel for schedule(static) if (shape.parallel)
  for (std::int64_t block = 0; block < shape.blocks; ++block) body(block);
}

/// Per-channel values repeated over the width of the inner loops.
template <int kLanes>
Pattern repeat(const float* channels) {
  Pattern out;
  for (int i = 0; i < kWidth; ++i) out[static_cast<std::size_t>(i)] = channels[i % kLanes];
  return out;
}

/// Two sums per channel, collected in float over short runs and folded into double.
template <int kLanes>
class Sums {
 public:
  /// Adds the pair of floats `term(i, w)` for elements i in [0, run), where w is the lane of
  /// element i.
  template <class Term>
  void add(std::int64_t run, Term term) {
    constexpr std::int64_t kLongest = 128;  // additions into one float before a fold
    for (std::int64_t begin = 0; begin < run;) {
      const std::int64_t steps = std::min((run - begin) / kWidth, kLongest - steps_);
      // Local arrays stay in registers; members would be stored to memory.
      Pattern first = first_;
      Pattern second = second_;
      for (std::int64_t step = 0; step < steps; ++step, begin += kWidth) {
        for (int w = 0; w < kWidth; ++w) {
          const auto [a, b] = term(begin + w, w);
          first[static_cast<std::size_t>(w)] += a;
          second[static_cast<std::size_t>(w)] += b;
        }
      }
      first_ = first;
      second_ = second;
      steps_ += steps;
      if (run - begin < kWidth) {
        for (int w = 0; begin < run; ++w, ++begin) {
          const auto [a, b] = term(begin, w);
          first_[static_cast<std::size_t>(w)] += a;
          second_[static_cast<std::size_t>(w)] += b;
        }
        ++steps_;
      }
      if (steps_ >= kLongest) fold();
    }
  }

  void fold() {
    for (int w = 0; w < kWidth; ++w) {
      const auto i = static_cast<std::size_t>(w);
      total_first_[static_cast<std::size_t>(w % kLanes)] += static_cast<double>(first_[i]);
      total_second_[static_cast<std::size_t>(w % kLanes)] += static_cast<double>(second_[i]);
      first_[i] = second_[i] = 0;
    }
    steps_ = 0;
  }
  double first(int lane) const { return total_first_[static_cast<std::size_t>(lane)]; }
  double second(int lane) const { return total_second_[static_cast<std::size_t>(lane)]; }

 private:
  Pattern first_{};
  Pattern second_{};
  std::int64_t steps_ = 0;
  std::array<double, kLanes> total_first_{};
  std::array<double, kLanes> total_second_{};
};

/// Calls `store(i, w)` for all elements of a run.
template <class Store>
void for_each_in_run(std::int64_t run, Store store) {
  std::int64_t begin = 0;
  for (; begin + kWidth <= run; begin += kWidth) {
    for (int w = 0; w < kWidth; ++w) store(begin + w, w);
  }
  for (int w = 0; begin < run; ++w, ++begin) store(begin, w);
}

struct Statistics {
  double mean;
  double variance;
};

template <int kLanes>
std::array<Statistics, kLanes> statistics(const BlockedShape& shape, const float* x) {
  std::array<float, kLanes> shift{};
  const std::int64_t first = std::min<std::int64_t>(shape.run, 64 * kLanes);
  for (std::int64_t i = 0; i < first; ++i) shift[static_cast<std::size_t>(i % kLanes)] += x[i];
  for (float& value : shift) value /= static_cast<float>(first / kLanes);
  const Pattern shifts = repeat<kLanes>(shift.data());

  Sums<kLanes> sums;
  for (std::int64_t n = 0; n < shape.images; ++n) {
    const float* __restrict from = x + n * shape.blocks * shape.run;
    sums.add(shape.run, [&](std::int64_t i, int w) {
      const float delta = from[i] - shifts[static_cast<std::size_t>(w)];
      return std::pair(delta, delta * delta);
    });
  }
  sums.fold();
  std::array<Statistics, kLanes> out;
  for (int lane = 0; lane < kLanes; ++lane) {
    const double delta = sums.first(lane) / shape.population;
    const double variance = sums.second(lane) / shape.population - delta * delta;
    out[static_cast<std::size_t>(lane)] = {
        static_cast<double>(shift[static_cast<std::size_t>(lane)]) + delta,
        std::max(variance, 0.0)};
  }
  return out;
}

/// y = (x - mean) * factor + bias, plus a residual, clipped, over one block of channels.
template <int kLanes, bool kClipped, bool kAdds>
void normalize_as(const BlockedShape& shape, Clip clip, const float* x, const float* mean,
                  const float* factor, const float* bias, const float* residual, float* y) {
  const Pattern means = repeat<kLanes>(mean);
  const Pattern factors = repeat<kLanes>(factor);
  const Pattern biases = repeat<kLanes>(bias);
  for (std::int64_t n = shape.images; n-- > 0;) {
    const float* __restrict from = x + n * shape.blocks * shape.run;
    const float* __restrict other = kAdds ? residual + n * shape.blocks * shape.run : nullptr;
    float* __restrict to = y + n * shape.blocks * shape.run;
    for_each_in_run(shape.run, [&](std::int64_t i, int w) {
      const auto lane = static_cast<std::size_t>(w);
      float value = (from[i] - means[lane]) * factors[lane] + biases[lane];
      if constexpr (kAdds) value += other[i];
      to[i] = clip.output<kClipped>(value);
    });
  }
}

template <int kLanes>
void normalize(const BlockedShape& shape, Clip clip, const float* x, const float* mean,
               const float* factor, const float* bias, const float* residual, float* y) {
  const auto run =
      clip.any
          ? (residual ? normalize_as<kLanes, true, true> : normalize_as<kLanes, true, false>)
          : (residual ? normalize_as<kLanes, false, true> : normalize_as<kLanes, false, false>);
  run(shape, clip, x, mean, factor, bias, residual, y);
}

/// y = activation((x - mean) * factor + bias) over one block of channels.
template <int kLanes>
void normalize_activated(const BlockedShape& shape, const Activation& activation, const float* x,
                         const float* mean, const float* factor, const float* bias, float* y) {
  const Clip clip{BatchNormLimits({})};
  std::array<float, Activation::kPart> operand;
  for (std::int64_t n = shape.images; n-- > 0;) {
    for (std::int64_t begin = 0; begin < shape.run; begin += Activation::kPart) {
      const std::int64_t at = n * shape.blocks * shape.run + begin;
      const std::int64_t count = std::min(Activation::kPart, shape.run - begin);
      normalize_as<kLanes, false, false>({1, 1, count, 0, false}, clip, x + at, mean, factor, bias,
                                         nullptr, operand.data());
      activation.loop(activation.function, operand.data(), y + at, count);
    }
  }
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

/// What the gradients of a block of channels are computed with.
template <int kLanes>
struct BlockNumbers {
  const float *mean, *bias;  // the bias: null where nothing is behind the normalization
  std::array<float, kLanes> factor;
  Pattern means, factors, biases;

  BlockNumbers(double epsilon, Behind behind, std::int64_t channel, std::span<const Tensor> in)
      : mean(in[3].as<float>() + channel),
        bias(behind == Behind::kNothing ? nullptr : in[5].as<float>() + channel),
        means(repeat<kLanes>(mean)),
        biases(bias ? repeat<kLanes>(bias) : Pattern{}) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto variance = static_cast<double>(in[4].as<float>()[channel + lane]);
      factor[static_cast<std::size_t>(lane)] =
          inverse_deviation(variance, epsilon) * in[2].as<float>()[channel + lane];
    }
    factors = repeat<kLanes>(factor.data());
  }
};

/// The sums of what passes of dy, and of that times x - mean. What passes through an activation is
/// stored in dx, unless that is null.
template <int kLanes, Behind kBehind>
Sums<kLanes> gradient_sums(const BlockedShape& shape, const Clip& clip,
                           const Activation& activation, const BlockNumbers<kLanes>& numbers,
                           const float* dy, const float* x, float* dx) {
  constexpr bool kClipped = kBehind == Behind::kLimits;
  constexpr bool kActivated = kBehind == Behind::kActivation;
  Sums<kLanes> sums;
  const std::int64_t longest = kActivated ? Activation::kPart : shape.run;
  std::array<float, kActivated ? Activation::kPart : 1> operand, unread;
  for (std::int64_t n = 0; n < shape.images; ++n) {
    for (std::int64_t begin = 0; begin < shape.run; begin += longest) {
      const std::int64_t at = n * shape.blocks * shape.run + begin;
      const std::int64_t count = std::min(longest, shape.run - begin);
      const float* arrived = dy + at;
      if constexpr (kActivated) {
        normalize_as<kLanes, false, false>({1, 1, count, 0, false}, clip, x + at, numbers.mean,
                                           numbers.factor.data(), numbers.bias, nullptr,
                                           operand.data());
        float* through = dx ? dx + at : unread.data();
        activation.gradient(activation.gradient_function, dy + at, operand.data(), through, count);
        arrived = through;
      }
      const float* __restrict gradient = arrived;
      const float* __restrict from = x + at;
      sums.add(count, [&](std::int64_t i, int w) {
        const auto lane = static_cast<std::size_t>(w);
        const float centred = from[i] - numbers.means[lane];
        const float passed = clip.gradient<kClipped>(
            gradient[i], centred * numbers.factors[lane] + numbers.biases[lane]);
        return std::pair(passed, passed * centred);
      });
    }
  }
  sums.fold();
  return sums;
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
  const BlockNumbers<kLanes> numbers(epsilon, kBehind, channel, in);
  const auto sums = gradient_sums<kLanes, kBehind>(shape, clip, activation, numbers, dy, x, dx);

  std::array<float, kLanes> shift;  // dbias / population
  std::array<float, kLanes>
      slope;  // dscale / (deviation * population), to be multiplied by x - mean
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto i = static_cast<std::size_t>(lane);
    const double inverse =
        1.0 / std::sqrt(static_cast<double>(in[4].as<float>()[channel + lane]) + epsilon);
    const double dscale = sums.second(lane) * inverse;
    shift[i] = static_cast<float>(sums.first(lane) / shape.population);
    slope[i] = static_cast<float>(dscale * inverse / shape.population);
    if (out.size() > 1 && out[1]) out[1].as<float>()[channel + lane] = static_cast<float>(dscale);
    if (out.size() > 2 && out[2]) {
      out[2].as<float>()[channel + lane] = static_cast<float>(sums.first(lane));
    }
  }
  if (!dx) return;

  const Pattern &means = numbers.means, &factors = numbers.factors, &biases = numbers.biases;
  const Pattern shifts = repeat<kLanes>(shift.data());
  const Pattern slopes = repeat<kLanes>(slope.data());
  // From the last image to the first: the cache still has what the sums have read last.
  for (std::int64_t n = shape.images; n-- > 0;) {
    const std::int64_t at = n * shape.blocks * shape.run;
    const float* __restrict gradient = dy + at;
    const float* __restrict from = x + at;
    float* __restrict to = dx + at;
    for_each_in_run(shape.run, [&](std::int64_t i, int w) {
      const auto lane = static_cast<std::size_t>(w);
      const float centred = from[i] - means[lane];
      float passed;
      if constexpr (kBehind == Behind::kActivation) {
        passed = to[i];
      } else {
        passed = clip.gradient<kBehind == Behind::kLimits>(gradient[i],
                                                           centred * factors[lane] + biases[lane]);
      }
      if constexpr (kBatch) {
        to[i] = factors[lane] * (passed - shifts[lane] - centred * slopes[lane]);
      } else {
        to[i] = factors[lane] * passed;
      }
    });
  }
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
