#include "partition/graph_planner.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/index.h"
#include "partition/ideals.h"
#include "partition/optimum.h"
#include "partition/orders.h"
#include "partition/plan_build.h"

namespace pipetrain {
namespace {

constexpr std::size_t kMostIdeals = 20000;
// The relative improvement that an order needs to replace the best one.
constexpr double kGain = 1e-7;
// The tolerance while orders are compared.
constexpr double kCoarse = 1e-3;

// The best order so far. Most others are rejected by a single check.
class OrderRace {
 public:
  OrderRace(const CostGraph& graph, const PlanRequest& request, int devices)
      : graph_(graph), request_(request), devices_(devices), readers_(readers_of(graph)) {}

  bool has_plan() const { return !stages_.empty(); }
  const std::vector<int>& order() const { return order_; }
  double seconds() const { return seconds_; }
  double lower_bound() const { return lower_; }
  int tried() const { return tried_; }

  bool enter(const std::vector<int>& order) {
    ++tried_;
    const ChainCosts chain = chain_of(graph_, order);
    const StageCostModel model(chain, request_, devices_);
    if (tried_ == 1) lower_ = lower_bound_of_devices(model).seconds;
    OptimumSearch<ChainRanges> search(model.ranges(), model.pricing(), request_.stages);
    const double infinity = std::numeric_limits<double>::infinity();
    const double upper = has_plan() ? seconds_ * (1 - kGain) : infinity;
    if (has_plan() && upper <= lower_) return false;
    const std::optional<Optimum> found =
        search.throughput(lower_, std::max(request_.tolerance, kCoarse), upper);
    if (!found) return false;
    // The previous one may still be better within its tolerance.
    if (has_plan() && order != order_ && bound_ < found->seconds) passed_.push_back(order_);
    bound_ = found->bound;
    order_ = order;
    seconds_ = found->seconds;
    stages_ = found->stages;
    return true;
  }

  // Computes the best plan of the best order to the requested tolerance, then checks whether a
  // skipped order is better.
  void finish() {
    if (!has_plan()) return;
    refine();
    while (!passed_.empty()) {
      const std::vector<int> order = passed_.back();
      passed_.pop_back();
      if (enter(order)) refine();
    }
  }

  // Changes beside a cut: a node that nothing in the rest of its stage depends on goes to the far
  // side. True when one of them is better.
  bool improve(int& budget) {
    const std::vector<int> order = order_;
    std::vector<int> cuts;
    for (std::size_t i = 1; i < stages_.size(); ++i) cuts.push_back(stages_[i].first);
    // The cuts beside slow stages first.
    std::vector<double> slow;
    for (std::size_t i = 1; i < stages_.size(); ++i) {
      slow.push_back(std::max(stages_[i - 1].seconds, stages_[i].seconds));
    }
    std::vector<std::size_t> sequence(cuts.size());
    for (std::size_t i = 0; i < sequence.size(); ++i) sequence[i] = i;
    std::stable_sort(sequence.begin(), sequence.end(),
                     [&](std::size_t a, std::size_t b) { return slow[a] > slow[b]; });
    const std::vector<StageChoice> stages = stages_;
    for (const std::size_t cut : sequence) {
      for (int position = stages[cut].first; position < stages[cut + 1].last; ++position) {
        if (budget <= 0) return false;
        std::vector<int> other = order;
        if (!move_over(other, position, cuts[cut])) continue;
        --budget;
        if (enter(other)) return true;
      }
    }
    return false;
  }

 private:
  void refine() {
    const ChainCosts chain = chain_of(graph_, order_);
    const StageCostModel model(chain, request_, devices_);
    OptimumSearch<ChainRanges> search(model.ranges(), model.pricing(), request_.stages);
    const std::optional<Optimum> found = search.throughput(
        bound_, std::max(request_.tolerance, kGain / 10), seconds_ * (1 - kGain / 10));
    if (!found) return;
    seconds_ = found->seconds;
    stages_ = found->stages;
    bound_ = found->bound;
  }

  bool reads(int node, int other) const {
    const std::vector<int>& readers = readers_[at(other)];
    return std::binary_search(readers.begin(), readers.end(), node);
  }

