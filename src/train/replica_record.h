// What timing has decided in a run whose replicas do not wait for each other: with it, the same
// bits can be computed again (train/replay.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace pipetrain {

/// The samples of one gradient, by their number in the order of the data, and the version of the
/// weights (updates made) that it is computed from.
struct DataPart {
  std::int64_t number = 0, version = 0;
  bool operator==(const DataPart&) const = default;
};

struct ReplicaRecord {
  /// The parts whose gradients were added, update by update; every update has the same number.
  std::vector<DataPart> parts;
  std::vector<double> rates;             // learning rates of the updates
  std::int64_t next_part = 0;            // that no replica has been given yet
  std::vector<std::int64_t> unfinished;  // given to one, without an update so far: rising
  std::string start;                     // checksum of the weights that the run began with
  std::int64_t changed_at = 0;           // step at which other settings changed; 0: never

  bool operator==(const ReplicaRecord&) const = default;
};

/// Whether a run whose updates are `all` has gone through the state of `beginning`.
inline bool goes_on_from(const ReplicaRecord& all, const ReplicaRecord& beginning) {
  const auto begins = [](const auto& longer, const auto& shorter) {
    return longer.size() >= shorter.size() &&
           std::equal(shorter.begin(), shorter.end(), longer.begin());
  };
  return all.start == beginning.start && begins(all.parts, beginning.parts) &&
         begins(all.rates, beginning.rates);
}

}  // namespace pipetrain
