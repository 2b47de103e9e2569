#include "pipeline/schedule/schedule_table.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "base/error.h"
#include "pipeline/schedule/warm_up.h"

namespace pipetrain::schedule {
namespace {

std::vector<int> standard(const ScheduleOptions& options) {
  return standard_warm_up(options.replicas);
}
std::vector<int> eager(const ScheduleOptions& options) { return eager_warm_up(options.replicas); }

std::vector<int> of_memory(const ScheduleOptions& options) {
  return zero_bubble_warm_up(options.stages, options.memory_units);
}

/// ZB-H1 and ZB-H2 are zero bubble with a memory of their own.
Lists zero_bubble_with(ScheduleOptions options, int memory_units) {
  options.memory_units = memory_units;
  options.warm = of_memory(options);
  return zero_bubble(options);
}
Lists zero_bubble_h1(const ScheduleOptions& options) {
  return zero_bubble_with(options, options.stages);
}
Lists zero_bubble_h2(const ScheduleOptions& options) {
  return zero_bubble_with(options, 2 * options.stages - 1);
}

/// One forward and one backward in turn: takes replicas, warm-up and a memory limit.
Schedule in_turn(const char* name, const char* summary, UpdateRule rule,
                 std::vector<int> (*warm_up)(const ScheduleOptions&), bool takes_replicas = true) {
  return {{name, summary, rule, Placement::kChain, takes_replicas, /*takes_warm_up=*/true,
           /*takes_memory=*/true, /*splits_backward=*/false},
          one_forward_one_backward,
          warm_up};
}

Schedule on_loop_or_v(const char* name, const char* summary, Placement placement,
                      Lists (*lists)(const ScheduleOptions&), bool splits_backward) {
  return {{name, summary, UpdateRule::kSync, placement, false, false, false, splits_backward},
          lists,
          nullptr};
}

Schedule split(const char* name, const char* summary, Lists (*lists)(const ScheduleOptions&)) {
  return {{name, summary, UpdateRule::kSync, Placement::kChain, false, false, false,
           /*splits_backward=*/true},
          lists,
          nullptr};
}

std::vector<Schedule> make_table() {
  std::vector<Schedule> all;
  all.push_back({{"gpipe", "all forwards, then all backwards, then one update", UpdateRule::kSync,
                  Placement::kChain, /*takes_replicas=*/true},
                 gpipe});
  all.push_back(
      in_turn("1f1b", "forwards and backwards in turn, then one update: the numbers of one device",
              UpdateRule::kSync, standard));
  all.push_back(in_turn("1f1b-eager", "1f1b with twice the warm-up, to hide transfers",
                        UpdateRule::kSync, eager));
  all.push_back(in_turn("1f1b-auto",
                        "1f1b with the least warm-up that keeps the slowest stage busy, from "
                        "measured times",
                        UpdateRule::kSync, standard));
  all.push_back(on_loop_or_v("interleaved-1f1b",
                             "1f1b with several stages on each device: fills and drains faster, "
                             "sends more",
                             Placement::kLoop, interleaved, /*splits_backward=*/false));
  all.push_back(split("zb-h1",
                      "1f1b with the weight gradients moved into the bubble, in the memory of 1f1b",
                      zero_bubble_h1));
  all.push_back(split("zb-h2", "zb-h1 with twice the memory and no bubble from round to round",
                      zero_bubble_h2));
  Schedule family =
      split("zb", "between zb-h1 and zb-h2: as little bubble as the memory allows", zero_bubble);
  family.description.takes_warm_up = true;
  family.description.takes_memory = true;
  family.warm_up = of_memory;
  all.push_back(family);
  all.push_back(on_loop_or_v("interleaved-zb",
                             "zb-h1 with several stages on each device: the smallest bubble of one "
                             "round",
                             Placement::kLoop, interleaved_zero_bubble, /*splits_backward=*/true));
  all.push_back(on_loop_or_v("zb-v",
                             "two stages on each device, down and back up: no bubble from round to "
                             "round, in the memory of 1f1b",
                             Placement::kV, zero_bubble_v, /*splits_backward=*/true));
  all.push_back(on_loop_or_v("v-half", "down and back up with half the activations of 1f1b",
                             Placement::kV, v_half, /*splits_backward=*/true));
  all.push_back(on_loop_or_v("v-min",
                             "down and back up with a third of the activations of 1f1b, for fast "
                             "links",
                             Placement::kV, v_min, /*splits_backward=*/true));
  all.push_back(in_turn("pipedream",
                        "forwards and backwards in turn without a drain, stashed weights",
                        UpdateRule::kStash, standard));
  all.push_back(in_turn("pipedream-vertical",
                        "pipedream where a micro-batch reads the same version on every stage",
                        UpdateRule::kVertical, standard, /*takes_replicas=*/false));
  all.push_back(in_turn("pipedream-2bw",
                        "no drain, two copies of the weights: every update is one step late",
                        UpdateRule::kDoubleBuffer, standard));
  all.push_back({{"forward", "forwards only: evaluation", UpdateRule::kNone, Placement::kChain,
                  /*takes_replicas=*/true},
                 forward_chain});
  return all;
}

/// Levenshtein distance, to find what a user may have meant.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

const std::vector<Schedule>& table() {
  static const std::vector<Schedule> schedules = make_table();
  return schedules;
}

const Schedule& find(const std::string& name) {
  std::string names;
  const Schedule* nearest = nullptr;
  std::size_t least = 3;  // more letters than this are another word
  for (const Schedule& schedule : table()) {
    const std::string& known = schedule.description.name;
    if (known == name) return schedule;
    names += names.empty() ? known : ", " + known;
    const std::size_t letters = name.size() > 64 ? least : distance(name, known);
    if (letters < least) {
      least = letters;
      nearest = &schedule;
    }
  }
  const std::string hint =
      nearest ? fmt::format("; did you mean '{}'?", nearest->description.name) : "";
  PT_FAIL(kUsage, "unknown schedule '{}'{} (known: {})", printable(name), hint, names);
}

}  // namespace pipetrain::schedule
