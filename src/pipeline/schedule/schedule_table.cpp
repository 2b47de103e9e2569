#include "pipeline/schedule/schedule_table.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "base/error.h"

namespace pipetrain::schedule {
namespace {

std::vector<Schedule> make_table() {
  std::vector<Schedule> all;
  for (const auto family :
       {drained_chains, interleaved_loops, zero_bubble_chains, zero_bubble_loops,
        down_and_up_schedules, undrained_chains, forward_chains}) {
    for (Schedule& schedule : family()) all.push_back(std::move(schedule));
  }
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

std::optional<double> idle_of_fill_and_drain(const EqualRound& round) {
  if (!round.runs_ahead) return std::nullopt;
  return (round.devices - 1) * round.seconds.total();
}

bool has_short_weight_gradients(const MicroBatchSeconds& seconds) {
  return seconds.weight_gradient <= seconds.forward * 1.001 &&
         seconds.weight_gradient <= seconds.input_gradient * 1.001;
}

const std::vector<Schedule>& table() {
  static const std::vector<Schedule> schedules = make_table();
  return schedules;
}

const Schedule* lookup(const std::string& name) {
  for (const Schedule& schedule : table()) {
    if (schedule.description.name == name) return &schedule;
  }
  return nullptr;
}

namespace {

std::string without_dashes(std::string name) {
  std::erase_if(name, [](char c) { return c == '-' || c == '_'; });
  return name;
}

}  // namespace

const Schedule& find(const std::string& name) {
  if (const Schedule* schedule = lookup(name)) return *schedule;
  std::string names;
  const Schedule* nearest = nullptr;
  std::size_t least = 3;  // more letters than this are another word
  for (const Schedule& schedule : table()) {
    const std::string& known = schedule.description.name;
    names += names.empty() ? known : ", " + known;
    // "zbv" is "zb-v" before it is a misspelt "zb".
    const std::size_t letters = name.size() > 64 ? least
                                : without_dashes(name) == without_dashes(known)
                                    ? 0
                                    : distance(name, known);
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
