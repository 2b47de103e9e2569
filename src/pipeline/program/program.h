// A schedule as plain data: an ordered list of instructions for every device. Generators write it,
// passes complete it, the checker proves it, the simulator times it and the runtime interprets it;
// none of them depends on the name of a schedule. A micro-batch is what one forward pass takes. A
// round is one run of a program: one step with rule kSync; with the asynchronous rules as many
// steps as run without a drain in between.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipetrain {

/// What one instruction does. Backward is BackwardInput and BackwardWeight in one.
enum class Kind : std::uint8_t {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kRecompute,     // run the forward again before the backward: the stage kept its inputs only
  kSend,          // send one transfer
  kReceive,       // receive one transfer
  kReduce,        // sum of the gradients over the replicas of a stage, in replica order
  kGradientSync,  // all devices together: tied weights, global gradient norm
  kUpdate,        // the optimizer's step of one stage, on each of its replicas
};

/// When weights change, and which of them a micro-batch reads. A stage adds the gradients of a
/// group of consecutive micro-batches and then updates; with g the group of a micro-batch, forward
/// and backward read
enum class UpdateRule : std::uint8_t {
  kNone,      // evaluation: the weights never change
  kSync,      // version 0: the whole round is one group, its update ends the round
  kStash,     // each stage: its latest at the micro-batch's forward (PipeDream's weight stashing)
  kVertical,  // the latest of stage 0 at the micro-batch's forward there, on every stage
  kDoubleBuffer,  // max(0, g - 1) on every stage (PipeDream-2BW)
};

/// One step of one device. Fields that a kind does not use are -1.
struct Instruction {
  Kind kind = Kind::kForward;
  /// Virtual stage: the sender's for a send, the receiver's for a receive; -1 for a gradient sync.
  int stage = -1;
  /// Micro-batch of the round (mini-batch where the rule is kStash or kVertical). Reduces and
  /// updates: the last micro-batch of their group; -1 where the rule is kSync.
  int micro_batch = -1;
  /// Sends and receives: index into Program::transfers.
  int transfer = -1;
  /// Weights that a compute instruction reads or an update makes; a program starts at version 0.
  int version = -1;
  /// Compute: activation slot of the stage. Receive: receive buffer of the edge.
  int slot = -1;

  bool operator==(const Instruction&) const = default;
};

/// What one stage sends to another for every micro-batch: activations to a later stage, or
/// gradients back. A skip connection is a separate edge; no stage relays values.
struct Edge {
  int from_stage = 0;
  int to_stage = 0;
  std::int64_t bytes_per_micro_batch = 0;
  bool gradient = false;

  bool operator==(const Edge&) const = default;
};

/// One micro-batch on one edge between two devices.
struct Transfer {
  int edge = -1;  // index into Program::edges
  int from_stage = 0;
  int to_stage = 0;
  int from_device = 0;
  int to_device = 0;
  int micro_batch = 0;
  bool gradient = false;

  bool operator==(const Transfer&) const = default;
};

/// The instructions of one round.
struct Program {
  std::string schedule;
  UpdateRule rule = UpdateRule::kNone;
  int stages = 0;
  int devices = 0;
  int micro_batches = 0;
  bool gradient_sync = false;        // a kGradientSync on each device before its updates
  int micro_batches_per_update = 1;  // kDoubleBuffer: micro-batches in a group
  /// [stages][replicas]: the devices that run a stage, each on micro-batches of its own.
  std::vector<std::vector<int>> placement;
  /// [micro-batches]: replica route[micro-batch] mod replicas runs the micro-batch; empty:
  /// route[micro-batch] = micro-batch, round robin. Bidirectional schedules give each direction a
  /// replica.
  std::vector<int> route;
  std::vector<bool> recompute;  // [stages]
  std::vector<std::vector<Instruction>> device;

  /// True once sends and receives are in the lists (lower()). Before, an edge is only an ordering.
  bool lowered = false;
  std::vector<Edge> edges;
  /// Sorted by edge, then micro-batch. The lists define the order in which devices execute them.
  std::vector<Transfer> transfers;

  // The following is derived by annotate().

  /// Activation slots of each stage, on each of its replicas. A slot is held from the forward to
  /// the last backward of a micro-batch; with recompute for the forward alone, then from the
  /// recompute to the last backward.
  std::vector<int> slots_per_stage;
  /// Copies of the weights needed at once; version v may live in copy v mod versions_per_stage.
  std::vector<int> versions_per_stage;
  /// Receive buffers of each edge. A buffer is held from its receive to the last compute
  /// instruction of the receiving stage and micro-batch, so it may serve as the saved input of the
  /// backward. A receive that is posted early must wait until the previous user of the buffer is
  /// done.
  std::vector<int> slots_per_edge;

  bool operator==(const Program&) const = default;

  int replicas(int stage) const {
    return static_cast<int>(placement[static_cast<std::size_t>(stage)].size());
  }
  /// Index into placement[stage] of the replica that runs a micro-batch.
  int replica_of(int stage, int micro_batch) const;
  /// The device that runs a micro-batch on a stage.
  int device_of(int stage, int micro_batch) const {
    return placement[static_cast<std::size_t>(stage)]
                    [static_cast<std::size_t>(replica_of(stage, micro_batch))];
  }
  /// Index of the replica of a stage that a device holds; -1 when it holds none.
  int replica_on(int stage, int device) const;
  /// Micro-batches of one update of a stage: all (kSync), one a replica (kStash, kVertical),
  /// micro_batches_per_update (kDoubleBuffer). The last group of a round may be smaller.
  int group_size(int stage) const;
  /// Updates of each stage in the round.
  int updates(int stage) const;
};

/// True where stages update on their own while micro-batches are in flight: kStash, kVertical,
/// kDoubleBuffer.
bool is_asynchronous(UpdateRule rule);
/// True where every micro-batch is a mini-batch of its own: kStash, kVertical.
bool sends_whole_mini_batches(UpdateRule rule);
/// Returns after how many micro-batches all stages are at the same place in their turns again,
/// where stage s has replicas[s]. Stages with which these would be too many to simulate do not
/// count.
int turns_of_replicas(const std::vector<int>& replicas);

/// True for the five kinds that run a stage's network on one micro-batch.
bool is_compute(Kind kind);
/// True for a send or a receive.
bool is_transfer(Kind kind);
/// True where a micro-batch's gradient is added to that of the parameters: kBackward,
/// kBackwardWeight.
bool adds_gradient(Kind kind);

/// Returns the edges of a plain chain: every stage to the next, and the gradient back.
std::vector<Edge> chain_edges(int stages, std::int64_t bytes_per_micro_batch = 0);

/// Returns the short form, as in the text of a schedule: `2F0`, `1B3`, `1I3`, `1W3`, `1R3`
/// (recompute), `1SF3>2` (send the activations of micro-batch 3 to stage 2), `2RF3<1`, `2SB3>1`
/// (gradient), `1RB3<2`, `1A` or `1A3` (reduce), `G` (gradient sync), `1U`, `1U3`.
std::string to_text(const Program& program, const Instruction& instruction);
std::string to_text(UpdateRule rule);

}  // namespace pipetrain
