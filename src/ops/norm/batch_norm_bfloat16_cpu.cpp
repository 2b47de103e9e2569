// Both passes over a block of channels convert in registers, and the second goes through the
// samples from the last to the first, so that it finds in the cache what the first has just read.
// The sums are made as in batch_norm_cpu.cpp.
#include "ops/norm/batch_norm_bfloat16_cpu.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "graph/op.h"
#include "ops/kernel/element_types.h"
#include "ops/kernel/vector8_cpu.h"
#include "ops/norm/batch_norm.h"
#include "ops/norm/batch_norm_behind_cpu.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kStep = 2 * kLanes;  // elements of a step of the inner loops

/// Channels [block * 16, (block + 1) * 16) of image n are the `run` elements at (n * blocks +
/// block) * run.
struct Blocks {
  std::int64_t images, blocks, run;
  double population;
  bool parallel;

  explicit Blocks(const Shape& x) {
    const BatchNormShape shape(x);
    images = shape.images;
    blocks = shape.channels / kLanes;
    run = shape.positions * kLanes;
    population = shape.population();
    parallel = x.count() >= 1 << 15;
  }
  std::int64_t stride() const { return blocks * run; }
};

/// Two sums per channel, collected in float over short runs and folded into double.
struct Sums {
  static constexpr std::int64_t kLongest = 128;  // additions into one float before a fold
  alignas(64) float first[kStep] = {}, second[kStep] = {};
  std::int64_t steps = 0;
  std::array<double, kLanes> total_first{}, total_second{};

  void fold() {
    for (std::int64_t w = 0; w < kStep; ++w) {
      total_first[static_cast<std::size_t>(w % kLanes)] += static_cast<double>(first[w]);
      total_second[static_cast<std::size_t>(w % kLanes)] += static_cast<double>(second[w]);
      first[w] = second[w] = 0;
    }
    steps = 0;
  }
};

/// What the elements of a block are computed with, a number per channel.
struct Channels {
  alignas(64) float mean[kLanes], factor[kLanes], bias[kLanes];
  alignas(64) float shift[kLanes], slope[kLanes];  // of gradients
};

#ifdef __x86_64__
[[gnu::always_inline]] PIPETRAIN_BFLOAT16 inline Vector16 widened(const BFloat16* from) {
  using Bits = std::uint32_t __attribute__((vector_size(64), may_alias));
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  // GCC 12 warns of the form without a mask.
  const __m512i bits = _mm512_maskz_cvtepu16_epi32(0xffff, halves);
  return reinterpret_cast<Vector16>(reinterpret_cast<Bits>(bits) << 16);
}
[[gnu::always_inline]] PIPETRAIN_BFLOAT16 inline void store_rounded(BFloat16* to,
                                                                    const Vector16& value) {
  const __m256bh rounded = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(value));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(rounded));
}
#else
// Never called: has_avx512_bfloat16() is false.
inline Vector16 widened(const BFloat16*) { return {}; }
inline void store_rounded(BFloat16*, const Vector16&) {}
#endif

/// Prefetches the same place of the next run while this one is read or written, once per cache
/// line.
[[gnu::always_inline]] inline void prefetch(const BFloat16* next, std::int64_t i) {
  if (i % kStep == 0) __builtin_prefetch(next + i, /*write=*/0, /*locality=*/2);
}
[[gnu::always_inline]] inline void prefetch_to_write(const BFloat16* next, std::int64_t i) {
  if (i % kStep == 0) __builtin_prefetch(next + i, /*write=*/1, /*locality=*/2);
}

/// What 16 elements add to the two sums.
struct Pair {
  Vector16 first, second;
};

