// Hand-written GPU kernels, run by an emulator on the host (tests/emulator).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "ops/kernel/kernel.h"
#include "optim/optimizer.h"

namespace pipetrain::test {

/// The kernel a GPU would get; null when there is no hand-written one for the node. Running it
/// throws std::runtime_error when threads of a block wait at different places.
std::unique_ptr<Kernel> make_emulated_kernel(const KernelRequest& request);
/// How many orders of threads are to be tried: 3, or 1 where a sanitizer looks at every access.
int emulated_orders();
/// In which order threads run between barriers: 0, 1, 2. A right kernel gives the same bits in all.
void set_emulated_order(int order);
/// Operators with hand-written GPU kernels, sorted.
std::vector<std::string_view> emulated_operators();

/// Device::update() and Device::sums_of_squares() as GPUs have them, under the emulator.
void emulated_update(std::int64_t step, double gradient_scale, double average_decay,
                     std::span<const DeviceUpdate> parameters);
bool is_emulated_update(const OptimizerSettings& settings);
std::vector<double> emulated_sums_of_squares(std::span<const std::span<const float>> values);

/// Kernels that are generated as source (ops/fused/fused_source.h): between these two calls the
/// sources that make_emulated_kernel() comes across are noted, and the steps' own kernels are made.
/// Then all are compiled by the host's compiler, and what is made from now on is made from them.
/// Returns how many there are. Throws std::runtime_error with the compiler's words.
void note_generated_kernels();
int compile_generated_kernels();
/// No generated kernel from now on.
void forget_generated_kernels();

/// Device::add() under the emulator.
void emulated_add(std::span<float> to, std::span<const float> from);

/// What stands around a library's batch normalization over (images, channels, positions), by the
/// kernels that do it: variances from inverse deviations (first) and back (second), and dy where y
/// lies within the limits of a Relu (third).
struct AroundBatchNorm {
  std::int64_t images, channels, positions;
  float epsilon;
  std::vector<float> dy, x, scale, mean, variance, bias;
  bool channels_last = false;
};
std::array<std::vector<float>, 3> emulated_around_batch_norm(const AroundBatchNorm& given);

/// A matmul with an epilogue (ops/matmul/matmul_epilogue.h) on a GPU whose library does not support
/// it: the matmul alone, here by the reference kernel, then hand-written kernels. `own_bias`: the
/// library does not even support the bias.
std::unique_ptr<Kernel> make_product_in_parts(const KernelRequest& request, bool own_bias);
/// Whether the library is asked for both first.
bool library_is_asked(const KernelRequest& request);

/// What the emulator says of three kernels whose threads do not meet, joined by "; ".
std::string emulated_divergence();
/// Runs a kernel that reads behind its memory, which AddressSanitizer must see.
void emulated_read_behind_memory();
/// Whether a kernel that lacks a barrier gives other bits in another order of its threads.
bool emulated_order_shows_a_missing_barrier();

}  // namespace pipetrain::test
