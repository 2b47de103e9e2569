// What the planner needs to know about a schedule: how many micro-batches and weight versions a
// stage holds. Schedules are in a higher layer and pass this rule down as a value.
#pragma once

#include <optional>
#include <string>

namespace pipetrain {

/// How many micro-batches and weight versions a stage holds at most.
struct ScheduleLoad {
  int in_flight = 1;
  int weight_versions = 1;
};

/// Copies of the weights that a stage keeps.
enum class WeightCopies : unsigned char {
  kOne,            // all stages wait for the last micro-batch of a mini-batch, then update
  kPerMicroBatch,  // one for each micro-batch in flight; updates follow each micro-batch
  kTwo,            // the latest and the one before, also of a stage alone
};

/// The closed form of a schedule that runs a chain of stages: a stage holds `times` * length +
/// `more` micro-batches, and where all stages wait for the end of a mini-batch no more than its
/// share of that. A stage with r replicas behaves as r devices in a row of the plain schedule, each
/// of which holds every r-th of these micro-batches (1F1B round-robin of PipeDream).
struct MemoryRule {
  enum class Length : unsigned char {
    kMiniBatch,  // all micro-batches of a mini-batch
    kFromHere,   // devices from the stage to the end of the pipeline
    kPipeline,   // all devices
  };

  Length length = Length::kFromHere;
  int times = 1;
  int more = 0;  // may be negative, but the sum is at least 1 for every length from 1 on
  WeightCopies copies = WeightCopies::kOne;

  bool operator==(const MemoryRule&) const = default;
};

/// A schedule for the planner; pipeline/schedule/generate.h fills it in by name. By itself it is
/// 1f1b.
struct PlannedSchedule {
  std::string name = "1f1b";
  /// Nothing: no closed form is known. What each stage holds must then be given
  /// (PlanRequest::loads).
  std::optional<MemoryRule> memory = MemoryRule{};
  /// A mini-batch goes through the stages as one micro-batch and cannot be cut.
  bool whole_mini_batches = false;
  /// Written for its own numbers of devices and micro-batches.
  bool is_file = false;
};

/// What stage `stage` of `stages`, one device each, holds by a rule.
ScheduleLoad schedule_load(const MemoryRule& rule, int stage, int stages, int micro_batches);

}  // namespace pipetrain
