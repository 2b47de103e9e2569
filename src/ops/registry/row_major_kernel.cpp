#include "ops/registry/row_major_kernel.h"

#include <algorithm>
#include <cstring>

#include "ops/kernel/workspace.h"

namespace pipetrain {
namespace {

bool is_of_gpus(const TensorType& type) {
  return type.dtype != DType::kUndefined &&
         (type.layout == Layout::kChannelsLast || type.layout == Layout::kPaddedRows);
}

std::size_t row_major_bytes(TensorType type) {
  type.layout = Layout::kRowMajor;
  return type.bytes();
}

/// Copies between contiguous and padded rows; padding becomes zero.
void copy_rows(const TensorType& type, const void* from, void* to, bool to_padded) {
  const std::size_t size = size_of(type.dtype);
  const std::size_t plain = static_cast<std::size_t>(type.shape[type.shape.rank() - 1]) * size;
  const std::size_t padded = static_cast<std::size_t>(type.row_stride()) * size;
  const std::int64_t rows = type.shape.count(0, type.shape.rank() - 1);
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  if (to_padded) std::memset(to, 0, type.bytes());
  for (std::int64_t row = 0; row < rows; ++row) {
    std::memcpy(target, source, plain);
    source += to_padded ? plain : padded;
    target += to_padded ? padded : plain;
  }
}

/// Between (N, C, positions) and (N, positions, C), or as copy_rows().
void copy_reordered(const TensorType& type, const void* from, void* to, bool to_last) {
  if (type.layout == Layout::kPaddedRows) return copy_rows(type, from, to, to_last);
  const std::size_t size = size_of(type.dtype);
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  const std::int64_t channels = type.shape[1];
  const std::int64_t positions = type.shape.count(2, type.shape.rank());
  std::size_t plain = 0;
  for (std::int64_t n = 0; n < type.shape[0]; ++n) {
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t p = 0; p < positions; ++p, ++plain) {
        const auto last = static_cast<std::size_t>((n * positions + p) * channels + c);
        std::memcpy(target + (to_last ? last : plain) * size,
                    source + (to_last ? plain : last) * size, size);
      }
    }
  }
}

class RowMajorKernel final : public Kernel {
 public:
  RowMajorKernel(Backend backend, const KernelRequest& request) : node_(request.node) {
    const auto plain = [&](std::vector<TensorType> types) {
      for (TensorType& type : types) {
        places_.push_back(bytes_);
        if (is_of_gpus(type)) bytes_ += aligned_part(row_major_bytes(type));
        type.layout = Layout::kRowMajor;
      }
      return types;
    };
    const std::vector<TensorType> inputs = plain(request.inputs), outputs = plain(request.outputs);
    kernel_ = make_kernel(backend, {node_, inputs, outputs});
  }

  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
           const RunContext& context) override {
    std::vector<Tensor> in(inputs.begin(), inputs.end()), out(outputs.begin(), outputs.end());
    std::size_t place = 0;
    for (auto* tensors : {&in, &out}) {
      for (Tensor& tensor : *tensors) {
        std::byte* const copy = context.workspace + places_[place++];
        if (!tensor || !is_of_gpus(tensor.type)) continue;
        if (tensors == &in) copy_reordered(tensor.type, tensor.data, copy, /*to_last=*/false);
        tensor.data = copy;
        tensor.type.layout = Layout::kRowMajor;
      }
    }
    RunContext inner = context;
    inner.workspace = context.workspace + bytes_;
    kernel_->run(in, out, inner);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (outputs[i] && is_of_gpus(outputs[i].type))
        copy_reordered(outputs[i].type, out[i].data, outputs[i].data, /*to_last=*/true);
    }
  }
  std::size_t workspace_bytes() const override { return bytes_ + kernel_->workspace_bytes(); }

 private:
  Node node_;                        // kernels may keep a reference to it
  std::vector<std::size_t> places_;  // workspace offsets of inputs, then outputs
  std::size_t bytes_ = 0;
  std::unique_ptr<Kernel> kernel_;
};

}  // namespace

bool has_layout_of_gpus(const KernelRequest& request) {
  return std::any_of(request.inputs.begin(), request.inputs.end(), is_of_gpus) ||
         std::any_of(request.outputs.begin(), request.outputs.end(), is_of_gpus);
}

std::unique_ptr<Kernel> make_row_major_kernel(Backend backend, const KernelRequest& request) {
  return std::make_unique<RowMajorKernel>(backend, request);
}

}  // namespace pipetrain
