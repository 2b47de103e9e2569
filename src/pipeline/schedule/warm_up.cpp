#include "pipeline/schedule/warm_up.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/error.h"

namespace pipetrain {
namespace {

/// Costs with every gap filled.
struct Ways {
  explicit Ways(const WarmUpCosts& costs) {
    const std::size_t stages = costs.forward_seconds.size();
    PT_CHECK(stages >= 1 && costs.backward_seconds.size() == stages &&
                 costs.hop_seconds.size() + 1 == stages &&
                 (costs.replicas.empty() || costs.replicas.size() == stages) &&
                 (costs.most_micro_batches.empty() || costs.most_micro_batches.size() == stages),
             kInternal, "the costs of a warm-up do not fit {} stages", stages);
    replicas = costs.replicas;
    if (replicas.empty()) replicas.assign(stages, 1);
    for (std::size_t s = 0; s < stages; ++s) {
      work.push_back(costs.forward_seconds[s] + costs.backward_seconds[s]);
      slowest = std::max(slowest, work.back() / replicas[s]);
    }
  }

  /// Calls visit(j, seconds from stage s to j and back) for every j after s.
  template <class Visit>
  void for_each_way(const WarmUpCosts& costs, std::size_t s, Visit&& visit) const {
    double seconds = work[s];
    for (std::size_t j = s + 1; j < work.size(); ++j) {
      seconds += work[j] + 2 * costs.hop_seconds[j - 1];
      visit(j, seconds);
    }
  }

  std::vector<int> replicas;
  std::vector<double> work;  // [stages]
  double slowest = 0;        // seconds a micro-batch takes the slowest stage
};

/// The least warm-up with which no way takes longer than `target` for each micro-batch; one above
/// kMostWarmUp where a stage needs more than that.
std::vector<int> least_warm_up(const WarmUpCosts& costs, const Ways& ways, double target) {
  const std::size_t stages = ways.work.size();
  std::vector<int> warm(stages, 0);
  const auto ahead = [&](std::size_t s) {  // micro-batches
    return std::int64_t{warm[s]} * ways.replicas[s];
  };
  // Slightly below the quotient, so that rounding errors do not cost a micro-batch of memory.
  const auto rounded_up = [](double quotient) {
    return static_cast<std::int64_t>(std::ceil(std::min(quotient, 1e15) - 1e-9));
  };
  for (std::size_t s = stages; s-- > 0;) {
    const int replicas = ways.replicas[s];
    std::int64_t least = 0;
    ways.for_each_way(costs, s, [&](std::size_t j, double seconds) {
      const std::int64_t tokens = rounded_up(seconds / target) + ahead(j);
      least = std::max(least, (tokens + replicas - 1) / replicas - 1);
    });
    if (s + 1 < stages) least = std::max(least, (ahead(s + 1) + replicas - 1) / replicas);
    warm[s] = static_cast<int>(std::min<std::int64_t>(least, kMostWarmUp + 1));
  }
  return warm;
}

}  // namespace

std::vector<int> standard_warm_up(const std::vector<int>& replicas) {
  std::vector<int> warm(replicas.size());
  int devices = 0;
  for (std::size_t s = replicas.size(); s-- > 0;) {
    devices += replicas[s];
    warm[s] = (devices - 1) / replicas[s];
  }
  return warm;
}

std::vector<int> standard_warm_up(int stages) {
  return standard_warm_up(std::vector<int>(static_cast<std::size_t>(stages), 1));
}

std::vector<int> eager_warm_up(const std::vector<int>& replicas) {
  std::vector<int> warm = standard_warm_up(replicas);
  for (int& ahead : warm) ahead *= 2;
  return warm;
}

std::vector<int> zero_bubble_warm_up(int stages, int memory_units) {
  std::vector<int> warm;
  for (int s = 0; s < stages; ++s) {
    const std::int64_t after = stages - 1 - s;
    warm.push_back(static_cast<int>((memory_units - 1) * after / std::max(stages - 1, 1)));
  }
  return warm;
}

std::vector<int> limited_warm_up(std::vector<int> warm, const std::vector<int>& replicas,
                                 int micro_batches) {
  for (std::size_t s = 0; s < warm.size(); ++s) {
    warm[s] = std::min(warm[s], micro_batches - 1);
    if (s > 0) warm[s] = std::min(warm[s], warm[s - 1] * replicas[s - 1] / replicas[s]);
  }
  return warm;
}

std::vector<int> balanced_warm_up(const WarmUpCosts& costs) {
  const Ways ways(costs);
  const std::size_t stages = ways.work.size();
  const double target = ways.slowest * (1 + costs.tolerance);
  if (target <= 0) return std::vector<int>(stages, 0);
  const auto fits = [&](const std::vector<int>& warm) {
    for (std::size_t s = 0; s < stages; ++s) {
      if (warm[s] > kMostWarmUp) return false;
      if (!costs.most_micro_batches.empty() &&
          warm[s] > std::max(costs.most_micro_batches[s] - 1, 0))
        return false;
    }
    return true;
  };
  std::vector<int> warm = least_warm_up(costs, ways, target);
  if (fits(warm)) return warm;
  double low = target, high = target;
  // No stage runs ahead where the whole way may pass between two micro-batches.
  ways.for_each_way(costs, 0, [&](std::size_t, double seconds) { high = std::max(high, seconds); });
  for (int step = 0; step < 100 && low < high; ++step) {
    const double middle = (low + high) / 2;
    (fits(least_warm_up(costs, ways, middle)) ? high : low) = middle;
  }
  return least_warm_up(costs, ways, high);
}

double micro_batch_seconds(const WarmUpCosts& costs, const std::vector<int>& warm) {
  const Ways ways(costs);
  PT_CHECK(warm.size() == ways.work.size(), kInternal, "a warm-up of {} stages does not fit {}",
           warm.size(), ways.work.size());
  double seconds = ways.slowest;
  for (std::size_t s = 0; s < warm.size(); ++s) {
    ways.for_each_way(costs, s, [&](std::size_t j, double way) {
      const int tokens = (warm[s] + 1) * ways.replicas[s] - warm[j] * ways.replicas[j];
      if (tokens > 0) seconds = std::max(seconds, way / tokens);
    });
  }
  return seconds;
}

}  // namespace pipetrain
