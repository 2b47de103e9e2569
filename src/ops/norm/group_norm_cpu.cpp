// Group normalization on the CPU, for row-major and channel-blocked tensors alike: sums of every
// channel, which are combined to those of groups, and then a second pass over what the caches still
// hold. A group may consist of parts of several blocks of channels. The bits do not depend on the
// number of threads.
#include <omp.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "base/error.h"
#include "ops/kernel/channel_block.h"
#include "ops/kernel/element_types.h"
#include "ops/norm/channel_blocks_cpu.h"
#include "ops/norm/group_norm.h"

namespace pipetrain {
namespace {

using namespace norm;

constexpr std::int64_t kParallelElements = 1 << 15;

/// The work on (N, C, …): sums of blocks of `lanes` channels, what is combined of them for every
/// group, and what is computed with that for every block.
struct Work {
  std::int64_t tasks;   // runs of blocks that no group crosses
  std::int64_t blocks;  // of a run
  std::int64_t groups;  // of a run
  bool parallel;

  Work(const GroupNormShape& shape, std::int64_t lanes) {
    const std::int64_t run = std::lcm(shape.width(), lanes);
    tasks = shape.samples * (shape.channels / run);
    blocks = run / lanes;
    groups = run / shape.width();
    parallel = shape.samples * shape.channels * shape.positions >= kParallelElements;
  }

  /// Calls `sum(block)`, `combine(group)` and `finish(block)` for all blocks and groups of all
  /// samples, numbered through.
  template <class Sum, class Combine, class Finish>
  void run(Sum sum, Combine combine, Finish finish) const {
    constexpr std::int64_t kTasksPerThread = 4;  // fewer are shared out unevenly
    if (blocks == 1 || tasks >= kTasksPerThread * omp_get_max_threads()) {
#pragma omp parallel for schedule(static) if (parallel)
      for (std::int64_t task = 0; task < tasks; ++task) {
        for (std::int64_t b = 0; b < blocks; ++b) sum(task * blocks + b);
        for (std::int64_t g = 0; g < groups; ++g) combine(task * groups + g);
        // The last block first: the cache still has it.
        for (std::int64_t b = blocks; b-- > 0;) finish(task * blocks + b);
      }
      return;
    }
#pragma omp parallel for schedule(static) if (parallel)
    for (std::int64_t block = 0; block < tasks * blocks; ++block) sum(block);
    for (std::int64_t group = 0; group < tasks * groups; ++group) combine(group);
#pragma omp parallel for schedule(static) if (parallel)
    for (std::int64_t block = 0; block < tasks * blocks; ++block) finish(block);
  }
};

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

/// The numbers of the channels of a block, each by `number(row)`, where row = sample * C + channel.
template <int kLanes, class Number>
std::array<float, kLanes> by_lane(std::int64_t block, Number number) {
  std::array<float, kLanes> out;
  for (int lane = 0; lane < kLanes; ++lane) out[at(lane)] = number(block * kLanes + lane);
  return out;
}

/// What is behind the normalization.
struct Follower {
  Clip clip;
  Activation activation;
  Behind behind;

