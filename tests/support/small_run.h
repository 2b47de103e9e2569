// A run of a few steps on synthetic samples, for tests of checkpoints and of runs that go on.
#pragma once

#include <filesystem>

#include "train/config.h"

namespace pipetrain::test {

/// 50 samples in batches of 8, two epochs of Adam on one thread; nothing is cached.
inline RunConfig small_run(const std::filesystem::path& model) {
  RunConfig config;
  config.model.path = model.string();
  config.data.synthetic_samples = 50;
  config.pipeline.threads = 1;
  config.pipeline.profile_cache = false;
  config.pipeline.pin = false;
  config.optimization.batch_size = 8;
  config.optimization.epochs = 2;
  config.optimization.optimizer = default_settings(OptimizerKind::kAdam);
  config.optimization.learning_rate.peak = 0.02;
  return config;
}

}  // namespace pipetrain::test
