#include "pipeline/schedule/search.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/index.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/move_cuts.h"
#include "pipeline/schedule/plan_costs.h"
#include "pipeline/simulate/simulate.h"

namespace pipetrain {
namespace {

constexpr double kMostInstructions = 4e6;

/// A cut to simulate with schedules.
struct Cut {
  int places = 1, replicas = 1, micro_batches = 1, per_device = 1;
  bool recompute = false;
  const ChainCosts* chain = nullptr;
  Plan plan;
  double estimate = 0;  // seconds of a mini-batch
  std::size_t bytes = 0;
  int share() const { return (micro_batches + replicas - 1) / replicas; }
};

/// The stage of a plan that has an element.
int stage_with(const Plan& plan, int element) {
  const auto after = std::ranges::upper_bound(plan.stages, element, {}, &StagePlan::first);
  return static_cast<int>(after - plan.stages.begin()) - 1;
}

std::vector<int> place_counts(int devices, bool fewer) {
  if (!fewer) return {devices};
  std::set<int> counts = {devices};
  for (int count = 1; count <= devices; ++count) {
    const bool power = (count & (count - 1)) == 0;
    if (count <= 8 || power || devices % count == 0) counts.insert(count);
  }
  return {counts.begin(), counts.end()};
}

LinkCost link_between(const Topology& topology, int device, int other) {
  if (topology.levels.empty() || device == other) return {};
  const TopologyLevel& level =
      topology.levels[static_cast<std::size_t>(topology.common_level(device, other))];
  return {level.latency_seconds, level.bytes_per_second};
}

/// The same for sums of gradients.
LinkCost all_reduce_link(const Topology& topology, int device, int other) {
  LinkCost link = link_between(topology, device, other);
  if (topology.levels.empty() || device == other) return link;
  const int level = topology.common_level(device, other);
  link.bytes_per_second = topology.levels[static_cast<std::size_t>(level)].all_reduce_rate();
  return link;
}

/// The speeds of the places of a row, each as fast as the slowest of its replicas; empty: all are
/// equal.
std::vector<double> place_speeds(const SearchRequest& request, const Cut& cut) {
  const std::vector<double>& devices = request.topology.device_speed;
  std::vector<double> speeds;
  if (cut.places * cut.replicas > std::ssize(devices)) return speeds;
  for (auto first = devices.begin(); std::ssize(speeds) < cut.places; first += cut.replicas)
    speeds.push_back(*std::min_element(first, first + cut.replicas));
  return speeds;
}

PlanRequest plan_request(const SearchRequest& request, const Cut& cut) {
  PlanRequest plan;
  plan.stages = cut.places * cut.per_device;
  plan.micro_batches = cut.share();
  // Planned as one pipeline, which is then replicated.
  plan.optimizer_bytes_per_parameter_byte =
      request.optimizer_bytes_per_parameter_byte -
      request.shared_bytes_per_parameter_byte * (1 - 1.0 / cut.replicas);
  plan.recompute = cut.recompute ? Recompute::kAll : Recompute::kNone;
  const LinkCost link = link_between(request.topology, 0, cut.replicas);
  plan.transfer = {link.latency_seconds, link.bytes_per_second};
  // Devices with several stages take their time in the simulation.
  if (cut.per_device == 1) plan.topology.device_speed = place_speeds(request, cut);
  // The memory of 1f1b, as a first estimate.
  const int most = request.memory_units > 0 ? request.memory_units : plan.stages;
  for (int stage = 0; stage < plan.stages; ++stage)
    plan.loads.push_back({std::min({plan.stages - stage, cut.share(), most}), 1});
  return plan;
}

/// The cut into so many stages whose slowest computes least, transfers aside: bisection of that
/// time, with stages as long as it allows (Pinar & Aykanat 2004). In O(n + stages log n) for each
/// time. `speeds`: of the stages; empty: all 1.
std::vector<int> compute_cuts(const ChainCosts& chain, int stages, bool recompute,
                              std::vector<double> speeds) {
  speeds.resize(at(stages), 1);
  std::vector<double> before = {0};
  double largest = 0;
  for (const ChainCost& element : chain.elements) {
    const double seconds = (recompute ? 2 : 1) * element.forward_seconds +
                           element.input_gradient_seconds + element.weight_gradient_seconds;
    before.push_back(before.back() + seconds);
    largest = std::max(largest, seconds);
  }
  const int count = static_cast<int>(chain.elements.size());
  const auto cuts_within = [&](double limit) {
    std::vector<int> cuts;
    int first = 0;
    while (static_cast<int>(cuts.size()) + 1 < stages) {
      const auto end = std::upper_bound(before.begin() + first + 1, before.end(),
                                        before[at(first)] + limit * speeds[cuts.size()]);
      // Every later stage needs an element.
      const int last = count - (stages - 1 - static_cast<int>(cuts.size()));
      first = std::clamp(static_cast<int>(end - before.begin()) - 1, first + 1, last);
      cuts.push_back(first);
    }
    return std::pair(cuts, (before.back() - before[at(first)]) / speeds.back());
  };
  const auto [slowest, fastest] = std::ranges::minmax(speeds);
  double low = std::max(largest, before.back() / stages) / fastest;
  double high = before.back() / slowest;
  for (int step = 0; step < 40 && low < high; ++step) {
    const double middle = (low + high) / 2;
    (cuts_within(middle).second <= middle ? high : low) = middle;
  }
  return cuts_within(high).first;
}

/// The plan of a cut: exact, or for long chains by its compute alone.
Plan plan_of(const SearchRequest& request, const Cut& cut) {
  const PlanRequest plan = plan_request(request, cut);
  const double elements = static_cast<double>(cut.chain->elements.size());
  constexpr double kMostWork = 2e7;
  if (elements * elements * plan.stages <= kMostWork) return plan_stages(*cut.chain, plan);
  return plan_with_cuts(
      *cut.chain, plan,
      compute_cuts(*cut.chain, plan.stages, cut.recompute, plan.topology.device_speed));
}

std::vector<Cut> make_cuts(const SearchRequest& request, const std::set<int>& per_device) {
  std::vector<Cut> cuts;
  for (const int micro_batches : request.micro_batches) {
    const ChainCosts& chain = request.costs(micro_batches);
    for (const int places : place_counts(request.devices, request.fewer_devices)) {
      for (const int chunks : per_device) {
        if (places * chunks > static_cast<int>(chain.elements.size())) continue;
        for (const bool recompute : {false, true}) {
          if (request.recompute == (recompute ? Recompute::kNone : Recompute::kAll)) continue;
          Cut cut{.places = places,
                  .replicas = std::min(micro_batches, request.devices / places),
                  .micro_batches = micro_batches,
                  .per_device = chunks,
                  .recompute = recompute,
                  .chain = &chain,
                  .plan = {}};
          cut.plan = plan_of(request, cut);
          double sum = 0, slowest = 0;
          for (const StagePlan& stage : cut.plan.stages) {
            sum += stage.seconds;
            slowest = std::max(slowest, stage.seconds);
            cut.bytes = std::max(cut.bytes, chunks * stage.memory.total());
          }
          cut.estimate = sum / chunks + (cut.share() - 1) * slowest * chunks;
          cuts.push_back(std::move(cut));
        }
      }
    }
  }
  return cuts;
}

/// The cuts to simulate: the fastest by estimate, and the smallest.
std::vector<const Cut*> promising(const std::vector<Cut>& cuts, int most, std::size_t limit) {
  std::vector<const Cut*> chosen;
  const auto fits = [limit](const Cut& cut) { return limit == 0 || cut.bytes <= limit; };
  std::set<int> per_device;
  for (const Cut& cut : cuts) per_device.insert(cut.per_device);
  for (const int chunks : per_device) {
    std::vector<const Cut*> all;
    for (const Cut& cut : cuts) {
      if (cut.per_device == chunks) all.push_back(&cut);
    }
    const auto take = [&](auto&& less, int count) {
      std::stable_sort(all.begin(), all.end(), less);
      for (std::size_t i = 0; i < all.size() && i < static_cast<std::size_t>(count); ++i) {
        if (std::find(chosen.begin(), chosen.end(), all[i]) == chosen.end())
          chosen.push_back(all[i]);
      }
    };
    take(
        [&](const Cut* a, const Cut* b) {
          if (fits(*a) != fits(*b)) return fits(*a);
          return a->estimate < b->estimate;
        },
        most);
    take([](const Cut* a, const Cut* b) { return a->bytes < b->bytes; }, std::max(1, most / 4));
  }
  return chosen;
}

/// The link between two places of a row.
LinkCost slowest_link(const SearchRequest& request, const Cut& cut, int from, int to) {
  // Row r of places has device r of each: some rows may go over slower links than others.
  LinkCost slowest;
  for (int row = 0; row < cut.replicas; ++row) {
    const LinkCost link =
        link_between(request.topology, from * cut.replicas + row, to * cut.replicas + row);
    if (row == 0 || link.bytes_per_second < slowest.bytes_per_second) slowest = link;
  }
  return slowest;
}

/// As ProgramMaker (train/program_maker.h) chooses it, for the cut as it is.
std::vector<int> warm_up_of(const SearchRequest& request, const Cut& cut) {
  Costs costs = costs_of_plan(cut.plan, *cut.chain, cut.share());
  const std::vector<Edge> edges = edges_of_plan(cut.plan, *cut.chain);
  for (const Edge& edge : edges)
    costs.edge_link.push_back(slowest_link(request, cut, edge.from_stage, edge.to_stage));
  WarmUpCosts warm = warm_up_costs(cut.plan, edges, costs);
  warm.tolerance = request.warm_up_tolerance;
  if (request.memory_limit_bytes > 0)
    warm.most_micro_batches = most_micro_batches_within(cut.plan, request.memory_limit_bytes);
  return balanced_warm_up(with_memory_units(std::move(warm), request.memory_units));
}

ScheduleOptions options_for(const SearchRequest& request, const std::string& name, const Cut& cut,
                            int micro_batches) {
  ScheduleOptions options;
  options.name = name;
  options.stages = static_cast<int>(cut.plan.stages.size());
  options.micro_batches = micro_batches;
  options.chunks = cut.per_device;
  options.memory_units = request.memory_units;
  if (describe_schedule(name).rule == UpdateRule::kDoubleBuffer)
    options.micro_batches_per_update = cut.share();
  return options;
}

/// The stages of a plan that need a gradient.
std::set<int> stages_that_need(const TiedGradient& tied, const Plan& plan) {
  std::set<int> stages;
  for (const int element : tied.needed_by) stages.insert(stage_with(plan, element));
  return stages;
}

/// Whether an update waits for the gradients of all stages.
bool waits_for_gradients(const SearchRequest& request, const Cut& cut, const Plan& plan) {
  return request.gradient_sync || std::ranges::any_of(cut.chain->tied, [&](const auto& tied) {
           return stages_that_need(tied, plan).size() > 1;
         });
}

/// The messages with gradients of parameters that several stages hold, one after the other, to each
/// device of the others (train/network_costs.h).
double tied_gradient_seconds(const SearchRequest& request, const Cut& cut, const Plan& plan,
                             const Program& program) {
  double seconds = 0;
  if (!request.sends_tied_gradients) return seconds;
  const auto place_of = [&](int stage) { return program.placement[at(stage)][0]; };
  for (const TiedGradient& tied : cut.chain->tied) {
    const int from = place_of(stage_with(plan, tied.element));
    std::set<int> others;
    for (const int stage : stages_that_need(tied, plan)) others.insert(place_of(stage));
    others.erase(from);
    for (const int to : others) {
      for (int row = 0; row < cut.replicas; ++row) {
        const LinkCost link =
            link_between(request.topology, from * cut.replicas, to * cut.replicas + row);
        seconds += link.latency_seconds + static_cast<double>(tied.bytes) / link.bytes_per_second;
      }
    }
  }
  return seconds;
}

/// A round of a cut's stages, as `request` links their devices, and what it costs.
struct Round {
  Program program;
  Costs costs;
};
Round round_of(const SearchRequest& request, ScheduleOptions options, const Cut& cut,
               const Plan& plan) {
  const bool waits = waits_for_gradients(request, cut, plan);
  const bool asynchronous = is_asynchronous(describe_schedule(options.name).rule);
  PT_CHECK(!waits || !asynchronous || plan.stages.size() == 1, kUsage,
           "\"{}\" updates each stage separately", options.name);
  options.gradient_sync = waits && !asynchronous;
  Round round;
  round.costs = costs_of_plan(plan, *cut.chain, cut.share());
  const LinkCost among = all_reduce_link(request.topology, 0, cut.replicas - 1);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    round.costs.stage[s].update += all_reduce_seconds(
        static_cast<std::int64_t>(plan.stages[s].parameter_bytes), cut.replicas, among);
  }
  round.program = lower(generate(options), edges_of_plan(plan, *cut.chain));
  if (cut.per_device > 1) {
    for (const double speed : place_speeds(request, cut))
      round.costs.device_scale.push_back(1 / speed);
  }
  for (const Edge& edge : round.program.edges) {
    const int from = round.program.placement[static_cast<std::size_t>(edge.from_stage)][0];
    const int to = round.program.placement[static_cast<std::size_t>(edge.to_stage)][0];
    round.costs.edge_link.push_back(slowest_link(request, cut, from, to));
  }
  round.costs.gradient_sync_seconds = tied_gradient_seconds(request, cut, plan, round.program);
  return round;
}

/// Simulates a cut with a schedule; with `move` the cut is tuned for it.
Candidate simulated(const SearchRequest& request, const std::string& name, const Cut& cut,
                    bool move) {
  const ScheduleDescription& description = describe_schedule(name);
  Candidate candidate;
  candidate.schedule = name;
  candidate.places = cut.places;
  candidate.replicas = cut.replicas;
  candidate.micro_batches = cut.micro_batches;
  candidate.chunks = cut.per_device;
  candidate.recompute = cut.recompute;
  candidate.asynchronous = is_asynchronous(description.rule);

  // An asynchronous pipeline is timed in steady state.
  const int rounds = candidate.asynchronous ? 2 * cut.places + 4 : 1;
  const int micro_batches = rounds * cut.share();
  ScheduleOptions options = options_for(request, name, cut, micro_batches);
  if (description.balances_warm_up) options.warm = warm_up_of(request, cut);
  // What a stage holds: every micro-batch from its forward to its last backward, also where only
  // its inputs are kept meanwhile.
  const Program held = generate(options);
  options.recompute.assign(cut.plan.stages.size(), cut.recompute);
  PlanRequest plan = plan_request(request, cut);
  for (std::size_t s = 0; s < plan.loads.size(); ++s)
    plan.loads[s] = {held.slots_per_stage[s], held.versions_per_stage[s]};
  const std::vector<Recompute> modes(plan.loads.size(), plan.recompute);
  candidate.plan = plan_with_cuts(*cut.chain, plan, cut.plan.cuts(), modes);
  Round round = round_of(request, options, cut, candidate.plan);
  if (move) {
    candidate.plan = move_cuts(*cut.chain, plan, candidate.plan, round.program, round.costs);
    round = round_of(request, options, cut, candidate.plan);
  }
  std::vector<std::size_t> bytes(static_cast<std::size_t>(cut.places), 0);
  for (std::size_t s = 0; s < held.placement.size(); ++s)
    bytes[static_cast<std::size_t>(held.placement[s][0])] +=
        candidate.plan.stages[s].memory.total();
  candidate.peak_bytes = *std::max_element(bytes.begin(), bytes.end());
  candidate.fits =
      request.memory_limit_bytes == 0 || candidate.peak_bytes <= request.memory_limit_bytes;

  if (request.waking)
    share_cores(round.program, *request.waking, std::max(1, request.processors / cut.replicas),
                round.costs);
  const Simulation result =
      simulate(round.program, round.costs, {.keep_events = false, .rounds = 1});
  double busy = 0;
  for (const StageSeconds& stage : round.costs.stage) {
    busy += (stage.forward + stage.backward + (cut.recompute ? stage.recompute : 0)) * cut.share() +
            stage.update;
  }
  candidate.step_seconds = candidate.asynchronous
                               ? result.micro_batch_period * cut.share()
                               : result.makespan + round.costs.cores.wake_seconds;
  // With shared cores a step takes at least the total work over the number of cores.
  if (request.processors > 0)
    candidate.step_seconds =
        std::max(candidate.step_seconds, busy * cut.replicas / request.processors);
  candidate.bubble = std::max(0.0, 1 - busy / (candidate.step_seconds * cut.places));
  candidate.samples_per_second = static_cast<double>(request.batch) / candidate.step_seconds;
  return candidate;
}

/// A candidate and its origin.
struct Tried {
  Candidate candidate;
  const Cut* cut = nullptr;
};

void sort_by_speed(std::vector<Tried>& tried) {
  std::stable_sort(tried.begin(), tried.end(), [](const Tried& one, const Tried& other) {
    const Candidate &a = one.candidate, &b = other.candidate;
    if (a.samples_per_second != b.samples_per_second)
      return a.samples_per_second > b.samples_per_second;
    return a.peak_bytes < b.peak_bytes;
  });
}

/// Moves the cuts of the fastest ones.
void move_cuts_of_fastest(const SearchRequest& request, std::vector<Tried>& tried) {
  int left = request.most_moved;
  for (Tried& each : tried) {
    if (left == 0) break;
    if (!each.candidate.fits || each.candidate.asynchronous || each.candidate.places == 1) continue;
    --left;
    Candidate moved = simulated(request, each.candidate.schedule, *each.cut, /*move=*/true);
    if (moved.fits && moved.step_seconds < each.candidate.step_seconds)
      each.candidate = std::move(moved);
  }
}

void mark_pareto(std::vector<Candidate>& candidates) {
  const bool any_fits = std::any_of(candidates.begin(), candidates.end(),
                                    [](const Candidate& candidate) { return candidate.fits; });
  std::size_t least = SIZE_MAX;  // fastest first: those that need less memory than all before
  for (Candidate& candidate : candidates) {
    if (any_fits && !candidate.fits) continue;
    candidate.pareto = candidate.peak_bytes < least;
    least = std::min(least, candidate.peak_bytes);
  }
}

}  // namespace

