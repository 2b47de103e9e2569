// The addresses of a list's operands for one micro-batch.
#pragma once

#include <cstddef>
#include <vector>

#include "pipeline/stage/micro_batch.h"
#include "pipeline/stage/stage_layout.h"

namespace pipetrain {

struct StageAddresses {
  const std::vector<std::byte*>* constants;
  const std::vector<std::byte*>* accumulators;
  const StageMicroBatch* micro_batch;
  std::byte* parameter;
  std::byte* prepared;
  std::byte* slot;
  std::byte* forward_out;
  std::byte* gradient_out;
  std::byte* temporary;
  std::byte* batched;
  float* loss_scale;

  void* of(const Location& at) const {
    switch (at.space) {
      case Space::kAbsent:
        return nullptr;
      case Space::kConstant:
      case Space::kState:
        return (*constants)[at.offset];
      case Space::kParameter:
        return parameter + at.offset;
      case Space::kPrepared:
        return prepared + at.offset;
      case Space::kLossScale:
        return loss_scale;
      case Space::kTable:
        return const_cast<std::byte*>(micro_batch->table[at.offset]);
      case Space::kSlot:
        return slot + at.offset;
      case Space::kForwardOut:
        return forward_out + at.offset;
      case Space::kGradientOut:
        return gradient_out + at.offset;
      case Space::kTemporary:
        return temporary + at.offset;
      case Space::kAccumulator:
        return (*accumulators)[at.offset];
      case Space::kBatched:
        return batched + at.offset;
    }
    return nullptr;
  }
  const float* floats_of(const Location& at) const { return static_cast<const float*>(of(at)); }
};

inline std::span<float> floats(std::byte* data, const TensorType& type) {
  return {reinterpret_cast<float*>(data), static_cast<std::size_t>(type.count())};
}

}  // namespace pipetrain
