// Explains why a measured round took longer than predicted: attributes the difference to causes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pipeline/program/program.h"
#include "pipeline/simulate/timeline.h"

namespace pipetrain {

enum class CauseKind : std::uint8_t {
  kInstruction,  // a stage's forwards (backwards, …, updates) take longer
  kReceive,      // data take longer from the stage that made them to the one that reads them
  kCollective,   // gradient sync or reduce
  kBetween,      // from one instruction of a device to the next, with nothing left to wait for
  kStartUp,      // before the first instruction of a device
  kEnd,          // after the last instruction, until the step counts as done
  kOther,        // what the model of the step does not explain
};

/// "instruction", "receive", "collective", "between", "start-up", "end", "other".
const char* to_text(CauseKind kind);

struct DifferenceCause {
  CauseKind kind = CauseKind::kOther;
  Kind instruction = Kind::kForward;  // kInstruction, kCollective
  // -1 in what follows: all of them together.
  int stage = -1;       // kInstruction; kReceive: the stage that reads
  int from_stage = -1;  // kReceive
  int device = -1;      // kBetween, kStartUp
  /// What it adds to the step; negative: saves.
  double seconds = 0;
  /// Means over the round; 0 where they have no meaning.
  double predicted_mean = 0, measured_mean = 0;

  /// A sentence without the seconds: "stage 2 backward 4.4 % slower (21.3 ms, predicted 20.4 ms)".
  std::string text() const;
};

struct StepDifference {
  double predicted_seconds = 0, measured_seconds = 0;
  double predicted_bubble = 0, measured_bubble = 0;
  std::optional<double> theoretical_bubble;
  /// overlapped_share() of the buckets of gradients; none: there are none.
  std::optional<double> predicted_overlap, measured_overlap;
  /// Largest first, either sign; the sum of seconds is measured_seconds - predicted_seconds.
  std::vector<DifferenceCause> causes;
  int steps = 1;  // that this is the mean of

  double seconds() const { return measured_seconds - predicted_seconds; }
};

/// The buckets of gradients of both timings.
struct BucketsOfSides {
  std::span<const BucketEvent> predicted = {}, measured = {};
};

/// Explains the difference between two timings of one program. Both are read as delays in the same
/// graph: each instruction starts some time after the previous one of its device and after its
/// inputs were made. The delays are moved from predicted to measured along a straight line, and the
/// change of a delay counts while the delay is on the critical path (Aumann-Shapley attribution),
/// so the shares sum to the difference and do not depend on an order of the causes.
/// `measured_step_seconds`: duration of the whole step, if known; 0: that of its instructions.
/// Throws Error(kInternal) if the events are not those of the program.
StepDifference explain(const Program& program, const Events& predicted, const Events& measured,
                       double measured_step_seconds = 0, const BucketsOfSides& buckets = {});

/// The mean of several steps, cause by cause. Throws Error(kInternal) for none.
StepDifference mean_of(std::span<const StepDifference> differences);

/// Merges causes that differ only by stage or device.
std::vector<DifferenceCause> by_kind(const std::vector<DifferenceCause>& causes);

/// Returns for example
///
///     predicted step 364 ms, measured 371 ms: +6.40 ms (+1.8 %)
///     bubble by theory 27.3 %, predicted 31.4 %, measured 32.0 %
///       +4.10 ms  stage 2 backward 4.4 % slower (21.3 ms, predicted 20.4 ms)
///       +1.20 ms  between the instructions of device 0
///       +1.10 ms  the rest
///
/// Where the largest causes are less than half of the difference, as with many stages that are all
/// a little slower, causes of one kind are put together: "backwards of all stages 4.4 % slower".
std::string difference_text(const StepDifference& difference, int most_causes = 5);

}  // namespace pipetrain
