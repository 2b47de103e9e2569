#include "partition/chain_cut.h"

#include <algorithm>
#include <limits>

namespace pipetrain {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The contribution of a stage to the objective; infinity forbids the stage. `growing` never falls
// when the range grows (its compute time, or the memory itself), so that a row of candidates can
// end early.
struct StageValue {
  double value = kNever;
  double growing = 0;
};

// f[k][a] = least combined value of k stages that cover [a, n), and the first end that reaches it:
//   f[k][a] = min over b of combine(value(a, b, k), f[k-1][b]).
// Both max and + are monotone, so the best suffix is the best for every prefix: the minimum is
// exact.
class ChainDynamicProgram {
 public:
  enum class Combine { kMax, kSum };

  ChainDynamicProgram(const StageCostModel& model, int stages, Combine combine)
      : model_(model),
        stages_(stages),
        combine_(combine),
        best_(static_cast<std::size_t>(stages + 1),
              std::vector<double>(static_cast<std::size_t>(model.count() + 1), kNever)),
        end_(best_.size(), std::vector<int>(best_[0].size(), -1)) {
    best_[0][static_cast<std::size_t>(model.count())] = 0;
    for (int left = 0; left <= stages; ++left) {
      places_.push_back(left == 0 ? StagePlace{} : model.single_place(stages - left, stages));
    }
  }

  /// value(range, first, last, place) for a stage. Rows end where `growing` exceeds the limit or,
  /// when it bounds the value from below, reaches the best so far. `work` is a part of `growing`
  /// that adds up over stages: it tells which (stages left, first element) can be part of a plan
  /// at all.
  template <class Value, class Work>
  double solve(const Value& value, double growing_limit, bool growing_bounds_value,
               const Work& work) {
    growing_bounds_value_ = growing_bounds_value;
    std::vector<double> rest;
    for (int first = 0; first < model_.count(); ++first) {
      rest.push_back(growing_limit == kNever ? 0
                                             : work(model_.ranges().range(first, model_.count())));
    }
    for (int first = model_.count() - 1; first >= 0; --first) {
      const double behind = rest[static_cast<std::size_t>(first)] * (1 - 1e-9);
      const double before =
          (rest[0] - rest[static_cast<std::size_t>(first)]) * (1 - 1e-9) - 1e-9 * rest[0];
      for (int left = 1; left <= stages_; ++left) {
        if (growing_limit < kNever &&
            (behind > left * growing_limit || before > (stages_ - left) * growing_limit)) {
          continue;
        }
        fill(value, growing_limit, first, left);
      }
    }
    return best_[static_cast<std::size_t>(stages_)][0];
  }

  template <class Value>
  double solve(const Value& value, double growing_limit, bool growing_bounds_value = false) {
    return solve(value, growing_limit, growing_bounds_value, [](const RangeCost&) { return 0.0; });
  }

  /// The first elements of stages 1, 2, …; of equal plans, the one whose first differing cut is
  /// earlier.
  std::vector<int> cuts() const {
    std::vector<int> out;
    int first = 0;
    for (int left = stages_; left > 1; --left) {
      first = end_[static_cast<std::size_t>(left)][static_cast<std::size_t>(first)];
      out.push_back(first);
    }
    return out;
  }

 private:
  template <class Value>
  void fill(const Value& value, double growing_limit, int first, int left) {
    double& best = best_[static_cast<std::size_t>(left)][static_cast<std::size_t>(first)];
    int& end = end_[static_cast<std::size_t>(left)][static_cast<std::size_t>(first)];
    const std::vector<double>& rest = best_[static_cast<std::size_t>(left - 1)];
    const StagePlace& place = places_[static_cast<std::size_t>(left)];
    // Every later stage needs an element; the last stage takes all there are.
    const int last_end = model_.count() - (left - 1);
    for (int last = left == 1 ? model_.count() : first + 1; last <= last_end; ++last) {
      const double suffix = rest[static_cast<std::size_t>(last)];
      const StageValue stage = value(model_.ranges().range(first, last), first, last, place);
      if (stage.growing > growing_limit) return;
      if (growing_bounds_value_ && stage.growing >= best) return;
      const double combined =
          combine_ == Combine::kMax ? std::max(stage.value, suffix) : stage.value + suffix;
      if (combined < best) {
        best = combined;
        end = last;
      }
    }
  }

