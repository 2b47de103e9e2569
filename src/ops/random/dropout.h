// Dropout: how the random numbers of an element are drawn, identically in every kernel.
//
// The mask of element e of sample s is a pure function of (seed, step, node key, s, e): it does not
// depend on stages, schedule or threads, nor on micro-batches where the first axis is that of the
// samples, and the backward pass recomputes it. 32 neighbouring elements share eight Philox
// counters; element 8 w + l of the 32 takes word w of the l-th, so that eight counters are computed
// in one vector.
#pragma once

#include <cstdint>
#include <span>

#include "base/random.h"
#include "ops/kernel/kernel.h"

namespace pipetrain {

constexpr std::int64_t kDropoutGroup = 32;  // elements that share eight counters

struct DropoutParameters {
  std::uint32_t threshold = 0;  // random words below it drop the element
  double scale = 1;             // 1 / (1 - ratio)
  std::uint64_t node_key = 0;
};

/// Reads attributes ratio and key; Error (kModel) for a ratio outside [0, 1).
DropoutParameters dropout_parameters(const Attributes& attributes);

/// The Philox key of one node in one step.
constexpr PhiloxKey dropout_key(const RunContext& context, std::uint64_t node_key) {
  const PhiloxKey step = philox_key(context.step);
  const PhiloxKey node = philox_key(node_key);
  const PhiloxBlock mixed =
      philox(philox_key(context.seed), {{step.word[0], step.word[1], node.word[0], node.word[1]}});
  return {{mixed.word[0], mixed.word[1]}};
}

/// The counter of lane `lane` (0 to 7) of a group of elements of a sample.
constexpr PhiloxBlock dropout_counter(std::uint64_t sample, std::uint64_t group,
                                      std::uint32_t lane) {
  const PhiloxKey block = philox_key(8 * group + lane);
  const PhiloxKey of = philox_key(sample);
  return {{block.word[0], block.word[1], of.word[0], of.word[1]}};
}

/// Elements per sample, as if the first axis were that of the samples; of other tensors, such as
/// those with steps first, the mask depends on the micro-batches. A tensor that is not divisible
/// counts as one sample.
constexpr std::int64_t elements_per_sample(std::int64_t count, const RunContext& context) {
  return context.samples > 0 && count % context.samples == 0 ? count / context.samples : count;
}

/// Dropout of the elements [first, first + count) of a tensor with `per_sample` elements per
/// sample; `x` and `y` point at element `first`. float32; fastest if `first` is a multiple of the
/// group.
void drop_out(const DropoutParameters& parameters, PhiloxKey key, std::int64_t first_sample,
              std::int64_t per_sample, std::int64_t first, std::int64_t count, const float* x,
              float* y);

std::span<const KernelEntry> dropout_reference_kernels();
std::span<const KernelEntry> dropout_cpu_kernels();

}  // namespace pipetrain