  // Moves the node at `position` to the other side of the cut; false where its neighbours forbid it
  // or nothing changes.
  bool move_over(std::vector<int>& order, int position, int cut) const {
    const int node = order[at(position)];
    if (position < cut) {
      for (int i = position + 1; i < cut; ++i) {
        if (reads(order[at(i)], node)) return false;
      }
      // After the first node after the cut that it does not feed, so that the cut can stay.
      const bool free = cut < static_cast<int>(order.size()) && !reads(order[at(cut)], node);
      if (position == cut - 1 && !free) return false;
      std::rotate(order.begin() + position, order.begin() + position + 1,
                  order.begin() + cut + (free ? 1 : 0));
      return true;
    }
    for (int i = cut; i < position; ++i) {
      if (reads(node, order[at(i)])) return false;
    }
    const bool free = cut > 0 && !reads(node, order[at(cut - 1)]);
    if (position == cut && !free) return false;
    std::rotate(order.begin() + cut - (free ? 1 : 0), order.begin() + position,
                order.begin() + position + 1);
    return true;
  }

  const CostGraph& graph_;
  const PlanRequest& request_;
  int devices_;
  std::vector<std::vector<int>> readers_;
  std::vector<int> order_;
  std::vector<StageChoice> stages_;
  std::vector<std::vector<int>> passed_;  // orders that may yet be better
  double seconds_ = 0, bound_ = 0;        // of the slowest stage: found, and proven for this order
  double lower_ = 0;                      // for any order
  int tried_ = 0;
};

// Tells whether all ideals were looked at; enters the order of a better plan if there is one.
bool race_ideals(const CostGraph& graph, const PlanRequest& request, int devices, OrderRace& race,
                 std::size_t& ideals) {
  const std::optional<IdealRanges> ranges = IdealRanges::of(graph, kMostIdeals);
  if (!ranges) return false;
  ideals = static_cast<std::size_t>(ranges->count()) + 1;
  const StagePricing pricing(request, devices);
  OptimumSearch<IdealRanges> search(*ranges, pricing, request.stages);
  const double infinity = std::numeric_limits<double>::infinity();
  const double upper = race.has_plan() ? race.seconds() * (1 - kGain) : infinity;
  if (upper <= race.lower_bound()) return true;
  const std::optional<Optimum> found =
      search.throughput(race.lower_bound(), std::max(request.tolerance, kGain / 10), upper);
  if (!found) return true;
  std::vector<int> positions;
  for (const StageChoice& stage : found->stages) positions.push_back(stage.last);
  race.enter(ranges->order_through(positions));
  return true;
}

}  // namespace

GraphPlan plan_graph(const CostGraph& graph, const PlanRequest& request) {
  const auto begin = std::chrono::steady_clock::now();
  PT_CHECK(!graph.nodes.empty(), kModel,
           "the model has no operator that could be put into a stage");
  const int devices = request.devices > 0                ? request.devices
                      : !request.topology.levels.empty() ? request.topology.devices()
                                                         : std::max(1, request.stages);
  // Checking an order costs up to the square of its length, more with several levels of links.
  // Fewer orders are tried for long chains; the number never depends on the clock, so that plans
  // are reproducible.
  const double square = static_cast<double>(graph.nodes.size() * graph.nodes.size());
  const auto levels = std::max<std::size_t>(1, request.topology.levels.size());
  const double share = 2 / static_cast<double>(levels + 1);
  const int noisy = std::clamp(static_cast<int>(6e7 / square * share), 6, 60);
  int changes = std::clamp(static_cast<int>(1e8 / square), 20, 400);

  GraphPlan out;
  OrderRace race(graph, request, devices);
  for (const std::vector<int>& order : order_portfolio(graph, noisy)) race.enter(order);
  race.finish();
  out.exact = race_ideals(graph, request, devices, race, out.ideals);
  while (!out.exact && race.has_plan() && race.improve(changes)) continue;
  race.finish();
  out.orders = race.tried();
  // Without any plan the error is that of the first order.
  out.order = race.has_plan() ? race.order() : smallest_cut_order(graph);
  out.chain = chain_of(graph, out.order);
  out.plan = plan_devices(out.chain, request);
  out.plan.planning_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

}  // namespace pipetrain
