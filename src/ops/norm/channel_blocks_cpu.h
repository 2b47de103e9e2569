// Normalization of feature maps, row-major and channel-blocked ones alike, in blocks of channels
// that lie next to each other: sums per channel, and what is computed with them. Include it from
// *_cpu.cpp files only.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "ops/norm/batch_norm_behind_cpu.h"

namespace pipetrain::norm {

/// Independent sums kept in registers: enough to hide the latency of an addition, and a multiple of
/// every block.
constexpr int kWidth = 32;
using Pattern = std::array<float, kWidth>;

/// Channels [block * lanes, (block + 1) * lanes) of image n are the `run` floats at (n * blocks +
/// block) * run: element i of them belongs to channel i % lanes of the block.
struct BlockedShape {
  std::int64_t images;
  std::int64_t blocks;
  std::int64_t run;
  double population;  // of a channel, for statistics
};

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
  /// Adds the pair of floats `term(i, w)` for elements i in [0, run), where w is i modulo the width
  /// of the inner loop.
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

/// Of each channel of a block, in one pass: sums of x - shift and its square, where the shift is
/// the mean of the channel's first elements, which avoids cancellation.
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
      normalize_as<kLanes, false, false>({1, 1, count, 0}, clip, x + at, mean, factor, bias,
                                         nullptr, operand.data());
      activation.loop(activation.function, operand.data(), y + at, count);
    }
  }
}

/// The numbers of y = (x - mean) * factor + bias in a block of channels.
template <int kLanes>
struct BlockNumbers {
  const float *mean, *factor, *bias;
  Pattern means, factors, biases;

  /// bias: null where nothing is behind the normalization, whose gradient does not depend on it.
  BlockNumbers(const float* mean, const float* factor, const float* bias)
      : mean(mean),
        factor(factor),
        bias(bias),
        means(repeat<kLanes>(mean)),
        factors(repeat<kLanes>(factor)),
        biases(bias ? repeat<kLanes>(bias) : Pattern{}) {}
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
        normalize_as<kLanes, false, false>({1, 1, count, 0}, clip, x + at, numbers.mean,
                                           numbers.factor, numbers.bias, nullptr, operand.data());
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

/// dx = `finish(passed, x - mean, place)` for all elements of a block of channels, where `passed`
/// is what passes of dy; dx has it where gradient_sums() stored it there.
template <int kLanes, Behind kBehind, class Finish>
void store_gradient(const BlockedShape& shape, const Clip& clip,
                    const BlockNumbers<kLanes>& numbers, const float* dy, const float* x, float* dx,
                    Finish finish) {
  // Locals, so that no store to dx can change them.
  const Pattern means = numbers.means, factors = numbers.factors, biases = numbers.biases;
  // From the last image to the first: the cache still has what the sums have read last.
  for (std::int64_t n = shape.images; n-- > 0;) {
    const std::int64_t at = n * shape.blocks * shape.run;
    const float* __restrict gradient = dy + at;
    const float* __restrict from = x + at;
    float* __restrict to = dx + at;
    for_each_in_run(shape.run, [&](std::int64_t i, int w) {
      const auto place = static_cast<std::size_t>(w);
      const float centred = from[i] - means[place];
      float passed;
      if constexpr (kBehind == Behind::kActivation) {
        passed = to[i];
      } else {
        passed = clip.gradient<kBehind == Behind::kLimits>(
            gradient[i], centred * factors[place] + biases[place]);
      }
      to[i] = finish(passed, centred, place);
    });
  }
}

}  // namespace pipetrain::norm
