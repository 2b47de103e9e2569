// Optimizer steps on GPUs: the rules of element_rules.h over chunks of many tensors.
//
// Bytes and operations for the 124 M parameters of GPT-2 (estimates, H200 at 4.3 TB/s): Adam reads
// parameter, gradient and two states and writes three of them, 28 bytes and 15 operations an
// element: 3.5 GB, 0.8 ms.
#include "optim/element_rules.h"
#include "optim/update_launch_cuda.h"

namespace pipetrain {
namespace {

constexpr int kUpdateBlock = 256;

/// Elements that a thread loads and stores together.
constexpr int kTogether = 4;
struct alignas(16) Together {
  float values[kTogether];
};

PT_HOST_DEVICE void store(float* to, const Together& from) {
#ifdef __CUDA_ARCH__
  // nvcc would make four stores of an assignment.
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(from.values[0]),
               "f"(from.values[1]), "f"(from.values[2]), "f"(from.values[3])
               : "memory");
#else
  *reinterpret_cast<Together*>(to) = from;
#endif
}

/// Elements `first` to `last` of a tensor, by the threads of a block.
struct SteppedChunk {
  const UpdateList& list;
  const UpdatedTensor& tensor;
  std::int64_t first, last;

  template <class Type>
  PT_HOST_DEVICE void operator()(Type) const {
    using Rule = typename Type::type;
    if constexpr (!is_normalised<Rule>()) {
      const Rule rule = tensor.rule.as<Rule>();
      std::int64_t done = first;
      if (is_aligned()) {
        const std::int64_t groups = (last - first) / kTogether;
        for (std::int64_t g = threadIdx.x; g < groups; g += kUpdateBlock)
          step_together(rule, first + g * kTogether);
        done += groups * kTogether;
      }
      for (std::int64_t i = done + threadIdx.x; i < last; i += kUpdateBlock) {
        const float now =
            call_at(rule, tensor.parameter[i], tensor.gradient[i], tensor.state0, tensor.state1, i);
        tensor.parameter[i] = now;
        if (tensor.average) tensor.average[i] = averaged(tensor.average[i], now);
      }
    }
  }

 private:
  /// Null is aligned, too.
  PT_HOST_DEVICE bool is_aligned() const {
    const auto address = [](const float* data) { return reinterpret_cast<std::uintptr_t>(data); };
    return (address(tensor.parameter) | address(tensor.gradient) | address(tensor.state0) |
            address(tensor.state1) | address(tensor.average)) %
               sizeof(Together) ==
           0;
  }
  PT_HOST_DEVICE float averaged(float average, float now) const {
    const float before = list.first_step ? now : average;
    return before + list.average_enter * (now - before);
  }
  template <class Rule>
  PT_HOST_DEVICE void step_together(const Rule& rule, std::int64_t at) const {
    const auto load = [&](const float* from) {
      return from ? *reinterpret_cast<const Together*>(from + at) : Together{};
    };
    constexpr int kStates = states_of<Rule>();
    Together now = load(tensor.parameter), state0, state1;
    const Together gradient = load(tensor.gradient), average = load(tensor.average);
    if constexpr (kStates > 0) state0 = load(tensor.state0);
    if constexpr (kStates > 1) state1 = load(tensor.state1);
    for (int i = 0; i < kTogether; ++i)
      now.values[i] =
          call_at(rule, now.values[i], gradient.values[i], state0.values, state1.values, i);
    store(tensor.parameter + at, now);
    if constexpr (kStates > 0) store(tensor.state0 + at, state0);
    if constexpr (kStates > 1) store(tensor.state1 + at, state1);
    if (!tensor.average) return;
    Together entered;
    for (int i = 0; i < kTogether; ++i)
      entered.values[i] = averaged(average.values[i], now.values[i]);
    store(tensor.average + at, entered);
  }
};

/// Each block takes every gridDim.x-th chunk over all tensors.
__global__ void update(PT_LARGE(UpdateList) list) {
  const std::int64_t chunks = list.chunks_until[list.count - 1];
  for (std::int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    int low = 0, high = list.count - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (chunk < list.chunks_until[middle]) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const UpdatedTensor& tensor = list.tensors[low];
    const std::int64_t first = (chunk - (low == 0 ? 0 : list.chunks_until[low - 1])) * kUpdateChunk;
    const std::int64_t last =
        first + kUpdateChunk < tensor.count ? first + kUpdateChunk : tensor.count;
    visit_rule<float>(ElementRules{}, tensor.rule.number(),
                      SteppedChunk{list, tensor, first, last});
  }
}

}  // namespace

void launch_update(const UpdateList& list, const CudaQueue& queue) {
  if (list.count == 0) return;
  const std::int64_t chunks = list.chunks_until[list.count - 1];
  const std::int64_t most = std::int64_t{8} * queue.multiprocessors;
  const auto blocks = static_cast<unsigned>(chunks < most ? chunks : most);
  PT_LAUNCH(update, blocks, kUpdateBlock, queue.stream, list);
}

}  // namespace pipetrain