/// Adds the pairs of a run to the sums. `Terms` has the pair of the elements from i, and prefetches
/// those of the next run.
template <class Terms>
[[gnu::always_inline]] PIPETRAIN_BFLOAT16 inline void add_pairs(const Terms& terms,
                                                                std::int64_t run, Sums& sums) {
  Vector16 first[2] = {load16(sums.first), load16(sums.first + kLanes)};
  Vector16 second[2] = {load16(sums.second), load16(sums.second + kLanes)};
  for (std::int64_t i = 0; i < run;) {
    const std::int64_t steps = std::min((run - i) / kStep, Sums::kLongest - sums.steps);
    for (std::int64_t step = 0; step < steps; ++step, i += kStep) {
      terms.prefetch_next(i);
      for (int half = 0; half < 2; ++half) {
        const Pair pair = terms.pair(i + half * kLanes);
        first[half] += pair.first;
        second[half] += pair.second;
      }
    }
    sums.steps += steps;
    if (run - i == kLanes) {
      const Pair pair = terms.pair(i);
      first[0] += pair.first;
      second[0] += pair.second;
      i += kLanes;
      ++sums.steps;
    }
    if (sums.steps < Sums::kLongest) continue;
    for (int half = 0; half < 2; ++half) {
      store16(sums.first + half * kLanes, first[half]);
      store16(sums.second + half * kLanes, second[half]);
      first[half] = second[half] = Vector16{};
    }
    sums.fold();
  }
  for (int half = 0; half < 2; ++half) {
    store16(sums.first + half * kLanes, first[half]);
    store16(sums.second + half * kLanes, second[half]);
  }
}

/// x - shift and its square.
struct Moments16 {
  const BFloat16 *x, *next;
  Vector16 shift;

  [[gnu::always_inline]] void prefetch_next(std::int64_t i) const { prefetch(next, i); }
  [[gnu::always_inline]] PIPETRAIN_BFLOAT16 Pair pair(std::int64_t i) const {
    const Vector16 delta = widened(x + i) - shift;
    return {delta, delta * delta};
  }
};

PIPETRAIN_BFLOAT16 void add_moments(const BFloat16* x, const BFloat16* next, std::int64_t run,
                                    const float* shift, Sums& sums) {
  add_pairs(Moments16{x, next, load16(shift)}, run, sums);
}

/// y = (x - mean) * factor + bias, plus a residual, clipped.
template <bool kClipped, bool kAdds>
PIPETRAIN_BFLOAT16 void normalize(const BFloat16* x, const BFloat16* residual, std::int64_t to_next,
                                  std::int64_t run, const Channels& channels, const Clip& clip,
                                  BFloat16* y) {
  const Vector16 mean = load16(channels.mean), factor = load16(channels.factor),
                 bias = load16(channels.bias);
  const Vector16 low = fill16(clip.low), high = fill16(clip.high);
  for (std::int64_t i = 0; i < run; i += kLanes) {
    prefetch(x + to_next, i);
    prefetch_to_write(y + to_next, i);
    Vector16 value = (widened(x + i) - mean) * factor + bias;
    if constexpr (kAdds) {
      prefetch(residual + to_next, i);
      value += widened(residual + i);
    }
    if constexpr (kClipped) {
      value = value < low ? low : value;
      value = value > high ? high : value;
    }
    store_rounded(y + i, value);
  }
}

/// What passes of dy at 16 elements.
template <bool kClipped>
[[gnu::always_inline]] PIPETRAIN_BFLOAT16 inline Vector16 passed(const Vector16& dy,
                                                                 const Vector16& y,
                                                                 const Vector16& passes_from,
                                                                 const Vector16& high) {
  if constexpr (!kClipped) return dy;
  const Vector16 above = y < passes_from ? Vector16{} : dy;
  return y > high ? Vector16{} : above;
}

/// What passes of dy, and that times x - mean.
template <bool kClipped>
struct Gradients16 {
  const BFloat16 *dy, *x;
  std::int64_t to_next;
  Vector16 mean, factor, bias, passes_from, high;

  [[gnu::always_inline]] void prefetch_next(std::int64_t i) const {
    prefetch(dy + to_next, i);
    prefetch(x + to_next, i);
  }
  [[gnu::always_inline]] PIPETRAIN_BFLOAT16 Pair pair(std::int64_t i) const {
    const Vector16 centred = widened(x + i) - mean;
    const Vector16 some =
        passed<kClipped>(widened(dy + i), centred * factor + bias, passes_from, high);
    return {some, some * centred};
  }
};

