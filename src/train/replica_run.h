// Training with replicas that do not wait for each other. Process 0 has the weights and makes the
// updates, one after the other, in the thread that calls next(); replicas of this and of other
// processes only compute gradients.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "train/checkpoint.h"
#include "train/local_replicas.h"
#include "train/pipeline_run.h"
#include "train/replica_mail.h"
#include "train/replica_turns.h"
#include "train/replica_weights.h"
#include "train/run_requests.h"

namespace pipetrain {

class Commits;
class TrainingObserver;

/// An update that was made.
struct AppliedUpdate {
  std::vector<DataPart> parts;            // whose gradients it has added
  std::int64_t samples = 0, counted = 0;  // of all parts
  double loss = 0;                        // the mean over the labels of all parts
  double correct = 0;                     // a count
  double gradient_norm = 0;               // where it is limited
  double seconds = 0;                     // per update, over as many as there are replicas
};

/// In process 0.
class ReplicaRun {
 public:
  /// Begins with the state of the run's runtime. `identity`: of this run. `resumed`: the checkpoint
  /// that the state is from, or null. `commits`: whose copy another process keeps, or null. Error
  /// (kUsage, kData) where its record does not fit.
  ReplicaRun(PipelineRun& run, const RunRecord& identity, const Checkpoint* resumed,
             Commits* commits = nullptr);
  ReplicaRun(const ReplicaRun&) = delete;
  ReplicaRun& operator=(const ReplicaRun&) = delete;

  /// Waits for the gradients of the next update and makes it.
  AppliedUpdate next(double learning_rate);
  /// Puts the weights and the optimizer's state into the run's runtime.
  void publish();
  const ReplicaRecord& record();
  /// What other processes were asked for since the last call.
  RunRequests take_requests();
  /// Ends the other processes' replicas.
  void end(RunEnd end);

 private:
  void give_out();
  void take_in();
  void note_gradient(int replica, PartGradient gradient);
  AppliedUpdate update(const std::vector<ReplicaTurns::Contribution>& used, double learning_rate);
  NamedTensors weights_for(int replica);

  PipelineRun& run_;
  const Network& network_;
  ReplicaRecord record_;
  ReplicaWeights weights_;
  ReplicaTurns turns_;
  std::vector<PartGradient> gradients_;  // [replica]: handed in
  std::vector<bool> has_all_weights_;    // [replica]: of the tensors that do not change
  std::int64_t published_;               // version in the run's runtime
  std::deque<double> made_at_;           // of the last updates
  RunRequests requests_;
  Commits* commits_;  // null: there are none
  LocalReplicas local_;
  std::unique_ptr<ReplicaMail> mail_;  // null: one process
};

/// In the other processes: computes gradients until process 0 ends the run. Returns why it has.
/// `commits`: where copies are kept, or null.
RunEnd serve_replicas(PipelineRun& run, TrainingObserver& observer, Commits* commits = nullptr);

}  // namespace pipetrain
