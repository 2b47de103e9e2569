#include "cli/commands/schedule_command.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/document.h"
#include "base/error.h"
#include "base/units.h"
#include "cli/output/output.h"
#include "cli/output/terminal.h"
#include "pipeline/program/annotate.h"
#include "pipeline/program/check.h"
#include "pipeline/program/compute_csv.h"
#include "pipeline/program/palette.h"
#include "pipeline/program/text.h"
#include "pipeline/schedule/closed_forms.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/schedule_file.h"
#include "pipeline/simulate/costs_file.h"
#include "pipeline/simulate/critical_path.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/simulate/timeline.h"
#include "pipeline/view/render.h"
#include "pipeline/view/svg.h"

namespace pipetrain {
namespace {

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) parts.push_back(word);
  return parts;
}

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      value < 0)
    return std::nullopt;
  return value;
}

/// Times of the command line. Either all of them have a unit, or none has.
class Times {
 public:
  bool unitless() const { return units_ == 0; }

  double read(const char* flag, const std::string& word) {
    std::string_view number = word;
    double scale = 1;
    bool unit = false;
    for (const auto& [suffix, seconds] :
         {std::pair<std::string_view, double>{"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0}}) {
      if (number.size() <= suffix.size() || !number.ends_with(suffix)) continue;
      number.remove_suffix(suffix.size());
      scale = seconds;
      unit = true;
      break;
    }
    const std::optional<double> value = number_of(number);
    PT_CHECK(value.has_value(), kUsage,
             "{}: \"{}\" is not a time; give a number, or a number with us, ms or s", flag,
             printable(word));
    const bool mixed = *value > 0 && (unit ? numbers_ : units_) > 0;
    PT_CHECK(!mixed, kUsage, "{}: \"{}\": give a unit with all times or with none", flag,
             printable(word));
    if (*value > 0) ++(unit ? units_ : numbers_);
    return *value * scale;
  }

 private:
  int numbers_ = 0, units_ = 0;
};

struct CommandTimes {
  StageSeconds device;  // of one micro-batch on one device
  double latency = 0;
  bool unitless = true;
};

CommandTimes read_times(const ScheduleCommandOptions& options) {
  Times times;
  CommandTimes result;
  const std::vector<std::string> parts =
      words_of(options.times.empty() ? std::string("1,2") : options.times);
  PT_CHECK(parts.size() == 2 || parts.size() == 3, kUsage,
           "--times takes F,B or F,I,W (forward, backward, or its input and weight gradient), not "
           "\"{}\"",
           printable(options.times));
  StageSeconds& device = result.device;
  device.forward = device.recompute = times.read("--times", parts[0]);
  if (parts.size() == 2) {
    device.backward = times.read("--times", parts[1]);
    device.backward_input = device.backward_weight = device.backward / 2;
  } else {
    device.backward_input = times.read("--times", parts[1]);
    device.backward_weight = times.read("--times", parts[2]);
    device.backward = device.backward_input + device.backward_weight;
  }
  PT_CHECK(device.forward + device.backward > 0, kUsage, "--times: all times are 0");
  constexpr double kLongest = 1e9;
  PT_CHECK(device.forward <= kLongest && device.backward <= kLongest, kUsage,
           "--times: {} is too long; at most {} can be shown", printable(options.times), kLongest);
  if (!options.latency.empty()) result.latency = times.read("--latency", options.latency);
  PT_CHECK(result.latency <= kLongest, kUsage, "--latency: {} is too long; at most {} can be shown",
           printable(options.latency), kLongest);
  result.unitless = times.unitless();
  return result;
}

Program program_of_name(const ScheduleCommandOptions& given) {
  ScheduleOptions options;
  options.name = given.arguments[1];
  options.chunks = given.chunks;
  options.memory_units = given.memory_units;
  options.micro_batches = given.micro_batches;
  PT_CHECK(given.stages >= 1, kUsage, "--gpus must be at least 1, not {}", given.stages);
  const std::vector<std::string> replicas = words_of(given.replicas);
  for (const std::string& word : replicas) {
    const std::optional<double> count = number_of(word);
    PT_CHECK(count && *count >= 1 && *count <= 4096 && *count == std::floor(*count), kUsage,
             "--replicas takes one number of devices for each stage, such as 2,1,1, not \"{}\"",
             printable(given.replicas));
    options.replicas.push_back(static_cast<int>(*count));
  }
  // More would take minutes and gigabytes.
  constexpr std::int64_t kMostPasses = 1 << 20;
  PT_CHECK(std::int64_t{given.stages} * given.micro_batches <= kMostPasses, kUsage,
           "{} micro-batches on {} device{} are too many to show; give at most {}",
           given.micro_batches, given.stages, given.stages == 1 ? "" : "s",
           kMostPasses / given.stages);
  const int per_device = stages_per_device(options.name, given.chunks);
  PT_CHECK(replicas.empty() || per_device == 1, kUsage,
           "--replicas needs a schedule with one stage per device, but {} has {}", options.name,
           per_device);
  options.stages = given.stages * per_device;
  PT_CHECK(replicas.empty() || replicas.size() == static_cast<std::size_t>(options.stages), kUsage,
           "--replicas lists {} stages, but there are {}", replicas.size(), options.stages);
  return generate(options);
}

Program open_program(const ScheduleCommandOptions& options) {
  const std::string& word = options.arguments[1];
  const bool file = names_schedule_file(word);
  Program program = file ? read_schedule_file(word) : program_of_name(options);
  if (!file) check(program, ErrorKind::kUsage);
  if (program.lowered) return program;
  program = lower(program, program.edges);
  check(program, ErrorKind::kUsage);
  return program;
}

/// The times are a device's, shared by the stages on it.
Costs costs_of(const Program& program, const CommandTimes& times) {
  std::vector<int> stages_on(static_cast<std::size_t>(program.devices), 0);
  for (const auto& devices : program.placement) {
    for (const int device : devices) ++stages_on[static_cast<std::size_t>(device)];
  }
  Costs costs = uniform_costs(program, times.device);
  costs.link.latency_seconds = times.latency;
  for (std::size_t s = 0; s < costs.stage.size(); ++s) {
    int most = 1;
    for (const int device : program.placement[s])
      most = std::max(most, stages_on[static_cast<std::size_t>(device)]);
    // Bidirectional replicas hold several stages, but each micro-batch runs on one of them.
    const double share =
        1.0 / std::max(1.0, most / static_cast<double>(program.placement[s].size()));
    StageSeconds& stage = costs.stage[s];
    for (double* seconds : {&stage.forward, &stage.backward, &stage.backward_input,
                            &stage.backward_weight, &stage.recompute})
      *seconds *= share;
  }
  return costs;
}

struct Shown {
  const Program& program;
  const Simulation& simulation;
  std::optional<double> theory;
  std::vector<int> staleness;
  bool unitless;

  std::string time(double seconds) const {
    return unitless ? fmt::format("{:.6g}", seconds) : seconds_text(seconds);
  }
};

std::string numbers_text(const std::vector<int>& numbers) {
  if (numbers.size() > 24) {
    const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
    return *least == *most ? fmt::format("{}", *least) : fmt::format("{} to {}", *least, *most);
  }
  std::string text;
  for (const int number : numbers) text += fmt::format("{}{}", text.empty() ? "" : " ", number);
  return text;
}

/// What follows the makespan: how soon the next step or micro-batch follows, where that is known
/// and another number.
std::string period_text(const Shown& shown) {
  const Simulation& simulation = shown.simulation;
  const UpdateRule rule = shown.program.rule;
  if (is_asynchronous(rule)) {
    if (simulation.micro_batch_period <= 0) return "";
    return fmt::format(" · period {} per micro-batch", shown.time(simulation.micro_batch_period));
  }
  if (std::abs(simulation.period - simulation.makespan) <= 1e-9 * simulation.makespan) return "";
  return fmt::format(" ({} without a barrier between {})", shown.time(simulation.period),
                     rule == UpdateRule::kNone ? "rounds" : "steps");
}

std::string summary_text(const Shown& shown) {
  const Program& program = shown.program;
  std::string text =
      fmt::format("{} · {} stage{} on {} device{} · {} micro-batch{}\n",
                  printable(program.schedule), program.stages, program.stages == 1 ? "" : "s",
                  program.devices, program.devices == 1 ? "" : "s", program.micro_batches,
                  program.micro_batches == 1 ? "" : "es");
  text += fmt::format("makespan {}{} · bubble {:.1f} %{}\n", shown.time(shown.simulation.makespan),
                      period_text(shown), 100 * shown.simulation.bubble,
                      shown.theory ? fmt::format(" (theory: {:.1f} %)", 100 * *shown.theory) : "");
  text += fmt::format("in flight {} · weight copies {} · staleness {}\n",
                      numbers_text(shown.simulation.peak_live),
                      numbers_text(program.versions_per_stage), numbers_text(shown.staleness));
  return text;
}

Json summary_json(const Shown& shown) {
  const Program& program = shown.program;
  const Simulation& simulation = shown.simulation;
  Json json = {{"schedule", as_document_string(program.schedule)},
               {"rule", to_text(program.rule)},
               {"stages", program.stages},
               {"devices", program.devices},
               {"micro_batches", program.micro_batches},
               {"makespan", simulation.makespan},
               {"period", simulation.period},
               {"micro_batch_period",
                simulation.micro_batch_period > 0 ? Json(simulation.micro_batch_period) : Json()},
               {"bubble", simulation.bubble},
               {"busy", simulation.busy},
               {"idle", simulation.idle},
               {"in_flight", simulation.peak_live},
               {"weight_copies", program.versions_per_stage},
               {"staleness", shown.staleness}};
  if (shown.theory) json["theoretical_bubble"] = *shown.theory;
  return json;
}

bool colours_wanted(const std::string& color) {
  return color != "auto" ? color == "always" : colours_suit(STDOUT_FILENO);
}

void check_csv(const ScheduleCommandOptions& options, const Program& program) {
  PT_CHECK(options.csv.empty() || program.rule == UpdateRule::kSync, kUsage,
           "--csv: PyTorch's format has no optimizer steps, so it holds synchronous schedules "
           "only; write {} with --output",
           printable(program.schedule));
}

/// Whether a transfer or a sum of gradients takes time.
bool has_communication(const Program& program, const Events& events) {
  for (std::size_t d = 0; d < events.size(); ++d) {
    for (std::size_t n = 0; n < events[d].size(); ++n) {
      if (!is_work(program.device[d][n].kind) && events[d][n].end > events[d][n].start) return true;
    }
  }
  return false;
}

void show(const ScheduleCommandOptions& options, const Program& given) {
  CommandTimes times = read_times(options);
  Program program = given;  // a file of costs may give its edges bytes
  Costs costs = costs_of(program, times);
  if (!options.costs.empty()) {
    costs = read_costs(options.costs, program);
    times.unitless = false;
  }
  constexpr int kMostColumns = 10000;
  PT_CHECK(options.width <= kMostColumns, kUsage, "--width must be at most {}, not {}",
           kMostColumns, options.width);
  const Simulation simulation = simulate(program, costs);
  const Shown shown{
      program, simulation,
      theoretical_bubble(program, mean_micro_batch_seconds(program, simulation.events)),
      staleness(program), times.unitless};
  if (!options.svg.empty()) {
    Gantt gantt;
    gantt.panels.push_back({"", &program, &simulation.events});
    gantt.unitless = times.unitless;
    gantt.communication = has_communication(program, simulation.events);
    write_or_print(options.svg, gantt_svg(gantt));
  }
  // A document on standard output is printed alone.
  if (options.json) return print(document_text("pipetrain.schedule/1", summary_json(shown)));
  if (options.svg == "-" || options.csv == "-" || options.output == "-") return;
  RowsOptions rows;
  rows.width = options.width > 0 ? options.width : static_cast<int>(terminal_width(STDOUT_FILENO));
  rows.colour = colours_wanted(options.color);
  rows.unitless = times.unitless;
  rows.most_rows = 48;
  print_colored(render_rows(program, simulation.events, rows));
  print_colored(render_legend(program, simulation.events, rows.colour));
  print(summary_text(shown));
  if (!options.costs.empty())
    print("critical path:\n" +
          to_text(program, critical_path(program, costs, simulation.events), 5));
}

/// All schedules with their descriptions.
void list(bool as_json) {
  Json rows = Json::array();
  std::string text;
  for (const ScheduleDescription& schedule : schedules()) {
    rows.push_back({{"name", schedule.name},
                    {"rule", to_text(schedule.rule)},
                    {"summary", schedule.summary},
                    {"takes_replicas", schedule.takes_replicas},
                    {"takes_memory_units", schedule.takes_memory},
                    {"splits_backward", schedule.splits_backward}});
    text += fmt::format("{:<20}{}\n", schedule.name, schedule.summary);
  }
  print(as_json ? document_text("pipetrain.schedules/1", {{"schedules", rows}}) : text);
}

}  // namespace

int schedule_command(const ScheduleCommandOptions& options) {
  const std::string action = options.arguments.empty() ? "" : options.arguments[0];
  if (action == "list" && options.arguments.size() == 1) {
    list(options.json);
    return 0;
  }
  PT_CHECK(action == "show" || action == "export" || action == "check", kUsage,
           "schedule needs list, or show, export or check and a schedule's name or file, for "
           "example: pipetrain schedule show 1f1b --gpus 4");
  PT_CHECK(options.arguments.size() == 2, kUsage,
           "schedule {} takes one schedule: a name such as 1f1b, or a file", action);
  check_one_prints({{"--json", options.json},
                    {"--output -", options.output == "-"},
                    {"--csv -", options.csv == "-"},
                    {"--svg -", options.svg == "-"}});
  const Program program = open_program(options);
  check_csv(options, program);
  if (!options.output.empty()) write_or_print(options.output, to_text(program));
  if (!options.csv.empty()) write_or_print(options.csv, to_compute_csv(program));
  if (action == "show" || !options.svg.empty() || options.json) {
    show(options, program);
    return 0;
  }
  if (action == "export" && options.output.empty() && options.csv.empty()) print(to_text(program));
  if (action == "check" && options.output != "-" && options.csv != "-") {
    std::size_t instructions = 0;
    for (const auto& list : program.device) instructions += list.size();
    print(fmt::format("{}: valid, {} instructions on {} devices\n", printable(options.arguments[1]),
                      instructions, program.devices));
  }
  return 0;
}

}  // namespace pipetrain
