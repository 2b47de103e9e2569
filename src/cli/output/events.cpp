#include "cli/output/events.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "base/safe_text.h"

namespace pipetrain {

using Json = nlohmann::ordered_json;

namespace {

double wall_seconds() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

struct EventLog::Line {
  explicit Line(const std::string& event) { json["event"] = event; }
  void number(const std::string& key, double value) {
    if (std::isfinite(value)) {
      json[key] = value;
      return;
    }
    json[key] = nullptr;
    json["nonfinite"].push_back(key);
  }
  void number(const std::string& key, const std::optional<double>& value) {
    if (value) number(key, *value);
  }
  Json json;
};

namespace {

/// The name of the `number`-th file that is full: events.1.jsonl of events.jsonl.
std::filesystem::path rotated(const std::filesystem::path& path, int number) {
  return path.parent_path() /
         fmt::format("{}.{}{}", path.stem().string(), number, path.extension().string());
}

/// Truncates a file after its last complete line: a killed run may have left a partial one.
void drop_half_line(const std::string& path) {
  const std::optional<std::string> text = read_if_file(path, std::size_t{1} << 30);
  if (!text) return;
  const std::size_t end = text->rfind('\n');
  std::error_code ignored;
  std::filesystem::resize_file(path, end == std::string::npos ? 0 : end + 1, ignored);
}

/// Removes the full files of the run that is being overwritten, and nothing else of such a name.
void remove_full_files(const std::filesystem::path& path) {
  constexpr std::string_view kBegin = "{\"event\":";
  std::error_code ignored;
  for (int number = 1;; ++number) {
    const std::optional<std::string> text = begin_of_file(rotated(path, number), kBegin.size());
    if (text != kBegin) return;
    std::filesystem::remove(rotated(path, number), ignored);
  }
}

}  // namespace

std::vector<std::filesystem::path> event_files(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> out;
  for (int number = 1; std::filesystem::is_regular_file(rotated(path, number)); ++number)
    out.push_back(rotated(path, number));
  out.push_back(path);
  return out;
}

EventLog::EventLog(const std::string& path, bool append, std::int64_t most_bytes, OutputTakes takes)
    : takes_(takes), most_bytes_(most_bytes), start_(steady_seconds()) {
  if (path == "-") {
    std::fflush(stdout);
    descriptor_ = STDOUT_FILENO;
    return;
  }
  path_ = path;
  // A pipe can neither be read back nor truncated.
  if (append && std::filesystem::is_regular_file(path)) drop_half_line(path);
  if (!append) remove_full_files(path);
  open(append ? OutputMode::kAppend : OutputMode::kReplace);
}

void EventLog::open(OutputMode mode) {
  descriptor_ = open_output(path_, mode, takes_, "events: ");
  struct stat status {};
  const bool is_file = ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  if (!is_file) most_bytes_ = std::numeric_limits<std::int64_t>::max();  // a pipe, a device
  written_ = is_file ? status.st_size : 0;
}

void EventLog::rotate(std::size_t line_bytes) {
  const auto bytes = static_cast<std::int64_t>(line_bytes);
  if (path_.empty() || written_ == 0 || bytes <= most_bytes_ - written_) return;
  const std::filesystem::path to = rotated(path_, static_cast<int>(event_files(path_).size()));
  std::error_code failed;
  std::filesystem::rename(path_, to, failed);
  if (failed) {
    most_bytes_ = std::numeric_limits<std::int64_t>::max();  // continue in this file
    return;
  }
  const int full = descriptor_;
  try {
    open(OutputMode::kReplace);
    ::close(full);
  } catch (const Error&) {
    std::filesystem::rename(to, path_, failed);
    most_bytes_ = std::numeric_limits<std::int64_t>::max();  // as above
  }
}

EventLog::~EventLog() {
  if (!path_.empty()) ::close(descriptor_);
}

void EventLog::write(Line& line) {
  if (gone_) return;
  line.json["seq"] = sequence_++;
  line.json["t"] = wall_seconds();
  line.json["el"] = steady_seconds() - start_;  // monotonic
  const std::string text =
      safe_text(line.json.dump(-1, ' ', false, Json::error_handler_t::replace)) + "\n";
  rotate(text.size());
  const bool written = path_.empty() ? write_all(descriptor_, text)  // maybe not ours alone
                                     : write_all_or_nothing(descriptor_, text);
  if (written) {
    written_ += static_cast<std::int64_t>(text.size());
    return;
  }
  // A closed pipe or a full disk must not end the training.
  gone_ = errno == EPIPE;
  if (gone_) {
    log_warning("events",
                "the reader of --metrics has closed the pipe; training continues without it");
  } else if (!std::exchange(warned_, true)) {
    log_warning("events", "cannot write {}: {}; training continues, but events will be missing",
                path_.empty() ? "standard output" : printable(path_), std::strerror(errno));
  }
}

void EventLog::run_start(const Options& options, const PlannedNetwork& network,
                         const std::string& run) {
  Line line("run_start");
  Json& json = line.json;
  json["schema"] = "pipetrain.events/1";
  json["run"] = run;
  json["version"] = PIPETRAIN_VERSION;
  Options copy = options;
  for (const OptionSpec& spec : describe_options(copy)) {
    if (!spec.applies_to("train")) continue;
    if (spec.get) json["config"][spec.name.substr(2)] = spec.get();
    for (const OptionSpec& part : spec.parts)
      if (part.get) json["config"][part.name.substr(2)] = part.get();
  }
  if (!options.trace.empty()) {  // which `report` reads, from any folder
    json["config"]["trace"] = std::filesystem::absolute(options.trace).lexically_normal().string();
  }
  json["seed"] = options.run.optimization.seed;
  json["pid"] = getpid();
  std::int64_t parameters = 0;
  for (const Parameter& parameter : network.graph().parameters)
    parameters += network.graph().graph[parameter.value].type.count();
  json["model"] = {{"file", options.run.model.path},
                   {"parameters", parameters},
                   {"ops", network.chain().order.size()}};
  json["data"] = {{"format", network.data().format},
                  {"samples", network.data().train->size()},
                  {"classes", network.graph().loss.classes}};
  json["stages"] = network.stages();
  json["threads"] = network.threads();
  write(line);
}

void EventLog::plan(const PlannedNetwork& network, const std::string& path) {
  Line line("plan");
  Json& json = line.json;
  json["file"] = path;
  const bool is_known = !network.profile().is_estimate;  // else the times are of any computer
  for (std::size_t s = 0; s < network.plan().stages.size(); ++s) {
    const StagePlan& stage = network.plan().stages[s];
    Json entry = {
        {"index", s},
        {"first_op", network.costs().elements[static_cast<std::size_t>(stage.first)].name},
        {"last_op", network.costs().elements[static_cast<std::size_t>(stage.last - 1)].name},
        {"devices", network.predicted_program().placement[s]},
        {"params", stage.parameter_bytes / sizeof(float)}};
    if (is_known) {
      entry["fwd_ms"] = stage.forward_seconds * 1e3;
      entry["bwd_ms"] = stage.backward_seconds * 1e3;
    }
    entry["mem_bytes"] = stage.memory.total();
    json["stages"].push_back(std::move(entry));
  }
  json["micro_batches"] = network.micro_batches();
  json["micro_batch_size"] = network.micro_batch();
  json["schedule"] = network.config().pipeline.schedule;
  if (is_known && network.has_predicted_steps())
    json["predicted"] = {{"step_ms", network.predicted_step_seconds() * 1e3},
                         {"bubble", network.predicted_bubble()}};
  write(line);
}

void EventLog::step(const StepReport& report) {
  last_step_ = report.step;
  Line line("step");
  line.json["step"] = report.step;
  line.json["total_steps"] = report.total_steps;
  line.number("epoch", report.epoch);
  for (const DataPart& part : report.parts)
    line.json["parts"].push_back({part.number, part.version});
  line.number("loss", report.loss);
  line.number("accuracy", report.accuracy);
  line.number("grad_norm", report.gradient_norm);
  line.number("lr", report.learning_rate);
  line.number("loss_scale", report.loss_scale);
  if (report.loss_scale || report.skipped_steps > 0) {
    line.json["skipped"] = report.skipped;
    line.json["skipped_steps"] = report.skipped_steps;
  }
  line.number("step_ms", report.seconds * 1e3);
  line.number("data_ms", report.data_seconds * 1e3);
  line.number("samples_per_s", report.samples_per_second);
  line.number("mfu", report.utilisation);
  line.number("bubble", report.bubble);
  if (!report.stage_busy.empty()) line.json["stage_busy"] = report.stage_busy;
  write(line);
}

void EventLog::evaluation(const EvaluationReport& report) {
  Line line("val");
  line.json["step"] = report.step;
  line.number("epoch", report.epoch);
  line.number("loss", report.loss);
  line.number("accuracy", report.accuracy);
  line.number("perplexity", report.perplexity);
  line.number("r2", report.r2);
  line.number("mae", report.mae);
  line.number("f1", report.f1);
  line.number("auc", report.auc);
  line.number("miou", report.miou);
  if (report.top_k) line.number(fmt::format("top{}", report.k), report.top_k);
  line.json["samples"] = report.samples;
  line.number("seconds", report.seconds);
  write(line);
}

void EventLog::checkpoint(const SaveOutcome& outcome) {
  Line line(outcome.written ? "checkpoint" : "warning");
  if (outcome.written) {
    ++checkpoints_;
    line.json["step"] = outcome.written->step;
    line.json["path"] = outcome.written->path.string();
    line.json["bytes"] = outcome.written->bytes;
    line.number("seconds", outcome.written->seconds);
    line.json["reason"] = outcome.written->reason;
    line.json["deleted"] = outcome.written->deleted;
  } else {
    line.json["code"] = "checkpoint_failed";
    line.json["message"] = outcome.failure;
  }
  write(line);
}

void EventLog::signal(const char* name, const char* action) {
  Line line("signal");
  line.json["name"] = name;
  line.json["action"] = action;
  write(line);
}

void EventLog::run_end(const std::string& status, int exit_code, const TrainingSummary& summary,
                       const std::string& output, std::int64_t output_step) {
  Line line("run_end");
  line.json["status"] = status;
  line.json["exit_code"] = exit_code;
  line.json["steps"] = std::max(summary.steps, last_step_);
  line.number("seconds", summary.seconds > 0 ? summary.seconds : steady_seconds() - start_);
  line.number("first_step_s", summary.first_step_seconds);
  line.number("steady_step_ms", summary.steady_step_seconds * 1e3);
  if (summary.skipped_steps > 0) line.json["skipped_steps"] = summary.skipped_steps;
  line.json["checkpoints"] = std::max(summary.checkpoints, checkpoints_);
  line.number("save_s", summary.save_seconds);
  line.json["output"] = output;
  if (output_step >= 0) line.json["output_step"] = output_step;
  if (summary.best)
    line.json["best"] = {{"metric", "val_" + summary.best->metric},
                         {"value", summary.best->value},
                         {"step", summary.best->step}};
  if (!summary.last_checkpoint.empty()) line.json["checkpoint"] = summary.last_checkpoint.string();
  write(line);
}

void EventLog::error(const std::string& message) {
  Line line("error");
  line.json["message"] = message;
  write(line);
}

}  // namespace pipetrain