template <bool kClipped>
PIPETRAIN_BFLOAT16 void add_gradients(const BFloat16* dy, const BFloat16* x, std::int64_t to_next,
                                      std::int64_t run, const Channels& channels, const Clip& clip,
                                      Sums& sums) {
  add_pairs(
      Gradients16<kClipped>{dy, x, to_next, load16(channels.mean), load16(channels.factor),
                            load16(channels.bias), fill16(clip.passes_from), fill16(clip.high)},
      run, sums);
}

/// dx = factor * (what passes of dy - shift - (x - mean) * slope); the last two of batch
/// statistics.
template <bool kBatch, bool kClipped>
PIPETRAIN_BFLOAT16 void input_gradient(const BFloat16* dy, const BFloat16* x, std::int64_t to_next,
                                       std::int64_t run, const Channels& channels, const Clip& clip,
                                       BFloat16* dx) {
  const Vector16 mean = load16(channels.mean), factor = load16(channels.factor),
                 bias = load16(channels.bias);
  const Vector16 shift = load16(channels.shift), slope = load16(channels.slope);
  const Vector16 from = fill16(clip.passes_from), high = fill16(clip.high);
  for (std::int64_t i = 0; i < run; i += kLanes) {
    prefetch(x + to_next, i);
    prefetch(dy + to_next, i);
    prefetch_to_write(dx + to_next, i);
    const Vector16 centred = widened(x + i) - mean;
    const Vector16 some = passed<kClipped>(widened(dy + i), centred * factor + bias, from, high);
    if constexpr (kBatch) {
      store_rounded(dx + i, factor * (some - shift - centred * slope));
    } else {
      store_rounded(dx + i, factor * some);
    }
  }
}

/// y = activation((x - mean) * factor + bias) over a run.
void normalize_activated(const BFloat16* x, std::int64_t run, const Channels& channels,
                         const Clip& clip, const Activation& activation, BFloat16* y) {
  std::array<BFloat16, Activation::kPart> operand;
  for (std::int64_t i = 0; i < run; i += Activation::kPart) {
    const std::int64_t count = std::min(Activation::kPart, run - i);
    normalize<false, false>(x + i, nullptr, 0, count, channels, clip, operand.data());
    activation.loop(activation.function, operand.data(), y + i, count);
  }
}

/// Stores in dx, unless null, what passes of dy through the activation, and adds that to the sums.
void add_activation_gradients(const BFloat16* dy, const BFloat16* x, std::int64_t run,
                              const Channels& channels, const Clip& clip,
                              const Activation& activation, BFloat16* dx, Sums& sums) {
  std::array<BFloat16, Activation::kPart> operand, unread;
  for (std::int64_t i = 0; i < run; i += Activation::kPart) {
    const std::int64_t count = std::min(Activation::kPart, run - i);
    normalize<false, false>(x + i, nullptr, 0, count, channels, clip, operand.data());
    BFloat16* through = dx ? dx + i : unread.data();
    activation.gradient(activation.gradient_function, dy + i, operand.data(), through, count);
    add_gradients<false>(through, x + i, 0, count, channels, clip, sums);
  }
}

/// Runs `body(block)` for every block of channels.
template <class Body>
void for_each_block(const Blocks& shape, Body body) {
#pragma omp parallel for schedule(static) if (shape.parallel)
  for (std::int64_t block = 0; block < shape.blocks; ++block) body(block);
}

float inverse_deviation(double variance, double epsilon) {
  return static_cast<float>(1.0 / std::sqrt(variance + epsilon));
}

/// The distance from image n to the one that follows, or none from the last: of the pass forwards
/// and of the pass backwards.
std::int64_t next_of(const Blocks& shape, std::int64_t n) {
  return n + 1 < shape.images ? shape.stride() : 0;
}
std::int64_t back_from(const Blocks& shape, std::int64_t n) { return n > 0 ? -shape.stride() : 0; }

