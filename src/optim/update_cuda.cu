// The loops of update_cpu.cpp, an element a turn.
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

__global__ void update(UpdateNumbers numbers, float* parameter, const float* gradient,
                       float* state0, float* state1, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < count; i += step)
    parameter[i] = step_of(numbers, parameter[i], gradient[i], state0 + i, state1 + i);
}

}  // namespace

void launch_update(const UpdateNumbers& numbers, float* parameter, const float* gradient,
                   float* state0, float* state1, std::int64_t count, const CudaQueue& queue) {
  if (count == 0) return;
  const std::int64_t wanted = (count + kUpdateBlock - 1) / kUpdateBlock;
  const std::int64_t most = std::int64_t{8} * queue.multiprocessors;
  const auto blocks = static_cast<unsigned>(wanted < most ? wanted : most);
  PT_LAUNCH(update, blocks, kUpdateBlock, queue.stream, numbers, parameter, gradient, state0,
            state1, count);
}

}  // namespace pipetrain
