// Runs programs: one worker thread per device interprets its instruction list, whatever the
// schedule. The first failure wins, stops every other stage and names where it happened.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "optim/loss_scale.h"
#include "pipeline/program/event.h"
#include "pipeline/program/program.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/stage/stage.h"
#include "pipeline/stage/stage_content.h"
#include "pipeline/transport/channel.h"

namespace pipetrain {

struct ProgramCut;
class Collectives;
class Exchange;
class ProcessGroup;
class RemoteLinks;

struct RuntimeOptions {
  Backend backend = Backend::kCpu;
  /// Which device each of the program's devices is; one may stand here several times. Empty: the
  /// CPU, in host memory. They outlive the runtime.
  std::vector<Device*> devices;
  /// What moves data between devices and adds up gradients over replicas on devices of their own;
  /// null: copies from device to device. Outlives the runtime.
  Collectives* collectives = nullptr;
  /// The processes that run the programs together, each some of the devices; null: this one runs
  /// all. Each has a runtime made from the same. Outlives the runtime.
  ProcessGroup* processes = nullptr;
  std::vector<int> process_of_device;
  /// With processes and devices (null: another process's): which of its process's devices each is.
  std::vector<int> device_numbers;
  int threads = 1;  // OpenMP threads of each stage
  bool pin = true;  // give each stage cores of its own when there are enough
  /// Of all devices that share the cores of this process, with those of other processes: how many
  /// come before its own, and how many there are; 0: its own alone.
  int devices_before = 0, sharing_devices = 0;
  OptimizerSettings optimizer;
  double clip_norm = 0;         // 0: off
  LossScaling loss_scaling;     // one that skips needs programs with a gradient sync
  std::uint64_t seed = 1;       // of dropout masks
  double timeout_seconds = 60;  // without any progress: the watchdog ends the run
  /// Per stage: sleep this long instead of computing. A rehearsal shows what the runtime itself
  /// costs.
  std::vector<StageSeconds> rehearsal;
  double rehearsed_latency_seconds = 0;  // of every link between stages
};

/// One shape at which the network runs. Index 0 is the full micro-batch.
struct RuntimeVariant {
  const TrainingGraph* training = nullptr;
  std::vector<int> stage_of_forward;
};

/// One micro-batch of a round. `columns`: first byte of the micro-batch in each graph input, then
/// the label.
struct MicroBatch {
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
  virtual MicroBatch& acquire(int unit) = 0;
  /// No stage needs the unit's data any more.
  virtual void release(int unit) = 0;
  /// Learning rate of the update that follows a unit (kSync: the round; unit 0), and how many
  /// updates came before a kSync round.
  virtual double learning_rate(int unit) const = 0;
  virtual std::int64_t updates_before() const = 0;
  /// Asynchronous rounds: a replica of a stage has made the update that follows a unit, and version
  /// `version` of its weights with it. Called in the stage's thread, which goes on afterwards.
  virtual void updated(int /*stage*/, int /*replica*/, int /*unit*/, int /*version*/) {}
};

struct RoundResult {
  double seconds = 0;
  double gradient_norm = 0;  // of kSync rounds with clipping or asked for; of the loss unscaled
  double loss_scale = 1;     // that the round's backward passes began with
  bool skipped = false;      // some gradient was not finite: nothing has been changed
  /// As the program's lists; by the devices' own clocks where there are devices. A receive lasts
  /// from when its data leave to when they are there, or when the device that waits for them goes
  /// on.
  std::vector<std::vector<Event>> events;
  std::vector<double>
      busy_seconds;            // per device: in compute instructions, and pieces of them in waits
  double worked_in_waits = 0;  // seconds of all devices for such pieces: events do not have them
  std::vector<double> cpu_seconds;  // per device: CPU time of the worker thread
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
  /// Runs what is left of a round, after restore().
  RoundResult run(const ProgramCut& cut, UnitSource& source);

