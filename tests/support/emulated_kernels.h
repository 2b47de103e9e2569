// The GPU's own kernels, run by an emulator on the host (tests/emulator).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/kernel.h"
#include "optim/optimizer.h"

namespace pipetrain::test {

/// The kernel a GPU would get; null when there is no own one for the node. Running it throws
/// std::runtime_error when threads of a block wait at different places.
std::unique_ptr<Kernel> make_emulated_kernel(const KernelRequest& request);
/// How many orders of threads are to be tried: 3, or 1 where a sanitizer looks at every access.
int emulated_orders();
/// In which order threads run between barriers: 0, 1, 2. A right kernel gives the same bits in all.
void set_emulated_order(int order);
/// Operators that GPUs have own kernels for, sorted.
std::vector<std::string_view> emulated_operators();

/// optim/update_cuda.h under the emulator.
bool emulated_update(const OptimizerSettings& settings, double learning_rate, std::int64_t step,
                     double gradient_scale, std::span<float> parameter,
                     std::span<const float> gradient, std::span<float> state0,
                     std::span<float> state1);
double emulated_sum_of_squares(std::span<const float> values);

/// What the emulator says of three kernels whose threads do not meet, joined by "; ".
std::string emulated_divergence();
/// Runs a kernel that reads behind its memory, which AddressSanitizer must see.
void emulated_read_behind_memory();
/// Whether a kernel that lacks a barrier gives other bits in another order of its threads.
bool emulated_order_shows_a_missing_barrier();

}  // namespace pipetrain::test
