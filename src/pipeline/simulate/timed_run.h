// Simulates the lists of a program. Lanes are in order, so no event queue is needed: a device runs
// until it waits for another one. A round is one pass over the instructions, and memory grows with
// the micro-batches, not with the instructions. Where devices share cores, those whose inputs are
// there ask for one, and the one that can start first runs an instruction.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "pipeline/program/program.h"
#include "pipeline/simulate/simulate.h"

namespace pipetrain {

class TimedRun {
 public:
  /// Receives the time of every instruction except buffered receives, in list order per device.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void ran(std::size_t device, std::size_t index, double start, double end) = 0;
    /// A bucket of gradients has been summed.
    virtual void summed(const BucketEvent&) {}
  };

  /// `costs` must fit the program; both must outlive the run.
  TimedRun(const Program& program, const Costs& costs);

  /// Runs one round; every lane starts where the last round left it. Throws Error(kInternal) if it
  /// can never finish.
  void run(Observer* observer = nullptr);
  /// Between two rounds: the devices of a process go on when it knows the results of all others.
  void exchange_results();
  /// Puts all lanes back to 0.
  void restart();
  /// Applies this jitter sample to all following instructions.
  void set_jitter(const Jitter& jitter, std::uint64_t sample);

  /// Ends of all lanes: compute of each device, then both ends of each channel.
  std::vector<double> lane_ends() const;
  /// The latest of these ends.
  double end() const;
  /// When a transfer arrived in the last round.
  double arrival(const Transfer& transfer) const {
    return ready_[arrival_key(index(transfer.edge), transfer.micro_batch)];
  }

 private:
  struct Channel {
    double sent = 0;     // end of the last send
    double arrived = 0;  // arrival of the last receive
  };

  static std::size_t index(int number) { return static_cast<std::size_t>(number); }
  std::size_t micro_batch_key(std::size_t row, int micro_batch) const {
    return row * index(program_.micro_batches) + index(micro_batch);
  }
  std::size_t made_key(int stage, int micro_batch, bool gradient) const {
    return micro_batch_key(2 * index(stage) + (gradient ? 1 : 0), micro_batch);
  }
  std::size_t arrival_key(std::size_t edge, int micro_batch) const {
    return micro_batch_key(2 * index(program_.stages) + edge, micro_batch);
  }

  void make_channels();
  Channel& channel(const Transfer& transfer);

  double micro_batch_scale(int micro_batch) const {
    return costs_.micro_batch_scale.empty() || micro_batch < 0
               ? 1.0
               : costs_.micro_batch_scale[index(micro_batch)];
  }
  const LinkCost& link(std::size_t edge) const {
    return costs_.edge_link.empty() ? costs_.link : costs_.edge_link[edge];
  }
  double wire_seconds(std::size_t edge, int micro_batch) const {
    return static_cast<double>(program_.edges[edge].bytes_per_micro_batch) *
           micro_batch_scale(micro_batch) / link(edge).bytes_per_second;
  }
  double stage_seconds(const Instruction& instruction) const;
  /// The jitter's factor for an instruction.
  double stretch(std::size_t device, double sigma) const;

  /// Runs the head of a device's list; false if it must wait.
  bool step(std::size_t device);
  bool run_compute(std::size_t device, const Instruction& instruction);
  bool ask_for_core(std::size_t device, const Instruction& instruction);
  bool run_on_core();
  /// What a send on a core costs the sender: waking the receiver, if it sleeps.
  double notify(std::size_t device, std::size_t receiver, double seconds) const;
  bool run_send(std::size_t device, const Instruction& instruction);
  bool run_rendezvous(std::size_t device, const Instruction& instruction);
  bool run_collective(std::size_t device, const Instruction& instruction);
  /// Moves `start` to when all inputs are there; false if one is not known yet.
  bool await_inputs(std::size_t device, const Instruction& instruction, double& start);
  bool await(std::size_t device, std::size_t key, double delay, double& start);
  /// Marks the head of a device's list as done.
  void finish(std::size_t device, double start, double end);
  void set_ready(std::size_t key, double seconds, int reader);
  void made(const Instruction& instruction, bool gradient, double seconds);
  void wake(std::size_t device);

  /// A core: the device that ran last, until when, and since when without a break.
  struct Core {
    std::size_t device = kNothing;
    double since = 0;
    double free = 0;
  };
  struct Start {
    std::size_t device = kNothing;
    std::size_t core = 0;
    double seconds = 0;
    bool goes_on = false;  // it neither slept nor left its core
  };
  Start start_on_core(std::size_t device) const;
  bool is_idle(std::size_t core, std::size_t without, double seconds) const;
  /// The core that a device gets when it is woken.
  std::size_t core_for(std::size_t device, double seconds) const;

  static constexpr std::size_t kNothing = static_cast<std::size_t>(-1);

  const Program& program_;
  const Costs& costs_;
  const bool rendezvous_;
  Jitter jitter_{0, 0, 0, 0};
  std::uint64_t sample_ = 0;
  Observer* observer_ = nullptr;

  std::vector<std::vector<std::size_t>> inputs_;   // edges that (stage, gradient) reads
  std::vector<std::vector<std::size_t>> outputs_;  // edges that read (stage, gradient)
  std::vector<std::size_t> first_pair_;            // [edges], into channel_of_
  std::vector<int> channel_of_;                    // (edge, sending replica, receiving replica)
  std::vector<Channel> channels_;

  std::vector<Core> cores_;           // empty: not shared
  std::vector<std::size_t> core_of_;  // [devices], the core of each
  std::vector<bool> placed_;          // [devices], whether that is the core it asks for
  std::vector<std::size_t> asking_;   // devices that could go on, in the order in which they asked

  std::vector<double> free_;                     // [devices], end of the compute lane
  std::vector<std::pair<double, double>> adds_;  // [devices], the last backward that adds gradients
  std::vector<std::size_t> next_;                // [devices]
  std::vector<double> ready_;       // when it was produced, then when it arrived; -1: not yet
  std::vector<std::size_t> await_;  // [devices], the key of ready_ that it waits for
  std::vector<int> met_;            // [stages + 1], devices at the stage's reduce; at the sync
  std::vector<std::size_t> awake_;  // devices that may go on
  std::vector<bool> asleep_;        // [devices], waits for another one
};

}  // namespace pipetrain
