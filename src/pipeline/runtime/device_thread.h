// The thread of a CPU device.
#pragma once

namespace pipetrain {

/// How long a device's thread runs while others wait for its core.
inline constexpr double kTurnSeconds = 0.5e-3;

/// Sets up the calling thread as this device: its name, an OpenMP team of `threads`, a short
/// scheduler time slice and precise sleeps, so that it resumes promptly on busy cores. With `pin`
/// it is pinned to cores of its own if there are enough for all `devices`.
void become_device(int device, int devices, int threads, bool pin);

}  // namespace pipetrain
