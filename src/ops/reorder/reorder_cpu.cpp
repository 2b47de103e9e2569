// Reorder on the CPU: one oneDNN reorder. Types that oneDNN does not support use the reference
// kernel.
#include "ops/kernel/onednn_cpu.h"
#include "ops/reorder/reorder.h"

namespace pipetrain {
namespace {

std::unique_ptr<Kernel> make(const KernelRequest& request) {
  const DType dtype = request.inputs[0].dtype;
  if (dtype != DType::kFloat32 && dtype != DType::kInt32) return nullptr;
  for (const TensorType& type : {request.inputs[0], request.outputs[0]}) {
    if (type.layout == Layout::kChannelsLast) return nullptr;
  }
  return make_sequence_kernel([&](PrimitiveSequence& sequence) {
    const auto x = sequence.input(0, onednn_desc(request.inputs[0]));
    sequence.reorder(x, sequence.output(0, onednn_desc(request.outputs[0])));
  });
}

constexpr KernelEntry kKernels[] = {{"Reorder", make}};

}  // namespace

std::span<const KernelEntry> reorder_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