  int stages() const { return static_cast<int>(stages_.size()); }
  /// Of each replica of a stage.
  const ArenaBytes& memory(int stage) const { return memory_[static_cast<std::size_t>(stage)]; }
  /// Whether other processes run some of the stages. What is called "together" below is then
  /// called by all of them, between rounds, and answered at process 0.
  bool is_shared() const { return options_.processes != nullptr; }
  /// Together: what contents() of every stage gives; elsewhere nothing.
  std::vector<StageContent> contents() const;
  /// A parameter or running statistic by name; an empty tensor when no stage here holds it.
  HostTensor read(const std::string& name) const;
  void write(const std::string& name, const HostTensor& value);
  /// What a stage of this process remembers, between rounds. In an asynchronous round it may be
  /// asked for inside UnitSource::updated(), by the stage that has been updated, with the version
  /// named there.
  StageContent content(int stage, int version = 0) const;
  /// Between rounds: puts the moving averages of all parameters in the place of the weights, and
  /// back.
  void exchange_averages();
  /// What the next round's loss is multiplied with, and how many rounds have been left out. Between
  /// rounds, and inside asynchronous ones.
  const LossScale& loss_scale() const { return loss_scale_; }
  void set_loss_scale(const LossScale& scale) { loss_scale_ = scale; }
  /// Puts back what content() gave, or as much of it as the stage holds, with its numbers of
  /// versions. Between rounds.
  void restore(int stage, const StageContent& content);
  /// The gradient that the last update of a parameter was made with; an empty tensor for a frozen
  /// one.
  HostTensor read_gradient(const std::string& name) const;
  /// What the kernels of every variant have taken since the last call, summed over replicas.
  /// Between rounds.
  std::vector<KernelTimes> take_kernel_times();
  /// Names the first weight or gradient that is not finite, with its stage; empty when all are.
  /// Together, and answered everywhere.
  std::string first_nonfinite() const;

