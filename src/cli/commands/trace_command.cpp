#include "cli/commands/trace_command.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/document.h"
#include "base/error.h"
#include "cli/output/output.h"
#include "pipeline/view/trace.h"
#include "pipeline/view/trace_diff.h"

namespace pipetrain {
namespace {

/// One side of the comparison: the steps of a file on the wanted side, or where it has none, all.
struct Side {
  const TraceFile& file;
  std::vector<const TraceStep*> steps;

  Side(const TraceFile& trace, TraceSide wanted, bool strict) : file(trace) {
    for (const TraceStep& step : trace.steps) {
      if (step.side == wanted) steps.push_back(&step);
    }
    if (!steps.empty() || strict) return;
    for (const TraceStep& step : trace.steps) steps.push_back(&step);
  }
  const Program& program(const TraceStep& step) const { return file.programs[step.program]; }
};

/// The step to compare a measured one with: that of the same number, else the first of the same
/// schedule. Null: none.
const TraceStep* partner(const Side& predicted, const Program& program, std::int64_t number) {
  const TraceStep* found = nullptr;
  for (const TraceStep* step : predicted.steps) {
    if (predicted.program(*step) != program) continue;
    if (step->step == number) return step;
    if (!found) found = step;
  }
  return found;
}

Json json_of(const StepDifference& difference) {
  Json causes = Json::array();
  for (const DifferenceCause& cause : difference.causes) {
    Json entry = {{"cause", to_text(cause.kind)}, {"seconds", cause.seconds}};
    if (cause.stage >= 0) entry["stage"] = cause.stage;
    if (cause.from_stage >= 0) entry["from_stage"] = cause.from_stage;
    if (cause.device >= 0) entry["device"] = cause.device;
    if (cause.predicted_mean > 0 || cause.measured_mean > 0) {
      entry["predicted_mean_seconds"] = cause.predicted_mean;
      entry["measured_mean_seconds"] = cause.measured_mean;
    }
    entry["text"] = cause.text();
    causes.push_back(std::move(entry));
  }
  Json json = {{"steps", difference.steps},
               {"predicted_seconds", difference.predicted_seconds},
               {"measured_seconds", difference.measured_seconds},
               {"predicted_bubble", difference.predicted_bubble},
               {"measured_bubble", difference.measured_bubble}};
  if (difference.predicted_overlap) json["predicted_overlap"] = *difference.predicted_overlap;
  if (difference.measured_overlap) json["measured_overlap"] = *difference.measured_overlap;
  if (difference.theoretical_bubble) json["theoretical_bubble"] = *difference.theoretical_bubble;
  json["causes"] = std::move(causes);
  return json;
}

}  // namespace

int trace_command(const TraceCommandOptions& options) {
  const std::vector<std::string>& arguments = options.arguments;
  PT_CHECK(!arguments.empty() && arguments[0] == "diff" &&
               (arguments.size() == 2 || arguments.size() == 3),
           kUsage,
           "trace needs diff and one or two trace files, for example: pipetrain trace diff "
           "predicted.json measured.json");
  const bool one_file = arguments.size() == 2;
  const TraceFile first = read_trace(arguments[1]);
  const TraceFile second = one_file ? TraceFile{} : read_trace(arguments[2]);
  const Side predicted(first, TraceSide::kPredicted, one_file);
  const Side measured(one_file ? first : second, TraceSide::kMeasured, one_file);
  PT_CHECK(!predicted.steps.empty() && !measured.steps.empty(), kUsage,
           "{} has no {} step; give a second trace file, or one of a run with --trace",
           printable(arguments[1]), predicted.steps.empty() ? "predicted" : "measured");

  std::vector<StepDifference> differences;
  for (const TraceStep* step : measured.steps) {
    const Program& program = measured.program(*step);
    const TraceStep* before = partner(predicted, program, step->step);
    if (before)
      differences.push_back(
          explain(program, before->events, step->events, 0, {before->buckets, step->buckets}));
  }
  const bool asynchronous = std::ranges::any_of(measured.steps, [&](const TraceStep* step) {
    return is_asynchronous(measured.program(*step).rule);
  });
  PT_CHECK(!differences.empty() || !asynchronous, kUsage,
           "{} has rounds of an asynchronous schedule, which are longer than the predicted one and "
           "cannot be compared with it; open the file in ui.perfetto.dev",
           printable(arguments.back()));
  PT_CHECK(!differences.empty(), kUsage,
           "{} and {} have no steps with the same schedule, stages and micro-batches",
           printable(arguments[1]), printable(arguments.back()));
  const StepDifference mean = mean_of(differences);
  const std::string text = options.json ? document_text("pipetrain.difference/1", json_of(mean))
                                        : difference_text(mean, std::max(options.causes, 0));
  print(text);
  return 0;
}

}  // namespace pipetrain
