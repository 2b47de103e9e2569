// The loops of update_cpu.cpp, an element a turn, over the pieces of many tensors.
//
// Bytes and operations for the 124 M parameters of GPT-2 (estimates, H200 at 4.3 TB/s): Adam reads
// parameter, gradient and two states and writes three of them, 28 bytes and 15 operations an
// element: 3.5 GB, 0.8 ms.
#include <cmath>

#include "optim/update_launch_cuda.h"

namespace pipetrain {
namespace {

constexpr int kUpdateBlock = 256;

__device__ __forceinline__ float step_of(const UpdateNumbers& n, float p, float g, float* state0,
                                         float* state1) {
  const float d = g * n.scale + n.decay * p;
  switch (n.rule) {
    case UpdateRuleCuda::kSgd:
      return p - n.rate * d;
    case UpdateRuleCuda::kMomentum: {
      const float b = n.keep * *state0 + n.enter * d;
      *state0 = b;
      return p - n.rate * (n.direct * d + n.ahead * b);
    }
    case UpdateRuleCuda::kAdam: {
      const float m = *state0 + n.enter * (d - *state0);
      const float v = n.keep2 * *state1 + n.enter2 * (d * d);
      *state0 = m;
      *state1 = v;
      return n.shrink * p - n.rate * m / (std::sqrt(v) * n.root_scale + n.epsilon);
    }
    case UpdateRuleCuda::kRmsProp: {
      const float v = n.keep * *state0 + n.enter * (d * d);
      *state0 = v;
      return p - n.rate * d / (std::sqrt(v) + n.epsilon);
    }
    case UpdateRuleCuda::kRmsPropMomentum: {
      const float v = n.keep * *state0 + n.enter * (d * d);
      *state0 = v;
      const float b = n.momentum * *state1 + d / (std::sqrt(v) + n.epsilon);
      *state1 = b;
      return p - n.rate * b;
    }
    case UpdateRuleCuda::kCenteredRmsProp: {
      const float v = n.keep * *state0 + n.enter * (d * d);
      const float m = *state1 + n.enter * (d - *state1);
      *state0 = v;
      *state1 = m;
      const float variance = v - m * m;
      return p - n.rate * d / (std::sqrt(variance < 0 ? 0.0f : variance) + n.epsilon);
    }
    case UpdateRuleCuda::kAdagrad: {
      const float s = *state0 + d * d;
      *state0 = s;
      return p - n.rate * d / (std::sqrt(s) + n.epsilon);
    }
    case UpdateRuleCuda::kLion: {
      const float c = n.keep * *state0 + n.enter * d;
      const float sign = c > 0 ? 1.0f : c < 0 ? -1.0f : c;
      *state0 = n.keep2 * *state0 + n.enter2 * d;
      return n.shrink * p - n.rate * sign;
    }
  }
  return p;
}

/// A block takes every gridDim.x-th piece of all tensors together.
__global__ void update(PT_LARGE(UpdateList) list) {
  const std::int64_t pieces = list.pieces_until[list.count - 1];
  for (std::int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    int low = 0, high = list.count - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (piece < list.pieces_until[middle]) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const UpdatedTensor& tensor = list.tensors[low];
    const std::int64_t first = (piece - (low == 0 ? 0 : list.pieces_until[low - 1])) * kUpdatePiece;
    const std::int64_t last =
        first + kUpdatePiece < tensor.count ? first + kUpdatePiece : tensor.count;
    for (std::int64_t i = first + threadIdx.x; i < last; i += kUpdateBlock) {
      const float now = step_of(tensor.numbers, tensor.parameter[i], tensor.gradient[i],
                                tensor.state0 + i, tensor.state1 + i);
      tensor.parameter[i] = now;
      if (!tensor.average) continue;
      const float before = list.first_step ? now : tensor.average[i];
      tensor.average[i] = before + list.average_enter * (now - before);
    }
  }
}

}  // namespace

void launch_update(const UpdateList& list, const CudaQueue& queue) {
  if (list.count == 0) return;
  const std::int64_t pieces = list.pieces_until[list.count - 1];
  const std::int64_t most = std::int64_t{8} * queue.multiprocessors;
  const auto blocks = static_cast<unsigned>(pieces < most ? pieces : most);
  PT_LAUNCH(update, blocks, kUpdateBlock, queue.stream, list);
}

}  // namespace pipetrain
