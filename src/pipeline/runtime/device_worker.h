// The worker of one device: its thread interprets the device's list of instructions with the stages
// on it. Links transfer values to and from other stages.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/runtime/device_times.h"
#include "pipeline/runtime/last_instructions.h"
#include "pipeline/runtime/process_sharing.h"
#include "pipeline/runtime/round_state.h"
#include "pipeline/runtime/stage_replicas.h"
#include "pipeline/transport/exchange.h"
#include "pipeline/transport/shared_work.h"
#include "pipeline/transport/transport.h"

namespace pipetrain {

class DeviceWorker final : public LinkEnd {
 public:
  // Values of waits_for() that are not device numbers.
  static constexpr int kNobody = DeviceLog::kNobody;
  static constexpr int kFinished = DeviceLog::kFinished;
  static constexpr int kEverybody = DeviceLog::kEverybody;
  static constexpr int kData = DeviceLog::kData;

  DeviceWorker(int device, const RuntimeSetup& setup, StageReplicas& replicas, RoundState& round,
               ProcessSharing& sharing, Transport& transport)
      : device_(device),
        setup_(setup),
        replicas_(replicas),
        round_(round),
        sharing_(sharing),
        transport_(transport),
        log_(log_of_device(setup.options.first_log + device)) {}

  // In its thread.

  /// Makes the device's streams, if it is not the CPU, and compiles its stages.
  void compile();
  /// Runs the device's list of the round. `progress` is raised with each instruction. Errors carry
  /// the frame "while stage S ran INSTRUCTION"; throws ChannelAborted when another device failed.
  void run_list(std::atomic<std::uint64_t>& progress);
  /// After the list or its failure: nothing uses the stages' memory any more.
  void end_list();
  /// Waits for the device.
  void synchronize() const;

  // Between rounds.

  void start_round();
  /// As the device's list.
  const std::vector<Event>& events() const { return events_; }
  double busy_seconds() const;  // in compute instructions, and in tasks run while waiting
  double stolen_seconds() const { return stolen_seconds_; }  // seconds
  double cpu_seconds() const { return cpu_seconds_; }        // of the thread
  const std::vector<SentValues>& noted() const { return noted_; }

  // At any time.

  /// A device, or one of the above.
  int waits_for() const { return waits_for_.load(); }
  double waits_since() const { return waits_since_.load(); }
  /// The current instruction as text, for error messages.
  std::string describe_place() const;

  // As the end of links.

  int device() const override { return device_; }
  Stream* stream() const override { return compute_.get(); }
  std::vector<ExchangedSpan> sent(int edge, int micro_batch, const std::byte* base) const override;
  std::size_t buffer_bytes(int edge) const override;
  std::vector<ExchangedSpan> received(int edge, int micro_batch, std::byte* buffer) const override;
  void read_buffer(int edge, int micro_batch, std::byte* buffer) override;
  void read_sent(int edge, int micro_batch, const std::byte* base,
                 const StreamPoint* written) override;

 private:
  /// Records what the worker waits for while this object exists.
  class Wait;

  void wait_for(int whom);

  // Instructions.
  void look_for_end(int micro_batch);
  bool is_over(const Instruction& instruction);
  void end_early();
  void execute(const Instruction& instruction);
  void run_stage(const Instruction& instruction);
  void run_forward(const Instruction& instruction, StageReplica& replica);
  void run_backward(const Instruction& instruction, StageReplica& replica);
  bool flush_gradients();
  void run_reduce(const Instruction& instruction, StageReplica& replica);
  void run_update(const Instruction& instruction, StageReplica& replica);
  bool emulate(const Instruction& instruction, double start) const;
  void sync_gradients();
  void add_up_norms();
  void begin_work();
  void end_work() const;
  Event& event() { return events_[at(at_.load(std::memory_order_relaxed))]; }

  // Transfers of its stages (device_worker_links.cpp).
  bool reaches(int edge, int micro_batch) const;
  void start_micro_batch(const Instruction& instruction, const StageReplica& replica);
  StreamPoint* record(const Instruction& instruction,
                      std::unique_ptr<StreamPoint> RoundState::MicroBatchEvents::*which);
  void send(const Instruction& instruction, bool gradient, const std::byte* base);
  void wake(int stage, int micro_batch, SharedWork::Notice what);
  void note_send(int edge, int micro_batch, const std::byte* base);
  void send_nothing(const Instruction& instruction);
  void expect(const Instruction& instruction);
  void receive_all(const Instruction& instruction, bool gradient);
  void note_receive(int edge, int micro_batch, double asked, double there_at);
  int take_entry(const Instruction& instruction, bool gradient, int& count,
                 std::vector<int>& holders);
  void release_all(const Instruction& instruction, const StageReplica& replica);
  void work_until(const std::function<bool()>& over, SharedWork::Notice what);

  // Values that are not finite (device_worker_nonfinite.cpp).
  void look_at_sent(const Instruction& instruction, StageReplica& replica, const std::byte* base);
  void look_at_loss(const Instruction& instruction, StageReplica& replica, double loss_sum);
  void look_at_gradients(const Instruction& instruction, StageReplica& replica, bool flushed);
  void look_at_deferred(StageReplica& replica, int stage);
  bool find_nonfinite(const Instruction& instruction, StageReplica& replica, bool backward);

  const int device_;
  const RuntimeSetup& setup_;
  StageReplicas& replicas_;
  RoundState& round_;
  ProcessSharing& sharing_;
  Transport& transport_;
  std::unique_ptr<Stream> compute_, transfer_;  // null: the CPU
  std::unique_ptr<DeviceTimes> times_;          // of the compute stream
  std::vector<Event> events_;
  std::vector<SentValues> noted_;  // with RoundState::notes_sends
  double cpu_began_ = 0, cpu_seconds_ = 0;
  double stolen_seconds_ = 0;
  std::uint64_t step_ = 0;                 // of the last backward pass
  int decided_ = 0;                        // micro-batches that the round has in any case, and …
  const ProgramCut* early_end_ = nullptr;  // … where it ends instead; null: not known to end early
  std::atomic<int> at_{-1};                // index of the instruction in progress
  std::atomic<int> waits_for_{kNobody};
  std::atomic<double> waits_since_{0};
  DeviceLog& log_;
};

class DeviceWorker::Wait {
 public:
  Wait(DeviceWorker& worker, int device) : worker_(worker) { worker_.wait_for(device); }
  ~Wait() { worker_.wait_for(kNobody); }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

 private:
  DeviceWorker& worker_;
};

}  // namespace pipetrain
