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

/// Updates element `i` of a tensor by its rule.
struct SteppedElement {
  const UpdatedTensor& tensor;
  std::int64_t i;
  float& parameter;

  template <class Type>
  PT_HOST_DEVICE void operator()(Type) const {
    using Rule = typename Type::type;
    if constexpr (!is_normalised<Rule>()) {
      parameter = call_at(tensor.rule.as<Rule>(), tensor.parameter[i], tensor.gradient[i],
                          tensor.state0, tensor.state1, i);
    }
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
    for (std::int64_t i = first + threadIdx.x; i < last; i += kUpdateBlock) {
      float now = 0;
      visit_rule<float>(ElementRules{}, tensor.rule.number(), SteppedElement{tensor, i, now});
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
  const std::int64_t chunks = list.chunks_until[list.count - 1];
  const std::int64_t most = std::int64_t{8} * queue.multiprocessors;
  const auto blocks = static_cast<unsigned>(chunks < most ? chunks : most);
  PT_LAUNCH(update, blocks, kUpdateBlock, queue.stream, list);
}

}  // namespace pipetrain
