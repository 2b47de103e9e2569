// Checkpoints inside an asynchronous round, which never drains: each stage saves its state at
// the update of the same mini-batch, one stage after the other, and continues.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "pipeline/program/program.h"
#include "pipeline/stage/stage_content.h"
#include "train/pipeline_run.h"

namespace pipetrain {

/// Ends a round inside; `step`: mini-batches that are done.
struct RoundStopped : std::exception {
  explicit RoundStopped(std::int64_t done) : step(done) {}
  const char* what() const noexcept override { return "the run was stopped"; }
  std::int64_t step;
};

class RoundSaves {
 public:
  /// `wanted`: asked once for each number of mini-batches of the round after which the program can
  /// be cut; null: nothing is to be saved there. `save`: gets the content of all stages. Calls come
  /// one at a time.
  RoundSaves(PipelineRun& run, const Program& program, int micro_batches,
             std::function<const char*(std::int64_t batches)> wanted,
             std::function<void(std::int64_t batches, const char* reason,
                                const std::vector<StageContent>&)>
                 save);

  /// See MicroBatchSource::updated().
  void updated(int stage, int replica, int unit, int version);

  /// What stages have spent on copying the contents of the boundary that is saved, or was last.
  double copy_seconds() const { return copy_seconds_; }

  /// After a stop: puts the weights as of the last save where a drained runtime has them.
  void restore_newest();

 private:
  struct Boundary {
    const char* reason = nullptr;
    int arrived = 0;
    double copy_seconds = 0;
    std::vector<StageContent> contents;
  };
  PipelineRun& run_;
  int micro_batches_;
  std::set<int> points_;  // units
  std::function<const char*(std::int64_t)> wanted_;
  std::function<void(std::int64_t, const char*, const std::vector<StageContent>&)> save_;
  std::mutex mutex_;
  std::map<int, Boundary> boundaries_;  // by units
  std::vector<StageContent> newest_;
  double copy_seconds_ = 0;
};

}  // namespace pipetrain
