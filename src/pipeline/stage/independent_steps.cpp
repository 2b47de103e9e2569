// Finds the steps of a list that may run in any order, from the memory that they read and write.
#include <algorithm>

#include "pipeline/stage/compiled_stage.h"

namespace pipetrain {
namespace {

/// Memory that a step reads or writes.
struct Range {
  Space space;
  std::size_t begin, end;
  bool meets(const Range& other) const {
    return space == other.space && begin < other.end && other.begin < end;
  }
};

Range range_of(const Location& at, const TensorType& type) {
  switch (at.space) {
    case Space::kAbsent:
      return {at.space, 0, 0};
    case Space::kConstant:
    case Space::kState:
    case Space::kTable:
    case Space::kAccumulator:
      return {at.space, at.offset, at.offset + 1};  // an index
    default:
      return {at.space, at.offset, at.offset + type.bytes()};
  }
}

/// `adding`: what goes into accumulators goes there only.
std::vector<Range> ranges(const std::vector<Location>& at, const std::vector<int>& direct,
                          const std::vector<Tensor>& tensors, bool adding) {
  std::vector<Range> out;
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (direct[i] < 0 || !adding) out.push_back(range_of(at[i], tensors[i].type));
    if (direct[i] >= 0)
      out.push_back(range_of({Space::kAccumulator, static_cast<std::size_t>(direct[i])}, {}));
  }
  return out;
}

bool meet(const std::vector<Range>& a, const std::vector<Range>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Range& one) {
    return std::any_of(b.begin(), b.end(), [&](const Range& two) { return one.meets(two); });
  });
}

/// Whether other lists of the stage do not touch it, or add to it in a fixed order.
bool stays(const Range& range) {
  return range.space == Space::kAbsent || range.space == Space::kConstant ||
         range.space == Space::kParameter || range.space == Space::kPrepared ||
         range.space == Space::kAccumulator || range.space == Space::kBatched;
}

}  // namespace

void put_independent_last(std::vector<StageStep>& steps, bool beside_others) {
  std::vector<std::vector<Range>> reads, writes;
  for (const StageStep& step : steps) {
    reads.push_back(ranges(step.in_at, step.in_direct, step.in, false));
    writes.push_back(
        ranges(step.out_at, step.out_direct, step.out, /*adding=*/step.adding != nullptr));
    for (const StageStepAddition& addition : step.additions)
      writes.back().push_back(
          range_of({Space::kAccumulator, static_cast<std::size_t>(addition.accumulation)}, {}));
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i].independent =
        !beside_others || (std::all_of(reads[i].begin(), reads[i].end(), stays) &&
                           std::all_of(writes[i].begin(), writes[i].end(), stays));
    for (std::size_t j = 0; j < steps.size() && steps[i].independent; ++j) {
      steps[i].independent = i == j || !(meet(writes[i], reads[j]) || meet(writes[i], writes[j]) ||
                                         meet(reads[i], writes[j]));
    }
  }
  std::stable_partition(steps.begin(), steps.end(),
                        [](const StageStep& step) { return !step.independent; });
}

}  // namespace pipetrain