 private:
  struct Worker;
  /// Where a unit's values from another device are received, when nobody copies them.
  struct ReceiveBuffer {
    DeviceMemory memory;
    std::unique_ptr<StreamPoint> free;  // behind the last reader
  };
  /// One replica of a stage.
  struct Copy {
    int device = 0;
    std::vector<std::vector<ReceiveBuffer>> received;  // [links][receive slots of the program]
    std::vector<std::vector<Buffer>> remote;           // the same of what other processes send
    std::unique_ptr<Stage> stage;
    int base_version = 0;       // copy of the weights that holds version 0 of the round
    bool accumulating = false;  // a unit of this step has already written the gradients
    std::int64_t updates = 0;   // made so far: what bias corrections of asynchronous rules count
    int adding_left = 0;        // units still to be added before the next update
    int forwards = 0, backwards = 0;                 // of the round so far
    std::vector<int> forward_entry, gradient_entry;  // unit that holds each entry; -1: none
  };
  /// What two stages hand values over by.
  struct Link {
    int from, to;
    bool gradient;
    std::unique_ptr<Channel> channel;
  };
  /// On devices: when a unit has been written and read, as points of the streams of the stage's
  /// replica that runs it. One of each a unit, so that none is recorded again while others wait.
  struct UnitEvents {
    const Stream* stream = nullptr;
    std::unique_ptr<StreamPoint> forward, gradient, released;
  };
  StreamPoint* record(Worker& worker, const Instruction& instruction,
                      std::unique_ptr<StreamPoint> UnitEvents::*which);
  void work(int device);
  void compile(int device);
  void start_round(const Program& program);
  void find_receives(const Program& program);
  RoundResult run_round(UnitSource& source);
  void execute(Worker& worker, const Instruction& instruction);
  void allocate_received(Copy& copy, int stage);
  void offer_receive(Worker& worker, const Instruction& instruction);
  void receive_exchanged(Worker& worker, const ValueEdge& edge, StageMicroBatch& unit, Copy& copy,
                         int number);
  ReceiveBuffer& buffer_of(Copy& copy, const ValueEdge& edge, int slot);
  void free_received(Worker& worker, const Instruction& instruction, Copy& copy);
  int operation_of(const ValueEdge& edge, int unit) const;
  bool is_exchanged(int from, int to, int unit) const;
  int program_edge(int from, int to, bool gradient) const;
  void run_forward(Worker& worker, const Instruction& instruction, Copy& copy);
  void run_backward(Worker& worker, const Instruction& instruction, Copy& copy);
  void settle_gradients(int device);
  void run_reduce(Worker& worker, const Instruction& instruction, Copy& copy);
  void run_update(const Instruction& instruction, Copy& copy);
  bool rehearse(const Instruction& instruction, double start) const;
  void sync_gradients(Worker& worker);
  StageMicroBatch& unit_of(const Instruction& instruction);
  void start_unit(const Instruction& instruction, StageMicroBatch& unit, const Copy& copy);
  void send(Worker& worker, const Instruction& instruction, bool gradient, const std::byte* base);
  void receive_all(Worker& worker, const Instruction& instruction, StageMicroBatch& unit,
                   Copy& copy, bool gradient);
  int take_entry(Worker& worker, const Instruction& instruction, bool gradient, int& count,
                 std::vector<int>& holders);
  void work_while(Worker& worker, const std::function<bool()>& over);
  Workspace free_workspace(int device) const;
  void note_receive(Worker& worker, const ValueEdge& edge, int unit, double asked, double there_at);
  void release_all(Worker& worker, const Instruction& instruction, Copy& copy);
  int group_of(const Instruction& instruction) const {
    return std::max(instruction.unit, 0) / program_->group_size(instruction.stage);
  }
  /// Which block of a stage's weights holds a version of the round.
  int block_of(const Copy& copy, int stage, int version) const;
  int units_to_add(int stage, int replica, int group) const;
  Channel& channel(const ValueEdge& edge) const;
  Copy& copy(int stage, int replica) {
    return stages_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(replica)];
  }
  const Copy& copy(int stage, int replica) const {
    return stages_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(replica)];
  }
  /// The replica of a stage that a device holds.
  /// The first replica of a stage that is here; null: none is.
  const Copy* copy_here(int stage) const;
  Copy& copy_on(int stage, int device) { return copy(stage, program_->replica_on(stage, device)); }
  std::vector<Stage*> first_replicas() const;
  void fail(std::exception_ptr error);
  void abort_waits();
  /// What everybody waits for; empty while somebody computes.
  std::string describe_hang() const;
  std::string describe_waits() const;

  // Where other processes run some of the devices (runtime_processes.cpp).
  void connect_processes();
  std::vector<int> exchange_ranks() const;
  std::unique_ptr<ReplicaGroup> group_replicas(int stage, const std::vector<std::size_t>& sizes);
  bool is_here(int device) const;
  int first_device_here() const;
  /// Whether a unit goes from one stage to another by messages between processes.
  bool is_remote(int from, int to, int unit) const;
  void allocate_remote(Copy& copy, int stage);
  void start_remote_round();
  void send_remote(const ValueEdge& edge, const Copy& copy, int variant, int unit,
                   const std::byte* base);
  void exchange_tied_gradients();
  void share_norms();
  void share_memory();
  void share_work();
  void share_results(RoundResult& result);
  void finish_with_others(RoundResult& result);

  RuntimeOptions options_;
  std::vector<RuntimeVariant> variants_;
  std::vector<std::unique_ptr<Slices>> slices_;
  std::vector<const Program*> programs_;
  std::vector<StageCapacity> capacity_;
  std::vector<std::unique_ptr<Worker>> workers_;       // outlive the stages in their streams
  std::vector<std::vector<Copy>> stages_;              // [stage][replica]
  std::vector<std::unique_ptr<ReplicaGroup>> groups_;  // [stage]; null: one replica
  std::vector<Link> links_;         // every pair of stages between which some variant hands values
  std::vector<ArenaBytes> memory_;  // [stage]
  LossScale loss_scale_;
  std::unique_ptr<Barrier> barrier_;
  std::unique_ptr<Exchange> exchange_;       // null: copies
  std::unique_ptr<SharedWork> shared_work_;  // null: devices that wait do nothing else

  // The round in progress.
  const Program* program_ = nullptr;
  const ProgramCut* cut_ = nullptr;  // where it was taken up again; null: at its beginning
  UnitSource* source_ = nullptr;
  std::vector<std::vector<StageMicroBatch>> units_;   // [stage][unit]
  std::vector<std::vector<UnitEvents>> unit_events_;  // [stage][unit]; empty without devices
  std::vector<std::atomic<int>> stages_left_;         // [unit]: stages that still need its data
  std::vector<MicroBatch*> round_units_;
  std::vector<int> receive_index_;               // [edge × unit], in its device's list; -1: none
  std::vector<std::vector<int>> group_version_;  // [stage][group]
  std::vector<double> squared_norms_;
  double gradient_norm_ = 0;
  bool skips_ = false;  // the round's update is left out
  double round_start_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  int round_ = 0;
  int running_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::atomic<std::uint64_t> progress_{0};
  std::unique_ptr<RemoteLinks> remote_;  // null: this process runs all stages. Ends before the rest
};

}  // namespace pipetrain
