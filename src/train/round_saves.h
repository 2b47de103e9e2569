// Saving and stopping within an asynchronous round, which never drains. Boundaries are the
// mini-batches after which the program can be cut (program_cut.h). Before any stage begins the
// first micro-batch after a boundary, process 0 decides whether to save the state at the boundary
// and whether to end the round there. Each stage then copies its state at its last update before
// the boundary, and continues.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "pipeline/program/program.h"
#include "pipeline/stage/stage_content.h"
#include "train/pipeline_run.h"
#include "train/round_mail.h"
#include "train/run_requests.h"

namespace pipetrain {

class RoundSaves {
 public:
  struct Decision {
    const char* reason = nullptr;  // to save; null: nothing is saved
    RunEnd end = RunEnd::kDone;    // kDone: the round goes on
  };
  struct Saved {
    std::vector<StageContent> contents;  // of all stages
    double copy_seconds = 0;             // that they have spent on copying them
  };
  /// Calls come one at a time.
  struct Callbacks {
    /// In process 0, once for each boundary; `others`: what other processes were asked for.
    std::function<Decision(std::int64_t batches, RunRequests others)> decide;
    /// In process 0.
    std::function<void(std::int64_t batches, const char* reason, const Saved& saved)> save;
    /// In other processes: what this one was asked for.
    std::function<RunRequests()> requests;
  };

  /// `done`: micro-batches of the round that are done when it is taken up again.
  RoundSaves(PipelineRun& run, const Program& program, int micro_batches, int done,
             Callbacks callbacks);
  /// `mail` connects the processes, and outlives the calls that follow.
  void connect(RoundMail& mail) { mail_ = &mail; }

  /// See MicroBatchSource.
  int end_before(int unit);
  void updated(int stage, int replica, int unit, int version);

  // From other processes.

  void take(RunRequests requests);
  void take(RoundMail::Content content);
  void take(const RoundMail::Decision& decision);

  /// After how many micro-batches the round ends early; more than any: it does not.
  int end() const;
  /// Why.
  RunEnd reason_to_end() const;
  /// What other processes were asked for after the last boundary.
  RunRequests left_requests() const;

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();
  struct Boundary {
    const char* reason = nullptr;
    int arrived = 0, arrived_from_here = 0;  // stages
    Saved saved;
  };
  bool leads() const { return !mail_ || mail_->leads(); }
  bool is_decided(int unit) const;
  void decide_next();
  void finish(int units);

  PipelineRun& run_;
  const int micro_batches_;
  std::vector<int> points_;  // units, rising
  int stages_here_ = 0;      // of which this process has the first replica
  Callbacks callbacks_;
  RoundMail* mail_ = nullptr;  // null: one process
  mutable std::mutex mutex_;
  std::size_t decided_ = 0;             // points
  std::map<int, Boundary> boundaries_;  // that are saved, by units
  int end_ = kNever;
  RunEnd reason_ = RunEnd::kDone;
  RunRequests others_;
};

}  // namespace pipetrain
