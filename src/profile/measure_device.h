// Measures the kernels of a training graph on a GPU, by the device's clock.
//
//   stream:  run run │ point  run(a) run(b) run(c) run(a) …  point │ point  run(b) …
//            warm-up │        operands rotate, beyond the cache    │ the median of these counts
#pragma once

#include <optional>

#include "device/device.h"
#include "profile/estimate.h"
#include "profile/measure.h"

namespace pipetrain {

/// Measures every kind of node alone: the median of rounds of runs one after the other, on random
/// operands that do not come out of the device's cache. One-time costs such as compilation are
/// excluded; launch gaps are included. Measurements are kept under what the device is and the
/// versions of its libraries (Device::make()); if one is missing, all are taken again. `threads`,
/// `busy_threads` and `brief` mean nothing here.
Profile measure_device_profile(const TrainingGraph& training, Device& device,
                               const ProfileOptions& options = {});

/// The cached profile, if everything has been measured before.
std::optional<Profile> known_device_profile(const TrainingGraph& training, Device& device,
                                            const ProfileOptions& options = {});

/// What the device reaches in a large product of `operands` (float32, bfloat16, float16) and in a
/// large element-wise operation: the roof of all its kernels. Kept like other measurements.
DeviceSpeed measure_device_speed(Device& device, DType operands,
                                 const ProfileOptions& options = {});

}  // namespace pipetrain
