#include "cli/output/run_record.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/atomic_file.h"
#include "base/document.h"
#include "base/error.h"
#include "base/input_file.h"
#include "cli/output/events.h"

namespace pipetrain {
namespace {

using EventJson = nlohmann::json;
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kMostEventBytes = std::size_t{1} << 30;  // of one file

double real(const EventJson& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number() ? found->get<double>() : kUnknown;
}
std::int64_t whole(const EventJson& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}
std::string text(const EventJson& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : "";
}
const EventJson& part(const EventJson& event, const char* key) {
  static const EventJson nothing = EventJson::object();
  const auto found = event.find(key);
  return found != event.end() ? *found : nothing;
}

/// Of a run that went on after an end or an error, the latest start counts.
void take_start(const EventJson& event, RecordedRun& run) {
  run.seconds_before += run.ended && std::isfinite(run.seconds) ? run.seconds : run.elapsed;
  run.elapsed = 0;
  run.config.clear();
  run.error.clear();
  run.ended = false;
  run.status.clear();
  run.exit_code = 0;
  run.seconds = run.first_step_s = run.steady_step_ms = kUnknown;
  run.output.clear();
  run.name = text(event, "run");
  run.names.insert(run.name);
  run.version = text(event, "version");
  run.model = text(part(event, "model"), "file");
  run.parameters = whole(part(event, "model"), "parameters");
  run.operators = whole(part(event, "model"), "ops");
  run.data_format = text(part(event, "data"), "format");
  run.samples = whole(part(event, "data"), "samples");
  for (const auto& [key, value] : part(event, "config").items()) {
    if (value.is_string()) run.config.emplace_back(key, value.get<std::string>());
  }
}

void take_plan(const EventJson& event, RecordedRun& run) {
  run.schedule = text(event, "schedule");
  run.micro_batches = whole(event, "micro_batches");
  run.micro_batch_size = whole(event, "micro_batch_size");
  run.predicted_step_ms = real(part(event, "predicted"), "step_ms");
  run.predicted_bubble = real(part(event, "predicted"), "bubble");
  run.stages.clear();
  for (const EventJson& stage : part(event, "stages")) {
    std::vector<int> devices;
    for (const EventJson& device : part(stage, "devices"))
      devices.push_back(device.is_number_integer() ? device.get<int>() : -1);
    run.stages.push_back({text(stage, "first_op"), text(stage, "last_op"), whole(stage, "params"),
                          whole(stage, "mem_bytes"), real(stage, "fwd_ms"), real(stage, "bwd_ms"),
                          std::move(devices)});
  }
}

StepRecord step_of(const EventJson& event) {
  StepRecord step;
  step.step = whole(event, "step");
  step.epoch = real(event, "epoch");
  step.loss = real(event, "loss");
  step.accuracy = real(event, "accuracy");
  step.perplexity = real(event, "perplexity");
  step.lr = real(event, "lr");
  step.grad_norm = real(event, "grad_norm");
  step.loss_scale = real(event, "loss_scale");
  step.step_ms = real(event, "step_ms");
  step.data_ms = real(event, "data_ms");
  step.samples_per_s = real(event, "samples_per_s");
  step.bubble = real(event, "bubble");
  for (const EventJson& busy : part(event, "stage_busy")) {
    step.stage_busy.push_back(busy.is_number() ? busy.get<double>() : kUnknown);
  }
  return step;
}

void take_end(const EventJson& event, RecordedRun& run) {
  run.ended = true;
  run.status = text(event, "status");
  run.exit_code = static_cast<int>(whole(event, "exit_code"));
  run.seconds = real(event, "seconds");
  run.first_step_s = real(event, "first_step_s");
  run.steady_step_ms = real(event, "steady_step_ms");
  run.output = text(event, "output");
}

void remove_from(std::int64_t step, std::vector<StepRecord>& records) {
  while (!records.empty() && records.back().step >= step) records.pop_back();
}

/// Steps after a checkpoint are done again by a run that goes on from it, and their validations
/// are void.
void add_step(StepRecord record, RecordedRun& run) {
  remove_from(record.step, run.validations);
  remove_from(record.step, run.steps);
  run.steps.push_back(std::move(record));
}

void add_validation(StepRecord record, RecordedRun& run) {
  remove_from(record.step, run.validations);
  run.validations.push_back(std::move(record));
}

void take(const EventJson& event, RecordedRun& run) {
  const std::string kind = text(event, "event");
  if (kind == "run_start") take_start(event, run);
  if (kind == "plan") take_plan(event, run);
  if (kind == "step") add_step(step_of(event), run);
  if (kind == "val") add_validation(step_of(event), run);
  if (kind == "run_end") take_end(event, run);
  if (kind == "error") run.error = text(event, "message");
  if (const double elapsed = real(event, "el"); std::isfinite(elapsed)) run.elapsed = elapsed;
}

/// `first`: it begins with the run's start.
void read_event_file(const std::filesystem::path& path, bool first, RecordedRun& run) {
  check_is_file(path);
  std::istringstream file(
      with_context([] { return "reading events; give the folder of a run, as in runs/latest"; },
                   [&] { return read_file(path, ErrorKind::kUsage, kMostEventBytes); }));
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    const bool last = file.eof();
    const EventJson event = EventJson::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_discarded() && last) break;
    PT_CHECK(event.is_object() && event.contains("event"), kUsage,
             "\"{}\", line {}: not an event of a run", printable(path.string()), number);
    PT_CHECK(number > 1 || !first || text(event, "schema") == "pipetrain.events/1", kUsage,
             "\"{}\" does not begin with a run_start of pipetrain.events/1",
             printable(path.string()));
    take(event, run);
  }
}

