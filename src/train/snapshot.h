// The newest state of a run in memory that outlives its process: what a restart resumes from.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "train/checkpoint.h"
#include "train/two_copies.h"

namespace pipetrain {

class Snapshot {
 public:
  /// Takes memory that processes forked later share. Error (kResource) when there is none.
  Snapshot();

  /// Whether the next copy is due: copying takes at most kMostShare of the time.
  bool is_due() const;
  /// Keeps a copy of a state. `seconds`: that collecting it has taken so far. Error (kResource)
  /// when there is not enough memory.
  void keep(const Checkpoint& checkpoint, double seconds);
  /// Gives the memory back: what it has is no longer the newest state.
  void forget() { copies_.forget(); }
  /// The newest copy that is whole and unchanged; empty: there is none.
  std::optional<Checkpoint> newest() const;

  static constexpr double kMostShare = 0.02;

 private:
  TwoCopies copies_;
  std::array<double, 4> costs_;  // of the last copies; infinite: there were not so many
  std::size_t kept_ = 0;
  double due_seconds_ = 0;
};

}  // namespace pipetrain
