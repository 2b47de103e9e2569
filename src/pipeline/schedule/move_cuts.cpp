#include "pipeline/schedule/move_cuts.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/index.h"
#include "base/units.h"

namespace pipetrain {
namespace {

constexpr double kMostInstructions = 4e6;  // that are simulated
constexpr int kMostRounds = 4000;
constexpr double kLeastGain = 0.01;       // of the whole search
constexpr double kLeastMoveGain = 0.001;  // of a move
constexpr int kDistances[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

/// Simulates a program with different cuts.
class RoundTimer {
 public:
  /// `speeds`: of the stages, as the plan counts them; empty: all 1.
  RoundTimer(const ChainCosts& chain, std::vector<double> speeds, Program program, Costs costs)
      : chain_(chain),
        speeds_(std::move(speeds)),
        program_(std::move(program)),
        costs_(std::move(costs)),
        before_(1) {
    for (const ChainCost& element : chain.elements) {
      Sums sums = before_.back();
      sums.forward += element.forward_seconds;
      sums.input += element.input_gradient_seconds;
      sums.weight += element.weight_gradient_seconds;
      sums.step += element.step_seconds;
      before_.push_back(sums);
    }
    std::size_t instructions = 1;
    for (const auto& list : program_.device) instructions += list.size();
    rounds_left_ = static_cast<int>(
        std::min<double>(kMostRounds, kMostInstructions / static_cast<double>(instructions)));
  }

  int rounds_left() const { return rounds_left_; }

  double seconds(const std::vector<int>& cuts) {
    --rounds_left_;
    for (std::size_t s = 0; s < costs_.stage.size(); ++s) {
      const Sums& begin = before_[s == 0 ? 0 : at(cuts[s - 1])];
      const Sums& end = s == cuts.size() ? before_.back() : before_[at(cuts[s])];
      StageSeconds& stage = costs_.stage[s];
      const double speed = s < speeds_.size() ? speeds_[s] : 1;
      stage.forward = stage.recompute = (end.forward - begin.forward) / speed;
      stage.backward_input = (end.input - begin.input) / speed;
      stage.backward_weight = (end.weight - begin.weight) / speed;
      stage.backward = stage.backward_input + stage.backward_weight;
      stage.update = (end.step - begin.step) / speed;
    }
    for (Edge& edge : program_.edges) {
      const auto cut = at(cuts[at(std::min(edge.from_stage, edge.to_stage))]);
      edge.bytes_per_micro_batch = static_cast<std::int64_t>(
          edge.gradient ? chain_.backward_bytes[cut] : chain_.forward_bytes[cut]);
    }
    return simulate(program_, costs_, {.keep_events = false, .rounds = 1}).makespan;
  }

 private:
  struct Sums {
    double forward = 0, input = 0, weight = 0, step = 0;
  };
  const ChainCosts& chain_;
  std::vector<double> speeds_;
  Program program_;
  Costs costs_;
  std::vector<Sums> before_;  // of the elements before
  int rounds_left_;
};

/// Cuts [first, last] moved by a distance; empty where that leaves a stage without elements.
std::vector<int> moved(std::vector<int> cuts, std::size_t first, std::size_t last, int distance,
                       int elements) {
  for (std::size_t i = first; i <= last; ++i) cuts[i] += distance;
  const int below = first == 0 ? 0 : cuts[first - 1];
  const int above = last + 1 == cuts.size() ? elements : cuts[last + 1];
  if (cuts[first] <= below || cuts[last] >= above) cuts.clear();
  return cuts;
}

/// The plan with these cuts and the recomputes of another; nothing where it does not fit.
std::optional<Plan> plan_like(const Plan& other, const ChainCosts& chain,
                              const PlanRequest& request, const std::vector<int>& cuts) {
  std::vector<Recompute> recompute;
  for (const StagePlan& stage : other.stages)
    recompute.push_back(stage.recompute ? Recompute::kAll : Recompute::kNone);
  try {
    return plan_with_cuts(chain, request, cuts, recompute);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
    return {};
  }
}

}  // namespace

Plan move_cuts(const ChainCosts& chain, const PlanRequest& request, const Plan& plan,
               Program program, Costs costs) {
  const int elements = static_cast<int>(chain.elements.size());
  RoundTimer timer(chain, request.topology.device_speed, std::move(program), std::move(costs));
  std::vector<int> cuts = plan.cuts();
  // Too large to simulate every cut.
  if (timer.rounds_left() <= 2 * static_cast<int>(cuts.size())) return plan;
  const double start = timer.seconds(cuts);
  double least = start;
  Plan best = plan;
  // Applies the best move of cuts [first, last]; returns whether there was one.
  const auto improve = [&](std::size_t first, std::size_t last) {
    std::vector<int> found;
    double seconds = (1 - kLeastMoveGain) * least;
    for (const int distance : kDistances) {
      for (const int by : {-distance, distance}) {
        const std::vector<int> other = moved(cuts, first, last, by, elements);
        if (other.empty() || timer.rounds_left() <= 0) continue;
        const double taken = timer.seconds(other);
        if (taken >= seconds) continue;
        seconds = taken;
        found = other;
      }
    }
    if (found.empty()) return false;
    std::optional<Plan> other = plan_like(plan, chain, request, found);
    if (!other) return false;
    best = std::move(*other);
    cuts = std::move(found);
    least = seconds;
    return true;
  };
  for (bool again = true; again && timer.rounds_left() > 0;) {
    again = false;
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      again |= improve(i, i);
      if (i + 1 < cuts.size()) again |= improve(i, i + 1);
    }
  }
  if (least > (1 - kLeastGain) * start) return plan;
  best.notes = plan.notes;
  best.notes.push_back(fmt::format(
      "cuts chosen for the shortest simulated step, {}; the most balanced cuts would take {}",
      seconds_text(least), seconds_text(start)));
  best.planning_seconds = plan.planning_seconds;
  return best;
}

}  // namespace pipetrain