/// Mean and variance of 16 channels; x is their block of the first image.
void find_moments(const Blocks& shape, const BFloat16* x, float* mean, float* variance) {
  std::array<float, kLanes> shift{};
  const std::int64_t first = std::min<std::int64_t>(shape.run, 64 * kLanes);
  for (std::int64_t i = 0; i < first; ++i)
    shift[static_cast<std::size_t>(i % kLanes)] += to_float(x[i]);
  for (float& value : shift) value /= static_cast<float>(first / kLanes);
  Sums sums;
  for (std::int64_t n = 0; n < shape.images; ++n) {
    const BFloat16* from = x + n * shape.stride();
    add_moments(from, from + next_of(shape, n), shape.run, shift.data(), sums);
  }
  sums.fold();
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const double delta = sums.total_first[lane] / shape.population;
    const double spread = sums.total_second[lane] / shape.population - delta * delta;
    mean[lane] = static_cast<float>(static_cast<double>(shift[lane]) + delta);
    variance[lane] = static_cast<float>(std::max(spread, 0.0));
  }
}

template <bool kBatch>
std::unique_ptr<Kernel> make_forward(const KernelRequest& request) {
  const Blocks shape(request.inputs[0].shape);
  const double epsilon = batch_norm_epsilon(request.node.attributes);
  const Clip clip{BatchNormLimits(request.node.attributes)};
  const Activation activation(request.node.attributes, DType::kBFloat16);
  return make_kernel([=](std::span<const Tensor> in, std::span<const Tensor> out,
                         const RunContext&) {
    for_each_block(shape, [&](std::int64_t block) {
      const std::int64_t channel = block * kLanes;
      const BFloat16* x = in[0].as<BFloat16>() + block * shape.run;
      Channels channels;
      alignas(64) float variance[kLanes];
      if constexpr (kBatch) {
        find_moments(shape, x, channels.mean, variance);
        if (auto* to = data_or_null<float>(out, 1))
          std::copy_n(channels.mean, kLanes, to + channel);
        if (auto* to = data_or_null<float>(out, 2)) std::copy_n(variance, kLanes, to + channel);
      } else {
        std::copy_n(in[3].as<float>() + channel, kLanes, channels.mean);
        std::copy_n(in[4].as<float>() + channel, kLanes, variance);
      }
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        channels.factor[lane] = inverse_deviation(static_cast<double>(variance[lane]), epsilon) *
                                in[1].as<float>()[channel + lane];
        channels.bias[lane] = in[2].as<float>()[channel + lane];
      }
      const BFloat16* residual = kBatch ? data_or_null<BFloat16>(in, 3) : nullptr;
      if (residual) residual += block * shape.run;
      BFloat16* y = out[0].as<BFloat16>() + block * shape.run;
      for (std::int64_t n = shape.images; n-- > 0;) {
        const std::int64_t at = n * shape.stride();
        if (activation.loop) {
          normalize_activated(x + at, shape.run, channels, clip, activation, y + at);
          continue;
        }
        const auto run = clip.any ? (residual ? normalize<true, true> : normalize<true, false>)
                                  : (residual ? normalize<false, true> : normalize<false, false>);
        run(x + at, residual ? residual + at : nullptr, back_from(shape, n), shape.run, channels,
            clip, y + at);
      }
    });
  });
}

