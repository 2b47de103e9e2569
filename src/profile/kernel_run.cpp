#include "profile/kernel_run.h"

#include <algorithm>
#include <cstring>

#include "graph/op.h"

namespace pipetrain {
namespace {

constexpr std::size_t kMaximumSets = 32;

// Activations for a forward node, gradients for a gradient node. (A gradient node's activations
// were saved long before.)
bool is_fresh(const Graph& graph, const Node& node, ValueId id) {
  if (!id || !graph[id].producer) return false;
  return node.part == Part::kForward || graph[id].role == Role::kGradient;
}

// Reads every cache line.
void touch(const Tensor& tensor) {
  constexpr std::size_t kLine = 64;
  const auto* bytes = tensor.as<const unsigned char>();
  unsigned sum = 0;
  for (std::size_t i = 0; i < tensor.bytes(); i += kLine) sum += bytes[i];
  [[maybe_unused]] volatile unsigned sink = sum;
}

}  // namespace

KernelRun::KernelRun(const TrainingGraph& training, Backend backend, const Node& node,
                     const std::vector<HostTensor>& inputs, const std::vector<bool>& is_read,
                     std::size_t memory_bytes)
    : kernel_(make_kernel(
          backend, {node, training.graph.input_types(node), training.graph.output_types(node)})),
      workspace_(kernel_->workspace_bytes()) {
  const auto own = [&](const TensorType& type) { return memory_.emplace_back(type).view(); };
  std::size_t set_bytes = 1;
  for (const HostTensor& tensor : inputs) set_bytes += tensor ? tensor.type().bytes() : 0;
  for (const TensorType& type : training.graph.output_types(node)) set_bytes += type.bytes();
  sets_.resize(std::clamp<std::size_t>(memory_bytes / set_bytes, 1, kMaximumSets));
  for (OperandSet& set : sets_) {
    for (const HostTensor& tensor : inputs) {
      set.in.push_back(tensor ? own(tensor.type()) : Tensor{});
      if (tensor) std::memcpy(set.in.back().data, tensor.view().data, tensor.type().bytes());
    }
    for (const ValueId id : node.outputs) {
      const TensorType& type = training.graph[id].type;
      const bool read = is_read[static_cast<std::size_t>(id.index)];
      set.out.push_back(read ? own(type) : Tensor{type, nullptr});
    }
  }
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (is_fresh(training.graph, node, node.inputs[i])) fresh_.push_back(i);
  }
  context_.workspace = workspace_.data();
  context_.samples = training.micro_batch;
}

void KernelRun::prepare() {
  current_ = (current_ + 1) % sets_.size();
  for (const std::size_t index : fresh_) touch(sets_[current_].in[index]);
}

}  // namespace pipetrain
