// Reorder for elements of any type, one element at a time.
#include <cstring>

#include "ops/kernel/channel_block.h"
#include "ops/reorder/reorder.h"

namespace pipetrain {
namespace {

std::unique_ptr<Kernel> make(const KernelRequest& request) {
  const TensorType x = request.inputs[0];
  const TensorType y = request.outputs[0];
  return make_kernel(
      [x, y](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const auto* from = in[0].as<const std::byte>();
        auto* to = out[0].as<std::byte>();
        if (x.layout == y.layout) {
          std::memcpy(to, from, x.bytes());
          return;
        }
        const std::size_t size = size_of(x.dtype);
        const std::int64_t channels = x.shape[1];
        const std::int64_t positions = x.shape.count(2, x.shape.rank());
        const auto offset = [&](const TensorType& type, std::int64_t n, std::int64_t c,
                                std::int64_t p) {
          const std::int64_t block = channel_block(type);
          return static_cast<std::size_t>((n * channels + c / block * block) * positions +
                                          p * block + c % block) *
                 size;
        };
        for (std::int64_t n = 0; n < x.shape[0]; ++n) {
          for (std::int64_t c = 0; c < channels; ++c) {
            for (std::int64_t p = 0; p < positions; ++p) {
              std::memcpy(to + offset(y, n, c, p), from + offset(x, n, c, p), size);
            }
          }
        }
      });
}

constexpr KernelEntry kReorderReferenceKernels[] = {{"Reorder", make}};

}  // namespace

std::span<const KernelEntry> reorder_reference_kernels() { return kReorderReferenceKernels; }

}  // namespace pipetrain
