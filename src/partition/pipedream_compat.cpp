#include "partition/pipedream_compat.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/index.h"
#include "base/setting.h"
#include "partition/pipedream_states.h"

namespace pipetrain {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Innermost steps of all levels together: some ten seconds.
constexpr double kMaximumSteps = 4e11;
// Rows that are solved together: their part of the table should stay in a cache.
constexpr int kBlock = 64;

// Seconds of stages on one group of the level below: of states [i, j], i = 0 … S, where i = 0 is
// the start of the network and i = k + 1 follows state k.
class StageSeconds {
 public:
  explicit StageSeconds(const PipeDreamStates& states) : states_(states) {}

  double get(int i, int j) const {
    if (!table_.empty()) return table_[at(i) * at(states_.count()) + at(j)];
    return states_.states[at(j)].seconds - (i == 0 ? 0 : states_.states[at(i - 1)].seconds);
  }
  void replace(std::vector<double> table) { table_ = std::move(table); }

 private:
  const PipeDreamStates& states_;
  std::vector<double> table_;
};

// One level of the dynamic program. A[j][m][i]: the slowest stage when states [i, j] are on m
// groups.
class Level {
 public:
  Level(const PipeDreamStates& states, const CompatRequest& request, int index,
        const StageSeconds& inner)
      : states_(states),
        request_(request),
        machines_(request.levels[at(index)].machines),
        bandwidth_(request.levels[at(index)].bytes_per_second),
        // Of the level below alone, as PipeDream has it.
        inner_machines_(index == 0 ? 1 : request.levels[at(index - 1)].machines),
        inner_(inner) {}

  // The table for rows [first, first + rows): (j, m - 1, row).
  std::vector<double> solve(int first, int rows) const {
    const std::size_t plane = at(machines_) * at(rows);
    std::vector<double> table(at(states_.count()) * plane, kNever);
    for (int j = 0; j < states_.count(); ++j) {
      double* to = table.data() + at(j) * plane;
      for (int r = 0; r < rows; ++r) {
        if (!is_range(first + r, j)) continue;
        const int most = request_.straight ? 1 : machines_;
        for (int m = 1; m <= most; ++m) to[at(m - 1) * at(rows) + at(r)] = alone(first + r, j, m);
      }
      const std::vector<int>& ancestors = states_.ancestors[at(j)];
      for (auto k = std::lower_bound(ancestors.begin(), ancestors.end(), first);
           k != ancestors.end(); ++k) {
        extend(table.data() + at(*k) * plane, to, rows, *k, j);
      }
      if (request_.fewer_machines) inherit(to, rows, std::min(rows, j - first));
    }
    return table;
  }

  // Row i of the level above: this level's value with all machines.
  std::vector<double> values() const {
    const int count = states_.count();
    std::vector<double> out(at(count + 1) * at(count), kNever);
    for (int first = 0; first <= count; first += kBlock) {
      const int rows = std::min(kBlock, count + 1 - first);
      const std::vector<double> table = solve(first, rows);
      for (int j = 0; j < count; ++j) {
        const double* all = table.data() + (at(j) * at(machines_) + at(machines_ - 1)) * at(rows);
        for (int r = 0; r < rows; ++r) out[at(first + r) * at(count) + at(j)] = all[r];
      }
    }
    return out;
  }

  // The stages of states [start, end) on all machines.
  CompatGroup stages(int start, int end) const {
    const std::vector<double> table = solve(start, 1);
    const auto value = [&](int j, int m) { return table[at(j) * at(machines_) + at(m - 1)]; };
    CompatGroup out;
    int j = end - 1, m = machines_;
    while (true) {
      while (request_.fewer_machines && j > start && m > 1 && value(j, m - 1) <= value(j, m)) --m;
      const int most = request_.straight ? 1 : machines_;
      double best = m <= most ? alone(start, j, m) : kNever;
      int split = -1, replicas = m;
      for (const int k : states_.ancestors[at(j)]) {
        for (int r = 1; k >= start && r < (request_.straight ? std::min(2, m) : m); ++r) {
          const double candidate = std::max(value(k, m - r), behind(k, j, r));
          if (candidate >= best || !fits_behind(k, j, m, r)) continue;
          best = candidate;
          split = k;
          replicas = r;
        }
      }
      const double before = split >= 0  ? states_.states[at(split)].seconds
                            : start > 0 ? states_.states[at(start - 1)].seconds
                                        : 0;
      out.stages.push_back({split >= 0 ? split + 1 : start, j + 1, replicas,
                            states_.states[at(j)].seconds - before});
      m -= replicas;
      if (split < 0) break;
      j = split;
    }
    out.unused = machines_;
    for (const CompatStage& stage : out.stages) out.unused -= stage.replicas;
    std::reverse(out.stages.begin(), out.stages.end());
    return out;
  }

