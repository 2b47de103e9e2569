// The newest state of a run in memory that outlives its process: what a restart resumes from. Two
// copies take turns, so that one is whole whenever the process ends.
//
//   steps        1     2     3     4  killed
//   copy 0      [1]         [3]
//   copy 1            [2]         [4, partly]      → resumes behind step 3
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "train/checkpoint.h"

namespace pipetrain {

class Snapshot {
 public:
  /// Takes memory that processes forked later share. Error (kResource) when there is none.
  Snapshot();
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// Whether the next copy is due: copying takes at most kMostShare of the time.
  bool is_due() const;
  /// Keeps a copy of a state. `seconds`: that collecting it has taken so far. Error (kResource)
  /// when there is not enough memory.
  void keep(const Checkpoint& checkpoint, double seconds);
  /// Gives the memory back: what it has is no longer the newest state.
  void forget();
  /// The newest copy that is whole and unchanged; empty: there is none.
  std::optional<Checkpoint> newest() const;

  static constexpr double kMostShare = 0.02;

 private:
  struct Copy {
    int file = -1;  // of memory only
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  static void map(Copy& copy, std::size_t bytes);
  static std::span<const std::byte> content(const Copy& copy);

  std::array<Copy, 2> copies_;
  std::array<double, 4> costs_;  // of the last copies; infinite: there were not so many
  double due_seconds_ = 0;
};

}  // namespace pipetrain
