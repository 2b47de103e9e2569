// The journal of a run: a line for every step with the bits of its loss and, after a step that was
// verified, a hash of the weights. Two runs that should be the same are compared by it.
//
//   # step, bits of the loss, SHA-256 of the weights
//   1 40022ba3c0000000
//   2 4001f86a20000000 9f2c…
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "train/trainer.h"

namespace pipetrain {

class Journal {
 public:
  /// `append`: after the steps of the resumed run. Error (kResource) when the file cannot be
  /// opened.
  Journal(const std::filesystem::path& path, bool append);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  void step(const StepReport& report);

 private:
  int descriptor_ = -1;
};

struct JournalStep {
  std::uint64_t loss_bits = 0;
  std::string weights;  // hash; empty: not verified
};

struct JournalContent {
  std::map<std::int64_t, JournalStep> steps;  // the last line of each
  /// The first step that was computed again after a restart with another result; 0: none.
  std::int64_t contradicted = 0;
};

/// Reads the journal of a run's folder. A last line that is cut off is left out. Error (kUsage)
/// when there is none, (kData) that names a damaged line.
JournalContent read_journal(const std::filesystem::path& folder);

/// The step of the last line that is whole; 0: none.
std::int64_t last_step_in_journal(const std::filesystem::path& folder);

/// The first step of both in which they differ, and how; step 0: none.
struct JournalDifference {
  std::int64_t step = 0;
  bool in_weights = false;    // else in the loss
  std::int64_t compared = 0;  // steps that both have
};
JournalDifference first_difference(const JournalContent& a, const JournalContent& b);

}  // namespace pipetrain
