// Runs programs: one worker thread per device interprets its instruction list, whatever the
// schedule. The first failure wins, stops every other stage and names where it happened.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pipeline/channel.h"
#include "pipeline/event.h"
#include "pipeline/program.h"
#include "pipeline/simulate.h"
#include "pipeline/stage.h"

namespace pipetrain {

struct RuntimeOptions {
  Backend backend = Backend::kCpu;
  int threads = 1;  // OpenMP threads of each stage
  bool pin = true;  // give each stage cores of its own when there are enough
  OptimizerSettings optimizer;
  double clip_norm = 0;         // 0: off
  std::uint64_t seed = 1;       // of dropout masks
  double timeout_seconds = 60;  // without any progress: the watchdog ends the run
  /// Per stage: sleep this long instead of computing. A rehearsal shows what the runtime itself
  /// costs.
  std::vector<StageSeconds> rehearsal;
};

/// One shape at which the network runs. Index 0 is the full micro-batch.
struct RuntimeVariant {
  const TrainingGraph* training = nullptr;
  std::vector<int> stage_of_forward;
};

/// One micro-batch of a round. `columns`: first byte of the micro-batch in each graph input, then
/// the label.
struct RoundUnit {
  int variant = 0;
  std::uint64_t step = 0;         // optimizer step that it belongs to: keys the random masks
  std::int64_t first_sample = 0;  // in its mini-batch
  double loss_scale = 1;
  std::vector<const std::byte*> columns;
  // Results.
  double loss_sum = 0;
  double correct = 0;
};

/// Gives the units of a round. Called from several threads.
class UnitSource {
 public:
  virtual ~UnitSource() = default;
  /// The unit; waits until its data are there. Stays valid until released.
  virtual RoundUnit& acquire(int unit) = 0;
  /// No stage needs the unit's data any more.
  virtual void release(int unit) = 0;
  /// Learning rate of the update that follows the round (kSync) or the unit (kStash), and its
  /// number from 1.
  virtual double learning_rate(int unit) const = 0;
  virtual std::int64_t update_number(int unit) const = 0;
};

struct RoundResult {
  double seconds = 0;
  double gradient_norm = 0;                // of kSync rounds with clipping or asked for
  std::vector<std::vector<Event>> events;  // as the program's lists
  std::vector<double> busy_seconds;        // per device: in compute instructions
  std::vector<double> cpu_seconds;         // per device: CPU time of the worker thread
};

class Runtime {
 public:
  /// Compiles every stage in its own thread. `programs` are all programs that will be run: they say
  /// how much memory is needed. Variants and programs outlive the runtime.
  Runtime(std::vector<RuntimeVariant> variants, std::vector<const Program*> programs,
          const RuntimeOptions& options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Runs one round. Errors of a stage carry the frame "while stage S ran INSTRUCTION".
  RoundResult run(const Program& program, UnitSource& source);

  int stages() const { return static_cast<int>(stages_.size()); }
  const ArenaBytes& memory(int stage) const {
    return stages_[static_cast<std::size_t>(stage)]->memory();
  }
  /// A parameter or running statistic by name; an empty tensor when no stage holds it.
  HostTensor read(const std::string& name) const;
  void write(const std::string& name, const HostTensor& value);
  /// Names the first weight or gradient that is not finite, with its stage; empty when all are.
  std::string first_nonfinite() const;

 private:
  struct Worker;
  void work(int device);
  void execute(Worker& worker, const Instruction& instruction);
  bool rehearse(const Instruction& instruction) const;
  void sync_gradients(Worker& worker);
  StageUnit& unit_of(const Instruction& instruction);
  void start_unit(const Instruction& instruction, StageUnit& unit);
  Channel& channel(const ValueEdge& edge) const;
  void receive_all(Worker& worker, const Instruction& instruction, StageUnit& unit, bool gradient);
  void wait_handed_on(Worker& worker, const Instruction& instruction, bool gradient, int entries);
  void release_all(const Instruction& instruction);
  int copy_of(int stage, int version) const;
  void fail(int device, std::exception_ptr error);
  /// What everybody waits for; empty while somebody computes.
  std::string describe_hang() const;

  RuntimeOptions options_;
  std::vector<RuntimeVariant> variants_;
  std::vector<std::unique_ptr<Slices>> slices_;
  struct Link {
    int from, to;
    bool gradient;
    Channel* channel;
  };
  std::vector<Link> links_;  // every pair of stages between which some variant hands values
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<StageCapacity> capacity_;
  std::vector<std::unique_ptr<Channel>> channels_;  // as links_
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Barrier> barrier_;

  // The round in progress.
  const Program* program_ = nullptr;
  UnitSource* source_ = nullptr;
  std::vector<std::vector<StageUnit>> units_;  // [stage][unit]
  std::vector<RoundUnit*> round_units_;
  std::vector<int> base_version_;  // [stage]: copy that holds version 0 of the round
  std::vector<char>
      accumulating_;  // [stage]: a unit of this step has already written the gradients
  std::vector<double> squared_norms_;
  double gradient_norm_ = 0;
  double round_start_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  int round_ = 0;
  int running_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::atomic<std::uint64_t> progress_{0};
};

}  // namespace pipetrain
