#include "partition/chain_cut.h"

#include <algorithm>
#include <limits>

namespace pipetrain {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// What a stage adds to the quantity that is minimised: infinity forbids it. `growing` never falls
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
  }

  /// value(range, first, last, load) for a stage. Rows end where `growing` exceeds the limit or,
  /// when it bounds the value from below, reaches the best so far.
  template <class Value>
  double solve(const Value& value, double growing_limit, bool growing_bounds_value = false) {
    growing_bounds_value_ = growing_bounds_value;
    std::vector<ScheduleLoad> loads;
    for (int left = 0; left <= stages_; ++left) {
      loads.push_back(left == 0 ? ScheduleLoad{}
                                : schedule_load(model_.request().schedule, stages_ - left, stages_,
                                                model_.request().micro_batches));
    }
    for (int first = model_.count() - 1; first >= 0; --first) {
      const std::vector<RangeCost> ranges = model_.ranges_from(first);
      for (int left = 1; left <= stages_; ++left) {
        fill(value, growing_limit, ranges, first, left, loads[static_cast<std::size_t>(left)]);
      }
    }
    return best_[static_cast<std::size_t>(stages_)][0];
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
  void fill(const Value& value, double growing_limit, const std::vector<RangeCost>& ranges,
            int first, int left, ScheduleLoad load) {
    double& best = best_[static_cast<std::size_t>(left)][static_cast<std::size_t>(first)];
    int& end = end_[static_cast<std::size_t>(left)][static_cast<std::size_t>(first)];
    const std::vector<double>& rest = best_[static_cast<std::size_t>(left - 1)];
    // Every later stage needs an element; the last stage takes all there are.
    const int last_end = model_.count() - (left - 1);
    for (int last = left == 1 ? model_.count() : first + 1; last <= last_end; ++last) {
      const double suffix = rest[static_cast<std::size_t>(last)];
      const StageValue stage =
          value(ranges[static_cast<std::size_t>(last - first - 1)], first, last, load);
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
  std::vector<std::vector<double>> best_;  // [stages left][first element]
  std::vector<std::vector<int>> end_;
};

double memory_value(const MemoryNeed& memory) { return static_cast<double>(memory.total()); }

}  // namespace

std::optional<bool> decide_recompute(const StageCostModel& model, const RangeCost& range, int first,
                                     ScheduleLoad load, Recompute mode) {
  if (mode != Recompute::kAll && model.fits(model.memory(range, first, load, false))) return false;
  if (mode != Recompute::kNone && model.fits(model.memory(range, first, load, true))) return true;
  return std::nullopt;
}

std::optional<std::vector<int>> best_cuts(const StageCostModel& model, int stages) {
  const Recompute mode = model.request().recompute;
  const auto decide = [&](const RangeCost& range, int first, ScheduleLoad load) {
    return decide_recompute(model, range, first, load, mode);
  };
  // Lexicographic order of three criteria needs one pass each: the bottleneck is settled before the
  // peak memory is looked at, because a prefix may well be slower than the fastest suffix.
  ChainDynamicProgram fastest(model, stages, ChainDynamicProgram::Combine::kMax);
  const double bottleneck = fastest.solve(
      [&](const RangeCost& range, int first, int last, ScheduleLoad load) {
        StageValue out{kNever, model.compute_seconds(range, mode == Recompute::kAll)};
        if (const auto recompute = decide(range, first, load)) {
          out.value = model.seconds(range, first, last, *recompute);
        }
        return out;
      },
      kNever, /*growing_bounds_value=*/true);
  if (bottleneck == kNever) return std::nullopt;

  ChainDynamicProgram smallest(model, stages, ChainDynamicProgram::Combine::kMax);
  const double peak = smallest.solve(
      [&](const RangeCost& range, int first, int last, ScheduleLoad load) {
        StageValue out{kNever, model.compute_seconds(range, mode == Recompute::kAll)};
        const auto recompute = decide(range, first, load);
        if (recompute && model.seconds(range, first, last, *recompute) <= bottleneck) {
          out.value = memory_value(model.memory(range, first, load, *recompute));
        }
        return out;
      },
      bottleneck);

  ChainDynamicProgram quietest(model, stages, ChainDynamicProgram::Combine::kSum);
  quietest.solve(
      [&](const RangeCost& range, int first, int last, ScheduleLoad load) {
        StageValue out{kNever, model.compute_seconds(range, mode == Recompute::kAll)};
        const auto recompute = decide(range, first, load);
        if (recompute && model.seconds(range, first, last, *recompute) <= bottleneck &&
            memory_value(model.memory(range, first, load, *recompute)) <= peak) {
          out.value = static_cast<double>(model.cut_bytes(last));
        }
        return out;
      },
      bottleneck);
  return quietest.cuts();
}

std::vector<int> smallest_cuts(const StageCostModel& model, int stages, bool recompute) {
  ChainDynamicProgram smallest(model, stages, ChainDynamicProgram::Combine::kMax);
  smallest.solve(
      [&](const RangeCost& range, int first, int, ScheduleLoad load) {
        double bytes = memory_value(model.memory(range, first, load, false));
        if (recompute) {
          bytes = std::min(bytes, memory_value(model.memory(range, first, load, true)));
        }
        return StageValue{bytes, bytes};
      },
      kNever, /*growing_bounds_value=*/true);
  return smallest.cuts();
}

}  // namespace pipetrain
