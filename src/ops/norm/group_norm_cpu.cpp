// Group normalization on the CPU, for row-major and channel-blocked tensors alike: sums of every
// channel, which are combined to those of groups, and then a second pass over what the caches still
// hold. A group may consist of parts of several blocks of channels. The bits do not depend on the
// number of threads.
#include <omp.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "base/error.h"
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

/// What is kept of every channel (row) and of every group of all samples, in the workspace.
template <class OfRow, class OfGroup>
struct GroupWorkspace {
  OfRow* rows;
  OfGroup* groups;

  GroupWorkspace(const GroupNormShape& shape, std::byte* workspace)
      : rows(reinterpret_cast<OfRow*>(workspace)),
        groups(reinterpret_cast<OfGroup*>(rows + shape.samples * shape.channels)) {}
  static std::size_t bytes(const GroupNormShape& shape) {
    return static_cast<std::size_t>(shape.samples * shape.channels) * sizeof(OfRow) +
           static_cast<std::size_t>(shape.samples * shape.groups) * sizeof(OfGroup);
  }
};

struct GroupStatistics {
  float mean, inverse;
};

/// The numbers of the channels of a block, each by `number(row)`, where row = sample * C + channel.
template <int kLanes, class Number>
std::array<float, kLanes> by_lane(std::int64_t block, Number number) {
  std::array<float, kLanes> out;
  for (int lane = 0; lane < kLanes; ++lane)
    out[static_cast<std::size_t>(lane)] = number(block * kLanes + lane);
  return out;
}

/// The activation or the limits that are fused into the normalization.
struct FusedActivation {
  Clip clip;
  Activation activation;
  Behind behind;

  explicit FusedActivation(const Attributes& attributes)
      : clip{BatchNormLimits(attributes)},
        activation(attributes, DType::kFloat32),
        behind(activation.loop ? Behind::kActivation
               : clip.any      ? Behind::kLimits
                               : Behind::kNothing) {}
};

/// A block of channels of one sample as channel_blocks_cpu.h takes it.
BlockedShape one_block(const GroupNormShape& shape, std::int64_t lanes) {
  return {1, 1, shape.positions * lanes, static_cast<double>(shape.positions)};
}