 private:
  bool is_range(int i, int j) const { return i == 0 || states_.is_ancestor.get(j, i - 1); }

  double parameters(int i, int j) const {
    const auto& states = states_.states;
    return states[at(j)].parameter_bytes - (i == 0 ? 0 : states[at(i - 1)].parameter_bytes);
  }

  bool fits(int i, int j, double copies) const {
    if (!request_.memory_bytes) return true;
    const auto& states = states_.states;
    const double activations =
        states[at(j)].activation_bytes - (i == 0 ? 0 : states[at(i - 1)].activation_bytes);
    return copies * (activations + parameters(i, j)) <= *request_.memory_bytes;
  }

  // States [i, j] as the first stage of their range, on m groups.
  double alone(int i, int j, int m) const {
    if (!fits(i, j, std::ceil(static_cast<double>(machines_ - m) / m))) return kNever;
    const double sync = 4.0 * (m - 1) * parameters(i, j) / (bandwidth_ * m) / inner_machines_;
    return (inner_.get(i, j) + sync) / m;
  }

  // States (k, j] as a later stage, on m groups, and its transfers. No division by the machines
  // inside a group here, unlike in alone(): that is what PipeDream does.
  double behind(int k, int j, int m) const {
    const double sync = 4.0 * (m - 1) * parameters(k + 1, j) / (bandwidth_ * m);
    const double seconds = (inner_.get(k + 1, j) + sync) / m;
    if (!request_.activation_compression) return seconds;
    const auto transfer = [&](int state) {
      return 2.0 * states_.states[at(state)].output_bytes / (bandwidth_ * m) /
             *request_.activation_compression;
    };
    const bool is_last = j == states_.count() - 1;
    return std::max({seconds, transfer(k), is_last ? 0 : transfer(j)});
  }

  // Whether states (k, j] fit on `replicas` groups when the plan takes m groups up to here.
  bool fits_behind(int k, int j, int m, int replicas) const {
    return fits(k + 1, j, std::ceil(static_cast<double>(machines_ - m) / replicas));
  }

  // Tries the stage (k, j] after every plan up to k.
  void extend(const double* from, double* to, int rows, int k, int j) const {
    const int most = request_.straight ? std::min(2, machines_) : machines_;
    for (int replicas = 1; replicas < most; ++replicas) {
      const double stage = behind(k, j, replicas);
      double* target = to + at(replicas) * at(rows);
      if (!request_.memory_bytes) {
        least_of_slowest(from, stage, target, (machines_ - replicas) * rows);
        continue;
      }
      for (int m = replicas + 1; m <= machines_; ++m) {
        const std::size_t offset = at(m - replicas - 1) * at(rows);
        if (!fits_behind(k, j, m, replicas)) continue;
        least_of_slowest(from + offset, stage, target + offset, rows);
      }
    }
  }

  static void least_of_slowest(const double* from, double stage, double* to, int count) {
#pragma omp simd
    for (int x = 0; x < count; ++x) {
      const double slowest = from[x] > stage ? from[x] : stage;
      to[x] = slowest < to[x] ? slowest : to[x];
    }
  }

  // A plan for fewer machines is one for more. Not of a single state: so in PipeDream.
  void inherit(double* to, int rows, int most) const {
    for (int m = 1; m < machines_; ++m) {
      for (int r = 0; r < most; ++r) {
        double& value = to[at(m) * at(rows) + at(r)];
        value = std::min(value, to[at(m - 1) * at(rows) + at(r)]);
      }
    }
  }