/// Both gradients of one block of channels, as in batch_norm_cpu.cpp.
template <bool kBatch, Behind kBehind>
void gradient_block(const Blocks& shape, double epsilon, const Clip& clip,
                    const Activation& activation, std::int64_t block, std::span<const Tensor> in,
                    std::span<const Tensor> out) {
  constexpr bool kClipped = kBehind == Behind::kLimits;
  constexpr bool kActivated = kBehind == Behind::kActivation;
  const std::int64_t channel = block * kLanes;
  const BFloat16* dy = in[0].as<BFloat16>() + block * shape.run;
  const BFloat16* x = in[1].as<BFloat16>() + block * shape.run;
  const float* variance = in[4].as<float>() + channel;
  Channels channels{};
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    channels.mean[lane] = in[3].as<float>()[channel + lane];
    channels.factor[lane] = inverse_deviation(static_cast<double>(variance[lane]), epsilon) *
                            in[2].as<float>()[channel + lane];
    if (kBehind != Behind::kNothing) channels.bias[lane] = in[5].as<float>()[channel + lane];
  }
  BFloat16* dx = out[0] ? out[0].as<BFloat16>() + block * shape.run : nullptr;
  Sums sums;
  for (std::int64_t n = 0; n < shape.images; ++n) {
    const std::int64_t at = n * shape.stride();
    if constexpr (kActivated) {
      add_activation_gradients(dy + at, x + at, shape.run, channels, clip, activation,
                               dx ? dx + at : nullptr, sums);
    } else {
      add_gradients<kClipped>(dy + at, x + at, next_of(shape, n), shape.run, channels, clip, sums);
    }
  }
  sums.fold();
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    const auto i = static_cast<std::size_t>(lane);
    const double inverse = 1.0 / std::sqrt(static_cast<double>(variance[lane]) + epsilon);
    const double dscale = sums.total_second[i] * inverse;
    channels.shift[lane] = static_cast<float>(sums.total_first[i] / shape.population);
    channels.slope[lane] = static_cast<float>(dscale * inverse / shape.population);
    if (auto* to = data_or_null<float>(out, 1)) to[channel + lane] = static_cast<float>(dscale);
    if (auto* to = data_or_null<float>(out, 2))
      to[channel + lane] = static_cast<float>(sums.total_first[i]);
  }
  if (!dx) return;
  if constexpr (kActivated) dy = dx;
  for (std::int64_t n = shape.images; n-- > 0;) {
    const std::int64_t at = n * shape.stride();
    input_gradient<kBatch, kClipped>(dy + at, x + at, back_from(shape, n), shape.run, channels,
                                     clip, dx + at);
  }
}

template <bool kBatch>
std::unique_ptr<Kernel> make_gradient(const KernelRequest& request) {
  const Blocks shape(request.inputs[1].shape);
  const double epsilon = batch_norm_epsilon(request.node.attributes);
  const Clip clip{BatchNormLimits(request.node.attributes)};
  const Activation activation(request.node.attributes, DType::kBFloat16);
  const auto run = activation.loop ? gradient_block<kBatch, Behind::kActivation>
                   : clip.any      ? gradient_block<kBatch, Behind::kLimits>
                                   : gradient_block<kBatch, Behind::kNothing>;
  return make_kernel([=](std::span<const Tensor> in, std::span<const Tensor> out,
                         const RunContext&) {
    for_each_block(
        shape, [&](std::int64_t block) { run(shape, epsilon, clip, activation, block, in, out); });
  });
}

}  // namespace

bool batch_norm_takes_bfloat16(const KernelRequest& request) {
  if (!has_avx512_bfloat16() || request.inputs[0].layout != Layout::kBlocked16) return false;
  // Feature maps are bfloat16 in blocks; what there is per channel is float.
  const auto fits = [](const TensorType& type) {
    if (type.dtype == DType::kUndefined) return true;
    if (type.shape.rank() == 1) return type.dtype == DType::kFloat32;
    return type.dtype == DType::kBFloat16 && type.layout == Layout::kBlocked16;
  };
  return std::all_of(request.inputs.begin(), request.inputs.end(), fits) &&
         std::all_of(request.outputs.begin(), request.outputs.end(), fits);
}

std::unique_ptr<Kernel> make_batch_norm_bfloat16(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  if (op == "BatchNorm") return make_forward<true>(request);
  if (op == "BatchNormInference") return make_forward<false>(request);
  if (op == "BatchNormGrad") return make_gradient<true>(request);
  return make_gradient<false>(request);
}

}  // namespace pipetrain
