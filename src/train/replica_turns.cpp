#include "train/replica_turns.h"

#include <algorithm>

#include "base/error.h"
#include "base/index.h"

namespace pipetrain {

ReplicaTurns::ReplicaTurns(const ReplicaUpdates& how, const Position& start, std::int64_t last)
    : how_(how), last_(last), position_(start), replicas_(at(how.replicas)) {}

std::optional<DataPart> ReplicaTurns::give_out(int replica) {
  Replica& mine = replicas_[at(replica)];
  if (mine.state != State::kIdle || version() == last_) return {};
  std::vector<std::int64_t>& again = position_.unfinished;
  // Every part becomes an update, so that there are as many.
  const bool all_given = how_.mode == ReplicaMode::kAsync && position_.next_part >= last_;
  if (again.empty() && all_given) return {};
  mine.part.version = version();
  if (again.empty()) {
    mine.part.number = position_.next_part++;
  } else {
    mine.part.number = again.front();
    again.erase(again.begin());
  }
  mine.state = State::kComputes;
  return mine.part;
}

bool ReplicaTurns::hand_in(int replica) {
  Replica& mine = replicas_[at(replica)];
  PT_CHECK(mine.state == State::kComputes, kInternal, "replica {} has no part", replica);
  mine.arrived = arrivals_++;
  const bool late = how_.mode == ReplicaMode::kBackup && mine.part.version < version();
  mine.state = late ? State::kIdle : State::kWaits;
  return !late;
}

/// Parts have rising versions and each open one needs an update of its own, the older one first:
/// the i-th before this one comes after this update and i others at the earliest.
bool ReplicaTurns::may_update(const Replica& replica) const {
  std::vector<DataPart> older;
  for (const Replica& other : replicas_) {
    if (is_open(other) && other.part.number < replica.part.number) older.push_back(other.part);
  }
  std::ranges::sort(older, {}, &DataPart::number);
  std::int64_t next = version() + 1;
  return std::ranges::all_of(
      older, [&](const DataPart& part) { return next++ - part.version <= how_.staleness; });
}

std::vector<int> ReplicaTurns::next_contributions() const {
  std::vector<int> waiting;
  for (int r = 0; r < how_.replicas; ++r) {
    if (replicas_[at(r)].state == State::kWaits) waiting.push_back(r);
  }
  std::ranges::sort(waiting, {}, [&](int r) { return replicas_[at(r)].arrived; });
  if (how_.mode == ReplicaMode::kAsync) {
    std::erase_if(waiting, [&](int r) { return !may_update(replicas_[at(r)]); });
  }
  if (waiting.size() < at(how_.gradients())) return {};
  waiting.resize(at(how_.gradients()));
  std::ranges::sort(waiting, {}, [&](int r) { return replicas_[at(r)].part.number; });
  return waiting;
}

std::vector<ReplicaTurns::Contribution> ReplicaTurns::update() {
  std::vector<Contribution> used;
  if (version() == last_) return used;
  for (const int r : next_contributions()) used.push_back({r, replicas_[at(r)].part});
  if (used.empty()) return used;
  ++position_.version;
  for (const Contribution& each : used) replicas_[at(each.replica)].state = State::kIdle;
  for (Replica& replica : replicas_) {
    // Of backup workers: it came after the others.
    if (how_.mode == ReplicaMode::kBackup && replica.state == State::kWaits)
      replica.state = State::kIdle;
  }
  return used;
}

ReplicaTurns::Position ReplicaTurns::position() const {
  Position out = position_;
  for (const Replica& replica : replicas_) {
    if (is_open(replica)) out.unfinished.push_back(replica.part.number);
  }
  std::ranges::sort(out.unfinished);
  return out;
}

}  // namespace pipetrain