  const PipeDreamStates& states_;
  const CompatRequest& request_;
  int machines_;
  double bandwidth_;
  int inner_machines_;
  const StageSeconds& inner_;
};

void check(const CompatRequest& request) {
  PT_CHECK(!request.levels.empty(), kUsage, "a plan needs at least one level of machines");
  for (const CompatLevel& level : request.levels) {
    PT_CHECK(level.machines >= 1 && level.machines <= 4096, kUsage,
             "machines of a level must be from 1 to 4096, got {}", level.machines);
    PT_CHECK(level.bytes_per_second > 0 && std::isfinite(level.bytes_per_second), kUsage,
             "the bandwidth of a level must be above 0 bytes/s, got {}", level.bytes_per_second);
  }
  PT_CHECK(!request.activation_compression || *request.activation_compression > 0, kUsage,
           "the activation compression ratio must be above 0, got {}",
           *request.activation_compression);
}

void check_size(const CompatRequest& request, int states) {
  double steps = 0;
  for (std::size_t l = 0; l < request.levels.size(); ++l) {
    const double machines = request.levels[l].machines;
    const double rows = l + 1 < request.levels.size() ? states + 1 : 1;
    steps += rows * states * states * machines * (machines + 1) / 4;
  }
  PT_CHECK(steps <= kMaximumSteps, kResource,
           "PipeDream's dynamic program would take {:.1g} steps for {} states on these machines "
           "(the limit is {:.1g}); plan without {} pipedream, or with fewer levels",
           steps, states, kMaximumSteps, setting("compat"));
}

double data_parallel(const CompatRequest& request, const PipeDreamState& all) {
  double seconds = all.seconds;
  int inner = 1;
  for (const CompatLevel& level : request.levels) {
    const double n = level.machines;
    seconds =
        (seconds + 4 * (n - 1) * all.parameter_bytes / (level.bytes_per_second * n) / inner) / n;
    inner = level.machines;
  }
  return seconds;
}

// What was left out of the search goes where its writers are, or to the first stage.
void place_the_rest(const PipeDreamProfile& profile, std::vector<int>& stage_of_node) {
  std::vector<std::vector<int>> writers(profile.nodes.size());
  for (const PipeDreamEdge& edge : profile.edges) writers[at(edge.to)].push_back(edge.from);
  for (const int node : topological_order(profile)) {
    if (stage_of_node[at(node)] >= 0) continue;
    int stage = 0;
    for (const int writer : writers[at(node)]) stage = std::max(stage, stage_of_node[at(writer)]);
    stage_of_node[at(node)] = stage;
  }
}

}  // namespace

CompatPlan plan_like_pipedream(const PipeDreamProfile& profile, const CompatRequest& request) {
  check(request);
  const PipeDreamStates states = pipedream_states(profile);
  check_size(request, states.count());
  // stage_seconds[l]: what level l finds inside a group.
  std::vector<StageSeconds> stage_seconds(1, StageSeconds(states));
  stage_seconds.reserve(request.levels.size());
  const int outermost = static_cast<int>(request.levels.size()) - 1;
  for (int l = 0; l < outermost; ++l) {
    StageSeconds next(states);
    next.replace(Level(states, request, l, stage_seconds[at(l)]).values());
    stage_seconds.push_back(std::move(next));
  }

  CompatPlan out;
  out.states = states.count();
  const Level top(states, request, outermost, stage_seconds.back());
  out.seconds = top.solve(0, 1).back();
  double machines = 1;
  for (const CompatLevel& level : request.levels) machines *= level.machines;
  PT_CHECK(std::isfinite(out.seconds) || request.memory_bytes, kResource,
           "PipeDream's planner cannot cut the {} states of this profile into {:.0f} stages of one "
           "machine each; use fewer machines, or plan without {} pipedream",
           out.states, machines, setting("compat"));
  PT_CHECK(std::isfinite(out.seconds), kResource,
           "PipeDream's memory constraint of {:.3g} bytes leaves no plan for these machines; allow "
           "more, or plan without {} pipedream",
           request.memory_bytes.value_or(0), setting("compat"));
  out.single_machine_seconds = states.states.back().seconds;
  out.data_parallel_seconds = data_parallel(request, states.states.back());

  // Every level plans the inside of the stages of the level above.
  struct Range {
    int start, end;
    CompatLeaf leaf;
  };
  CompatLeaf whole;
  whole.replicas.assign(request.levels.size(), 1);
  std::vector<Range> ranges = {{0, states.count(), whole}};
  for (int l = outermost; l >= 0; --l) {
    const Level level(states, request, l, stage_seconds[at(l)]);
    std::vector<CompatGroup>& groups = out.levels.emplace_back();
    std::vector<Range> inside;
    for (const Range& range : ranges) {
      groups.push_back(level.stages(range.start, range.end));
      for (const CompatStage& stage : groups.back().stages) {
        Range part{stage.start, stage.end, range.leaf};
        part.leaf.devices *= stage.replicas;
        part.leaf.replicas[at(l)] = stage.replicas;
        part.leaf.compute_seconds = stage.compute_seconds;
        if (stage.start != range.start) part.leaf.cut_level = l;
        inside.push_back(std::move(part));
      }
    }
    ranges = std::move(inside);
  }

  out.stage_of_node.assign(profile.nodes.size(), -1);
  for (Range& range : ranges) {
    CompatLeaf leaf = std::move(range.leaf);
    for (int node = 0; at(node) < profile.nodes.size(); ++node) {
      if (out.stage_of_node[at(node)] >= 0 || !states.before.get(range.end - 1, node)) continue;
      out.stage_of_node[at(node)] = static_cast<int>(out.stages.size());
      leaf.nodes.push_back(node);
    }
    out.stages.push_back(std::move(leaf));
  }
  place_the_rest(profile, out.stage_of_node);
  return out;
}

}  // namespace pipetrain