void read_events(const std::filesystem::path& path, RecordedRun& run) {
  std::vector<std::filesystem::path> files = event_files(path);
  for (std::size_t i = 0; i < files.size(); ++i) {
    read_event_file(files[i], i == 0, run);
    // A run that goes on may have renamed the last file meanwhile.
    if (i + 1 == files.size() && files.size() < event_files(path).size()) {
      run = RecordedRun();
      files = event_files(path);
      i = static_cast<std::size_t>(-1);
    }
  }
  PT_CHECK(!run.name.empty(), kUsage, "\"{}\" contains no run", printable(path.string()));
}

void read_cut_reasons(const std::filesystem::path& path, RecordedRun& run) {
  const Document document = Document::read(path, "pipetrain.plan/1");
  if (!document.root().has("cut_reasons")) return;
  const DocumentField reasons = document.root().at("cut_reasons");
  for (std::size_t i = 0; i < reasons.size(); ++i)
    run.cut_reasons.push_back(reasons.item(i).text());
}

void read_kernels(const std::filesystem::path& path, RecordedRun& run) {
  const Document document = Document::read(path, "pipetrain.profile/1");
  const DocumentField nodes = document.root().at("nodes");
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const DocumentField node = nodes.item(i);
    // Earlier files do not say how often a node runs.
    const double runs = node.has("runs") ? node.at("runs").real(0, 1) : 1;
    run.kernels.push_back({node.at("op").text(), node.at("name").text(), node.at("part").text(),
                           runs * node.at("seconds").real()});
  }
  std::ranges::stable_sort(run.kernels, std::ranges::greater{}, &KernelRecord::seconds);
}

}  // namespace

std::string RecordedRun::option(const std::string& name) const {
  const auto found = std::ranges::find(config, name, &std::pair<std::string, std::string>::first);
  return found != config.end() ? found->second : "";
}

RecordedRun read_run(const std::filesystem::path& path) {
  const bool folder = std::filesystem::is_directory(path);
  const std::filesystem::path beside = folder ? path : path.parent_path();
  RecordedRun run;
  read_events(folder ? path / "events.jsonl" : path, run);
  if (std::filesystem::exists(beside / "plan.json")) read_cut_reasons(beside / "plan.json", run);
  if (std::filesystem::exists(beside / "profile.json")) read_kernels(beside / "profile.json", run);
  return run;
}

}  // namespace pipetrain