  const StageCostModel& model_;
  int stages_;
  Combine combine_;
  bool growing_bounds_value_ = false;
  std::vector<StagePlace> places_;         // [stages left]
  std::vector<std::vector<double>> best_;  // [stages left][first element]
  std::vector<std::vector<int>> end_;
};

double memory_value(const MemoryNeed& memory) { return static_cast<double>(memory.total()); }

}  // namespace

std::optional<bool> decide_recompute(const StageCostModel& model, const RangeCost& range, int first,
                                     const StagePlace& place, Recompute mode) {
  const StagePricing& pricing = model.pricing();
  if (mode != Recompute::kAll && pricing.fits(model.memory(range, first, place, false))) {
    return false;
  }
  if (mode != Recompute::kNone && pricing.fits(model.memory(range, first, place, true))) {
    return true;
  }
  return std::nullopt;
}

std::optional<std::vector<int>> best_cuts(const StageCostModel& model, int stages,
                                          double lower_bound) {
  const Recompute mode = model.request().recompute;
  const double highest_speed = model.pricing().highest_speed();
  const auto work = [&](const RangeCost& range) {
    return model.pricing().compute_seconds(range, mode == Recompute::kAll) / highest_speed;
  };
  const auto time_value = [&](const RangeCost& range, int first, int last,
                              const StagePlace& place) {
    StageValue out{kNever, work(range)};
    if (const auto recompute = decide_recompute(model, range, first, place, mode)) {
      out.value = model.seconds(range, first, last, place, *recompute);
    }
    return out;
  };
  // Three lexicographic criteria need one pass each: the bottleneck is fixed before the peak memory
  // is minimized, because a prefix may be slower than the fastest suffix. Stages slower than a
  // guess are skipped; a plan within the guess confirms it.
  double bottleneck = kNever;
  for (const double factor : {1.02, 1.2, 2.0, kNever}) {
    const double guess = lower_bound > 0 ? lower_bound * factor : kNever;
    ChainDynamicProgram fastest(model, stages, ChainDynamicProgram::Combine::kMax);
    bottleneck = fastest.solve(time_value, guess, /*growing_bounds_value=*/true, work);
    if (bottleneck <= guess) break;
  }
  if (bottleneck == kNever) return std::nullopt;

  ChainDynamicProgram smallest(model, stages, ChainDynamicProgram::Combine::kMax);
  const double peak = smallest.solve(
      [&](const RangeCost& range, int first, int last, const StagePlace& place) {
        StageValue out{kNever, work(range)};
        const auto recompute = decide_recompute(model, range, first, place, mode);
        if (recompute && model.seconds(range, first, last, place, *recompute) <= bottleneck) {
          out.value = memory_value(model.memory(range, first, place, *recompute));
        }
        return out;
      },
      bottleneck, /*growing_bounds_value=*/false, work);

  ChainDynamicProgram quietest(model, stages, ChainDynamicProgram::Combine::kSum);
  quietest.solve(
      [&](const RangeCost& range, int first, int last, const StagePlace& place) {
        StageValue out{kNever, work(range)};
        const auto recompute = decide_recompute(model, range, first, place, mode);
        if (recompute && model.seconds(range, first, last, place, *recompute) <= bottleneck &&
            memory_value(model.memory(range, first, place, *recompute)) <= peak) {
          out.value = static_cast<double>(model.ranges().cut_bytes(last));
        }
        return out;
      },
      bottleneck, /*growing_bounds_value=*/false, work);
  return quietest.cuts();
}

std::vector<int> smallest_cuts(const StageCostModel& model, int stages, bool recompute) {
  ChainDynamicProgram smallest(model, stages, ChainDynamicProgram::Combine::kMax);
  smallest.solve(
      [&](const RangeCost& range, int first, int, const StagePlace& place) {
        double bytes = memory_value(model.memory(range, first, place, false));
        if (recompute) {
          bytes = std::min(bytes, memory_value(model.memory(range, first, place, true)));
        }
        return StageValue{bytes, bytes};
      },
      kNever, /*growing_bounds_value=*/true);
  return smallest.cuts();
}

}  // namespace pipetrain
