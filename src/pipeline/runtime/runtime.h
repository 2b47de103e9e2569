// Runs programs: one worker thread per device interprets its instruction list, whatever the
// schedule. The first failure stops all other stages and is reported with its place.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "optim/loss_scale.h"
#include "pipeline/program/program.h"
#include "pipeline/runtime/round.h"
#include "pipeline/runtime/runtime_options.h"
#include "pipeline/stage/stage.h"
#include "pipeline/stage/stage_content.h"

namespace pipetrain {

struct ProgramCut;
struct RoundState;
struct RuntimeSetup;
class DeviceWorker;
class ProcessSharing;
class StageReplicas;
class Transport;

class Runtime {
 public:
  /// Compiles every stage in its own thread. `programs`: all programs that will be run, which
  /// determine the memory needed. Variants and programs outlive the runtime.
  Runtime(std::vector<RuntimeVariant> variants, std::vector<const Program*> programs,
          const RuntimeOptions& options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Runs one round. Errors of a stage carry the frame "while stage S ran INSTRUCTION".
  RoundResult run(const Program& program, MicroBatchSource& source);
  /// Runs the rest of a round, after restore().
  RoundResult run(const ProgramCut& cut, MicroBatchSource& source);

  int stages() const;
  /// Of the replica of a stage that needs most; all need the same unless they share updates.
  const ArenaBytes& memory(int stage) const;
  /// Whether other processes run some of the stages. Functions marked "collective" below are then
  /// called by all processes, between rounds, and return their result at process 0.
  bool is_shared() const;
  /// Collective: the contents of all stages; empty elsewhere.
  std::vector<StageContent> contents() const;
  /// Collective: the parameters and running statistics of the stages whose first replica is in
  /// another process; process 0 gets those of the others from read().
  std::map<std::string, HostTensor> weights_of_others() const;
  /// What this process has of the contents of all stages: everything where it has the first
  /// replica, else its share of the optimizer's state, where that is spread.
  std::vector<StageContent> own_contents() const;
  /// A parameter or running statistic by name; an empty tensor when no stage here holds it.
  HostTensor read(const std::string& name) const;
  /// Whether a stage here holds it.
  bool write(const std::string& name, const HostTensor& value);
  /// The state of a stage of this process, between rounds. In an asynchronous round also inside
  /// MicroBatchSource::updated(), for the updated stage and the version given there.
  StageContent content(int stage, int version = 0) const;
  /// Between rounds: swaps the weights with their moving averages.
  void exchange_averages();
  /// Between rounds: gives the memory of activations back until the next round. Of gradients,
  /// read_gradient() may then return zeros.
  void release_activations();
  /// The current loss scale and the number of skipped rounds. Between rounds, and inside
  /// asynchronous ones.
  const LossScale& loss_scale() const;
  void set_loss_scale(const LossScale& scale);
  /// Whether rounds have checksums of everything that stages hand to others. Between rounds.
  void note_sends(bool notes);
  /// What processes tell each other beside the results of their rounds. Between rounds.
  void set_round_notes(RoundNotes notes);
  /// Restores what content() returned, as far as the stage holds it, with its version numbers.
  /// Between rounds.
  void restore(int stage, const StageContent& content);
  /// The gradient that the last update of a parameter was made with; an empty tensor for a frozen
  /// one.
  HostTensor read_gradient(const std::string& name) const;
  /// Kernel times of every variant since the last call, summed over replicas. Between rounds.
  std::vector<KernelTimes> take_kernel_times();
  /// Collective; the result is the same everywhere: the first value that is not finite, with
  /// RuntimeOptions::finds_nonfinite. Names a weight or gradient where no pass was seen to make it.
  std::optional<NonfiniteValue> first_nonfinite() const;
  /// The same as far as the passes of this process have found it; at any time.
  std::optional<NonfiniteValue> found_nonfinite() const;
  /// Whether all weights of this process are finite, those that nothing trains included. Between
  /// rounds.
  bool weights_are_finite() const;

 private:
  void connect();
  void compile_all();
  void work(DeviceWorker& worker);
  void stop();
  RoundResult run_round(const Program& program, const ProgramCut* cut, MicroBatchSource& source);
  void wait_for_devices();
  RoundResult result_of_round();
  void finish_with_others(RoundResult& result);
  void fail(std::exception_ptr error);
  void abort_waits();
  void set_source(MicroBatchSource* source);
  /// What all devices wait for; empty while one computes.
  std::string describe_hang() const;
  std::string describe_waits() const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int round_ = 0;    // rounds begun
  int running_ = 0;  // threads that compile or run a round
  bool stopping_ = false;
  std::exception_ptr error_;
  std::atomic<std::uint64_t> progress_{0};
  std::mutex source_mutex_;
  MicroBatchSource* source_ = nullptr;  // of the round that runs

  std::unique_ptr<const RuntimeSetup> setup_;
  std::unique_ptr<RoundState> round_state_;
  std::unique_ptr<ProcessSharing> sharing_;
  // Destroyed before the members above: workers own streams, and transport threads report failures.
  std::vector<std::unique_ptr<DeviceWorker>> workers_;  // [device]; null: of another process
  std::vector<std::thread> threads_;
  std::unique_ptr<StageReplicas> replicas_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace pipetrain
