// Which part each replica computes, and whose gradients the next update adds, where replicas do not
// wait for each other. No threads and no tensors: timing comes in as the order of the calls.
//
//   kAsync with staleness 2; "3/1" is part 3, computed from version 1; the third replica is slow
//
//     replica 0   0/0 ↓  3/1 ───────── waits ──────────── ↓
//     replica 1   1/0 ──── ↓  4/2 ──── waits ──────────────── ↓
//     replica 2   2/0 ───────────────────────────────── ↓  5/3
//     version     0    1    2                            3  4  5
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "train/config.h"
#include "train/replica_record.h"

namespace pipetrain {

class ReplicaTurns {
 public:
  /// Where a run is between two updates, and what a checkpoint keeps.
  struct Position {
    std::int64_t version = 0;
    std::int64_t next_part = 0;            // that nobody has been given yet
    std::vector<std::int64_t> unfinished;  // given before, without an update: rising
  };
  /// `how` has all numbers resolved. The run ends at version `last`. Unfinished parts are given out
  /// again, first.
  ReplicaTurns(const ReplicaUpdates& how, const Position& start, std::int64_t last);

  /// The part that an idle replica is to compute next, from the newest weights. None: it has no
  /// turn before the next update.
  std::optional<DataPart> give_out(int replica);
  /// The replica has computed its part. False: the gradient is late and is discarded.
  bool hand_in(int replica);
  /// update() makes the next update if it is possible now, and returns the replicas whose gradients
  /// it adds, with their parts, in the order of the parts. Call it until it returns nothing.
  struct Contribution {
    int replica = 0;
    DataPart part;
  };
  std::vector<Contribution> update();

  std::int64_t version() const { return position_.version; }
  Position position() const;

 private:
  enum class State : std::uint8_t { kIdle, kComputes, kWaits };
  struct Replica {
    State state = State::kIdle;
    DataPart part;
    std::int64_t arrived = 0;  // which gradient in the order of arrival
  };
  bool is_open(const Replica& replica) const {
    return replica.state == State::kComputes || replica.state == State::kWaits;
  }
  bool may_update(const Replica& replica) const;
  std::vector<int> next_contributions() const;

  ReplicaUpdates how_;
  std::int64_t last_;
  Position position_;  // of `unfinished` those that have not been given out again
  std::vector<Replica> replicas_;
  std::int64_t arrivals_ = 0;
};

}  // namespace pipetrain