  explicit Follower(const Attributes& attributes)
      : clip{BatchNormLimits(attributes)},
        activation(attributes, DType::kFloat32),
        behind(activation.loop ? Behind::kActivation
               : clip.any      ? Behind::kLimits
                               : Behind::kNothing) {}
};

/// A block of channels of one sample as channel_blocks_cpu.h takes it.
BlockedShape one_block(const GroupNormShape& shape, std::int64_t lanes) {
  return {1, 1, shape.positions * lanes, static_cast<double>(shape.positions), false};
}

template <int kLanes>
std::unique_ptr<Kernel> make_group_norm(const KernelRequest& request) {
  const GroupNormShape shape(request.node.attributes, request.inputs[0].shape);
  const Follower follower(request.node.attributes);
  const BlockedShape part = one_block(shape, kLanes);
  return make_kernel([=](std::span<const Tensor> in, std::span<const Tensor> out,
                         const RunContext&) {
    const auto *x = in[0].as<float>(), *scale = in[1].as<float>(), *bias = in[2].as<float>();
    auto* y = out[0].as<float>();
    float *means = data_or_null<float>(out, 1), *inverses = data_or_null<float>(out, 2);
    std::vector<Statistics> rows(at(shape.samples * shape.channels));
    std::vector<float> mean(at(shape.samples * shape.groups)), inverse(mean.size());
    const auto sum = [&](std::int64_t block) {
      std::ranges::copy(statistics<kLanes>(part, x + block * part.run),
                        rows.begin() + block * kLanes);
    };
    const auto combine = [&](std::int64_t group) {
      const std::span<const Statistics> channels(rows.data() + group * shape.width(),
                                                 at(shape.width()));
      double middle = 0, variance = 0;
      for (const Statistics& channel : channels) middle += channel.mean;
      middle /= static_cast<double>(shape.width());
      for (const Statistics& channel : channels)
        variance += channel.variance + (channel.mean - middle) * (channel.mean - middle);
      variance /= static_cast<double>(shape.width());
      mean[at(group)] = static_cast<float>(middle);
      inverse[at(group)] = static_cast<float>(1 / std::sqrt(variance + shape.epsilon));
      if (means) means[group] = mean[at(group)];
      if (inverses) inverses[group] = inverse[at(group)];
    };
    const auto finish = [&](std::int64_t block) {
      if (!y) return;
      const auto center =
          by_lane<kLanes>(block, [&](std::int64_t row) { return mean[at(row / shape.width())]; });
      const auto factor = by_lane<kLanes>(block, [&](std::int64_t row) {
        return inverse[at(row / shape.width())] * scale[row % shape.channels];
      });
      const float* from = x + block * part.run;
      const float* shift = bias + block * kLanes % shape.channels;
      float* to = y + block * part.run;
      if (follower.activation.loop)
        return normalize_activated<kLanes>(part, follower.activation, from, center.data(),
                                           factor.data(), shift, to);
      normalize<kLanes>(part, follower.clip, from, center.data(), factor.data(), shift,
                        /*residual=*/nullptr, to);
    };
    Work(shape, kLanes).run(sum, combine, finish);
  });
}

/// Sums of a channel or a group, and the numbers of dx = factor * passed - offset - (x - mean) *
/// slope, where `passed` is what passes of dy behind the normalization.
struct GradientSums {
  double passed, weighted;  // by x^ = (x - mean) * inverse
};
struct GradientNumbers {
  float offset, slope;
};

template <int kLanes, Behind kBehind>
void gradient(const GroupNormShape& shape, const Follower& follower, std::span<const Tensor> in,
              std::span<const Tensor> out) {
  const BlockedShape part = one_block(shape, kLanes);
  const auto *dy = in[0].as<float>(), *x = in[1].as<float>(), *scale = in[2].as<float>();
  const auto *means = in[3].as<float>(), *inverses = in[4].as<float>();
  const float* bias = kBehind == Behind::kNothing ? nullptr : in[5].as<float>();
  auto* dx = out[0].as<float>();
  float *dscale = data_or_null<float>(out, 1), *dbias = data_or_null<float>(out, 2);
  std::vector<GradientSums> rows(at(shape.samples * shape.channels));
  std::vector<GradientNumbers> numbers(at(shape.samples * shape.groups));
  const auto with_block = [&](std::int64_t block, auto body) {
    const auto mean =
        by_lane<kLanes>(block, [&](std::int64_t row) { return means[row / shape.width()]; });
    const auto factor = by_lane<kLanes>(block, [&](std::int64_t row) {
      return inverses[row / shape.width()] * scale[row % shape.channels];
    });
    const float* shift = bias ? bias + block * kLanes % shape.channels : nullptr;
    body(BlockNumbers<kLanes>(mean.data(), factor.data(), shift), block * part.run);
  };
  const auto sum = [&](std::int64_t block) {
    with_block(block, [&](const BlockNumbers<kLanes>& values, std::int64_t begin) {
      const auto sums =
          gradient_sums<kLanes, kBehind>(part, follower.clip, follower.activation, values,
                                         dy + begin, x + begin, dx ? dx + begin : nullptr);
      for (int lane = 0; lane < kLanes; ++lane) {
        const std::int64_t row = block * kLanes + lane;
        const auto inverse = static_cast<double>(inverses[row / shape.width()]);
        rows[at(row)] = {sums.first(lane), sums.second(lane) * inverse};
        if (dscale) dscale[row] = static_cast<float>(rows[at(row)].weighted);
        if (dbias) dbias[row] = static_cast<float>(rows[at(row)].passed);
      }
    });
  };
  const auto combine = [&](std::int64_t group) {
    GradientSums total{};
    for (std::int64_t row = group * shape.width(); row < (group + 1) * shape.width(); ++row) {
      const auto by = static_cast<double>(scale[row % shape.channels]);
      total.passed += by * rows[at(row)].passed;
      total.weighted += by * rows[at(row)].weighted;
    }
    const double share = static_cast<double>(inverses[group]) / shape.population();
    numbers[at(group)] = {
        static_cast<float>(share * total.passed),
        static_cast<float>(share * static_cast<double>(inverses[group]) * total.weighted)};
  };
  const auto finish = [&](std::int64_t block) {
    if (!dx) return;
    const auto of_group = [&](std::int64_t row) { return numbers[at(row / shape.width())]; };
    const Pattern offsets = repeat<kLanes>(
        by_lane<kLanes>(block, [&](std::int64_t row) { return of_group(row).offset; }).data());
    const Pattern slopes = repeat<kLanes>(
        by_lane<kLanes>(block, [&](std::int64_t row) { return of_group(row).slope; }).data());
    with_block(block, [&](const BlockNumbers<kLanes>& values, std::int64_t begin) {
      const Pattern factors = values.factors;
      store_gradient<kLanes, kBehind>(part, follower.clip, values, dy + begin, x + begin,
                                      dx + begin, [&](float passed, float centred, std::size_t w) {
                                        return factors[w] * passed - offsets[w] -
                                               centred * slopes[w];
                                      });
    });
  };
  Work(shape, kLanes).run(sum, combine, finish);
}

template <int kLanes>
std::unique_ptr<Kernel> make_group_norm_gradient(const KernelRequest& request) {
  const GroupNormShape shape(request.node.attributes, request.inputs[1].shape);
  const Follower follower(request.node.attributes);
  const auto run = follower.behind == Behind::kActivation ? gradient<kLanes, Behind::kActivation>
                   : follower.behind == Behind::kLimits   ? gradient<kLanes, Behind::kLimits>
                                                          : gradient<kLanes, Behind::kNothing>;
  return make_kernel([=](std::span<const Tensor> in, std::span<const Tensor> out,
                         const RunContext&) { run(shape, follower, in, out); });
}

/// The factory for the layout, which all tensors (N, C, …) of the node must share.
template <MakeKernel make_1, MakeKernel make_8, MakeKernel make_16>
std::unique_ptr<Kernel> group_norm_by_layout(const KernelRequest& request) {
  const TensorType& x = request.inputs[0];
  if (x.dtype != DType::kFloat32) return nullptr;
  for (const auto* types : {&request.inputs, &request.outputs}) {
    for (const TensorType& type : *types) {
      PT_CHECK(type.shape != x.shape || type.layout == x.layout, kInternal,
               "group normalization needs all its tensors in one layout");
    }
  }
  switch (channel_block(x)) {
    case 1:
      return make_1(request);
    case 8:
      return make_8(request);
    case 16:
      return make_16(request);
    default:
      return nullptr;
  }
}

constexpr KernelEntry kKernels[] = {
    {"GroupNorm",
     group_norm_by_layout<make_group_norm<1>, make_group_norm<8>, make_group_norm<16>>},
    {"GroupNormGrad", group_norm_by_layout<make_group_norm_gradient<1>, make_group_norm_gradient<8>,
                                           make_group_norm_gradient<16>>},
};

}  // namespace

std::span<const KernelEntry> group_norm_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