std::vector<Candidate> search(const SearchRequest& request) {
  std::vector<std::string> names = request.schedules;
  if (names.empty()) {
    for (const ScheduleDescription& schedule : schedules()) {
      if (schedule.rule == UpdateRule::kSync) names.push_back(schedule.name);
    }
  }
  if (request.memory_units > 0)
    std::erase_if(names, [](const auto& name) { return !describe_schedule(name).takes_memory; });
  std::set<int> per_device;
  for (const std::string& name : names) per_device.insert(stages_per_device(name, request.chunks));
  const std::vector<Cut> cuts = make_cuts(request, per_device);
  std::vector<Tried> tried;
  for (const Cut* cut : promising(cuts, request.most_simulated, request.memory_limit_bytes)) {
    for (const std::string& name : names) {
      if (stages_per_device(name, request.chunks) != cut->per_device) continue;
      if (cut->replicas > 1 && !describe_schedule(name).takes_replicas) continue;
      const double instructions = 8.0 * static_cast<double>(cut->plan.stages.size()) * cut->share();
      if (instructions > kMostInstructions) continue;
      try {
        tried.push_back({simulated(request, name, *cut, /*move=*/false), cut});
      } catch (const Error& error) {
        // The schedule does not support these sizes (for example too few micro-batches).
        if (error.kind() != ErrorKind::kUsage) throw;
      }
    }
  }
  sort_by_speed(tried);
  move_cuts_of_fastest(request, tried);
  sort_by_speed(tried);
  std::vector<Candidate> candidates;
  for (Tried& each : tried) candidates.push_back(std::move(each.candidate));
  mark_pareto(candidates);
  return candidates;
}

int choose(const std::vector<Candidate>& candidates) {
  constexpr double kAsGood = 0.99;
  int best = -1;
  double fastest = 0;
  for (const bool asynchronous : {false, true}) {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const Candidate& candidate = candidates[i];
      if (!candidate.fits || candidate.asynchronous != asynchronous) continue;
      if (best < 0) {
        best = static_cast<int>(i);
        fastest = candidate.samples_per_second;
      } else if (candidate.samples_per_second >= kAsGood * fastest &&
                 candidate.peak_bytes < candidates[static_cast<std::size_t>(best)].peak_bytes) {
        best = static_cast<int>(i);
      }
    }
    if (best >= 0) return best;
  }
  return best;
}

}  // namespace pipetrain