template <int kLanes>
std::unique_ptr<Kernel> make_group_norm(const KernelRequest& request) {
  const GroupNormShape shape(request.node.attributes, request.inputs[0].shape);
  const FusedActivation fused(request.node.attributes);
  const BlockedShape part = one_block(shape, kLanes);
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        const auto *x = in[0].as<float>(), *scale = in[1].as<float>(), *bias = in[2].as<float>();
        auto* y = out[0].as<float>();
        float *means = data_or_null<float>(out, 1), *inverses = data_or_null<float>(out, 2);
        const GroupWorkspace<Statistics, GroupStatistics> kept(shape, context.workspace);
        Statistics* const rows = kept.rows;
        GroupStatistics* const groups = kept.groups;
        const auto sum = [&](std::int64_t block) {
          std::ranges::copy(statistics<kLanes>(part, x + block * part.run), rows + block * kLanes);
        };
        const auto combine = [&](std::int64_t group) {
          const std::span<const Statistics> channels(rows + group * shape.width(),
                                                     static_cast<std::size_t>(shape.width()));
          double middle = 0, variance = 0;
          for (const Statistics& channel : channels) middle += channel.mean;
          middle /= static_cast<double>(shape.width());
          for (const Statistics& channel : channels)
            variance += channel.variance + (channel.mean - middle) * (channel.mean - middle);
          variance /= static_cast<double>(shape.width());
          groups[group] = {static_cast<float>(middle),
                           static_cast<float>(1 / std::sqrt(variance + shape.epsilon))};
          if (means) means[group] = groups[group].mean;
          if (inverses) inverses[group] = groups[group].inverse;
        };
        const auto finish = [&](std::int64_t block) {
          if (!y) return;
          const auto center = by_lane<kLanes>(
              block, [&](std::int64_t row) { return groups[row / shape.width()].mean; });
          const auto factor = by_lane<kLanes>(block, [&](std::int64_t row) {
            return groups[row / shape.width()].inverse * scale[row % shape.channels];
          });
          const float* from = x + block * part.run;
          const float* shift = bias + block * kLanes % shape.channels;
          float* to = y + block * part.run;
          if (fused.activation.loop)
            return normalize_activated<kLanes>(part, fused.activation, from, center.data(),
                                               factor.data(), shift, to);
          normalize<kLanes>(part, fused.clip, from, center.data(), factor.data(), shift,
                            /*residual=*/nullptr, to);
        };
        Work(shape, kLanes).run(sum, combine, finish);
      },
      GroupWorkspace<Statistics, GroupStatistics>::bytes(shape));
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
void gradient(const GroupNormShape& shape, const FusedActivation& fused, std::span<const Tensor> in,
              std::span<const Tensor> out, std::byte* workspace) {
  const BlockedShape part = one_block(shape, kLanes);
  const auto *dy = in[0].as<float>(), *x = in[1].as<float>(), *scale = in[2].as<float>();
  const auto *means = in[3].as<float>(), *inverses = in[4].as<float>();
  const float* bias = kBehind == Behind::kNothing ? nullptr : in[5].as<float>();
  auto* dx = out[0].as<float>();
  float *dscale = data_or_null<float>(out, 1), *dbias = data_or_null<float>(out, 2);
  const GroupWorkspace<GradientSums, GradientNumbers> kept(shape, workspace);
  GradientSums* const rows = kept.rows;
  GradientNumbers* const numbers = kept.groups;
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
          gradient_sums<kLanes, kBehind>(part, fused.clip, fused.activation, values, dy + begin,
                                         x + begin, dx ? dx + begin : nullptr);
      for (int lane = 0; lane < kLanes; ++lane) {
        const std::int64_t row = block * kLanes + lane;
        const auto inverse = static_cast<double>(inverses[row / shape.width()]);
        rows[row] = {sums.first(lane), sums.second(lane) * inverse};
        if (dscale) dscale[row] = static_cast<float>(rows[row].weighted);
        if (dbias) dbias[row] = static_cast<float>(rows[row].passed);
      }
    });
  };
  const auto combine = [&](std::int64_t group) {
    GradientSums total{};
    for (std::int64_t row = group * shape.width(); row < (group + 1) * shape.width(); ++row) {
      const auto by = static_cast<double>(scale[row % shape.channels]);
      total.passed += by * rows[row].passed;
      total.weighted += by * rows[row].weighted;
    }
    const double share = static_cast<double>(inverses[group]) / shape.population();
    numbers[group] = {
        static_cast<float>(share * total.passed),
        static_cast<float>(share * static_cast<double>(inverses[group]) * total.weighted)};
  };
  const auto finish = [&](std::int64_t block) {
    if (!dx) return;
    const auto of_group = [&](std::int64_t row) { return numbers[row / shape.width()]; };
    const Pattern offsets = repeat<kLanes>(
        by_lane<kLanes>(block, [&](std::int64_t row) { return of_group(row).offset; }).data());
    const Pattern slopes = repeat<kLanes>(
        by_lane<kLanes>(block, [&](std::int64_t row) { return of_group(row).slope; }).data());
    with_block(block, [&](const BlockNumbers<kLanes>& values, std::int64_t begin) {
      const Pattern factors = values.factors;
      store_gradient<kLanes, kBehind>(part, fused.clip, values, dy + begin, x + begin, dx + begin,
                                      [&](float passed, float centred, std::size_t w) {
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
  const FusedActivation fused(request.node.attributes);
  const auto run = fused.behind == Behind::kActivation ? gradient<kLanes, Behind::kActivation>
                   : fused.behind == Behind::kLimits   ? gradient<kLanes, Behind::kLimits>
                                                       : gradient<kLanes, Behind::kNothing>;
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        run(shape, fused, in, out, context.workspace);
      },
      GroupWorkspace<GradientSums, GradientNumbers>::bytes(shape));
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
  if (x.layout == Layout::kBlocked8) return make_8(request);
  if (x.layout == Layout::kBlocked16) return make_16(request);
  if (x.layout != Layout::kRowMajor) return nullptr;
  // Without positions, row-major is blocked, too.
  const bool flat = x.shape.count(2, x.shape.rank()) == 1;
  if (flat && x.shape[1] % 16 == 0) return make_16(request);
  if (flat && x.shape[1] % 8 == 0) return make_8(request);
  return make_1(request);
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
