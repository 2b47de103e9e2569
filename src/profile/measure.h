// Measures the kernels of a training graph at their shapes, in the order of a step.
#pragma once

#include <filesystem>

#include "ops/registry/registry.h"
#include "optim/optimizer.h"
#include "profile/profile.h"

namespace pipetrain {

struct ProfileOptions {
  int repeats = 5;        // walks through the step at least
  double seconds = 0.4;   // more of them while they fit into this
  int busy_threads = 1;   // copies that run at the same time: the stages of this machine
  bool wakes = false;     // also what waking the thread of a stage takes
  bool use_cache = true;  // --no-cache
  std::filesystem::path cache_directory;  // empty: base/cache_directory.h
  OptimizerSettings optimizer;            // whose updates are measured
  bool tensor_floats = false;             // measure_device.h: whether products may round to TF32
  bool brief =
      false;  // for plans that do not depend on it: a long step is estimated and not cached
};

/// Measures every node on devices with `threads` threads each, in walks through the whole step
/// (step_timing.h): the mean over equal nodes, the median over walks. With one thread it is thread
/// CPU time, so that other processes disturb little; with more it is wall time. With busy_threads =
/// p, p copies run at once, so that what stages share (memory bandwidth, caches) is in the numbers.
Profile measure_profile(const TrainingGraph& training, Backend backend, int threads,
                        const ProfileOptions& options = {});

/// Takes what such a profile has found out of the cache, so that it is measured again next time.
void forget_profile(const TrainingGraph& training, Backend backend, int threads,
                    const ProfileOptions& options = {});

}  // namespace pipetrain
