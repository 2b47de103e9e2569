// pipetrain eval: loss and metrics of a model on data, once or of every checkpoint of a run.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands/commands.h"
#include "cli/commands/trained_output.h"
#include "cli/options/resume_command_line.h"
#include "cli/output/output.h"
#include "train/export.h"
#include "train/predict.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The value that --assert names: a metric, or "top5" for what --top-k 5 gives.
std::optional<double> asserted(const EvaluationReport& report, const std::string& name) {
  if (report.top_k && name == fmt::format("top{}", report.k)) return report.top_k;
  return metric_of(report, metric_named(name));
}

/// "accuracy>=0.97" against a report. Error (kAssertion) when it does not hold.
void check_assertion(const std::string& text, const EvaluationReport& report) {
  for (const std::string_view comparison : {">=", "<=", ">", "<"}) {
    const std::size_t at = text.find(comparison);
    if (at == std::string::npos) continue;
    const std::string name = text.substr(0, at);
    char* end = nullptr;
    const std::string number = text.substr(at + comparison.size());
    const double limit = std::strtod(number.c_str(), &end);
    PT_CHECK(end && end != number.c_str() && *end == 0, kUsage, "--assert: \"{}\" is not a number",
             printable(number));
    const std::optional<double> value = asserted(report, name);
    PT_CHECK(value.has_value(), kUsage, "--assert: this model has no {}", printable(name));
    const bool holds = comparison == ">="   ? *value >= limit
                       : comparison == "<=" ? *value <= limit
                       : comparison == ">"  ? *value > limit
                                            : *value < limit;
    PT_CHECK(holds, kAssertion, "--assert {} does not hold: {} is {:.6g}", text, name, *value);
    return;
  }
  PT_FAIL(kUsage, "--assert takes METRIC>=NUMBER, not \"{}\"", printable(text));
}

Json json_of(const EvaluationReport& report) {
  const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
  Json json = {
      {"loss", number(report.loss)}, {"samples", report.samples}, {"seconds", report.seconds}};
  if (report.accuracy) json["accuracy"] = *report.accuracy;
  if (report.top_k) json[fmt::format("top{}", report.k)] = *report.top_k;
  if (report.perplexity) json["perplexity"] = number(*report.perplexity);
  if (report.r2) json["r2"] = number(*report.r2);
  return json;
}

std::string text_of(const EvaluationReport& report) {
  std::string text = fmt::format("loss {:.6f}", report.loss);
  if (report.accuracy) text += fmt::format("  accuracy {:.4f}", *report.accuracy);
  if (report.top_k) text += fmt::format("  top{} {:.4f}", report.k, *report.top_k);
  if (report.perplexity) text += fmt::format("  perplexity {:.4f}", *report.perplexity);
  if (report.r2) text += fmt::format("  r2 {:.4f}", *report.r2);
  return fmt::format("{}  samples {}\n", text, report.samples);
}

/// Rows are labels, columns predictions.
std::string confusion_csv(const Confusion& confusion) {
  std::string out = "label";
  for (std::int64_t c = 0; c < confusion.classes; ++c) out += fmt::format(",{}", c);
  for (std::size_t i = 0; i < confusion.counts.size(); ++i) {
    const auto classes = static_cast<std::size_t>(confusion.classes);
    if (i % classes == 0) out += fmt::format("\n{}", i / classes);
    out += fmt::format(",{}", confusion.counts[i]);
  }
  return out + "\n";
}

/// Waits until a run has begun in a folder, which need not be there yet.
void wait_for_run(const fs::path& run) {
  std::error_code error;
  const auto has_begun = [&] {
    return fs::is_directory(run, error) && (is_locked(run) || !fs::is_empty(run, error));
  };
  if (has_begun()) return;
  log_info("eval", "waiting for a run in {}", printable(run.string()));
  while (!has_begun()) ::usleep(200000);
}

/// Evaluates every checkpoint of a run as it appears, until the run has ended.
int follow(Options& options) {
  const fs::path run = options.follow;
  const fs::path folder = run / "checkpoints";
  wait_for_run(run);
  std::set<std::string> done;
  std::optional<PlannedNetwork> network;
  std::optional<PipelineRun> started;
  EvaluationReport last;
  for (bool ended = false; !ended;) {
    ended = !is_locked(run);  // events may be elsewhere, and a killed run writes no last one
    std::vector<fs::path> found = list_checkpoints(folder);
    std::reverse(found.begin(), found.end());
    for (const fs::path& path : found) {
      if (!done.insert(path.filename().string()).second) continue;
      FoundCheckpoint newer{path, {}, {}};
      const Checkpoint& checkpoint = newer.checkpoint;
      try {
        newer.checkpoint = read_checkpoint(path);
      } catch (const Error& error) {
        log_debug("eval", "{}", error.what());  // deleted while it was read
        continue;
      }
      if (!started) {
        if (options.run.model.path.empty() && options.arguments.empty())
          options.run.model.path = model_of(newer, "eval");
        resolve_model(options, "eval");
        resolve_device(options, "eval");
        // The checkpoint knows it, the model may be as it was before training.
        follow_training(describe_training(true, training_of(newer), {}), options.run);
        network.emplace(plan_network(options.run, RunMode::kEvaluate));
        started.emplace(*network);
      }
      for (const auto& [name, value] : exported_weights(checkpoint))
        started->runtime().write(name, value);
      last = evaluate(*started, checkpoint.step, checkpoint.epoch());
      if (options.json) {
        Json json = {{"schema", "pipetrain.eval/1"}, {"step", last.step}, {"epoch", last.epoch}};
        json.update(json_of(last));
        print(json.dump() + "\n");
      } else {
        print(fmt::format("step {}  {}", last.step, text_of(last)));
      }
      std::fflush(stdout);
    }
    if (!ended) ::usleep(500000);
  }
  PT_CHECK(started, kUsage, "--follow: the run in \"{}\" has ended without a checkpoint",
           printable(options.follow));
  if (!options.assertion.empty()) check_assertion(options.assertion, last);
  return 0;
}

}  // namespace

int eval_command(Options& options) {
  resolve_verbosity(options);
  PT_CHECK(options.run.data.path != "synthetic", kUsage, "eval needs --data PATH");
  if (!options.follow.empty()) return follow(options);
  resolve_model(options, "eval");
  resolve_plan(options);
  resolve_device(options, "eval");
  PlannedNetwork network = plan_network(options.run, RunMode::kEvaluate);
  PipelineRun run(network);
  EvaluationReport report = evaluate(run, 0, 0);
  std::optional<Confusion> confusion;
  if (options.top_k > 0 || !options.confusion.empty()) {
    std::map<std::string, Shape> shapes;
    const TrainingGraph& graph = network.graph();
    for (const GraphInput& input : graph.inputs) {
      const auto& dims = graph.graph[input.value].type.shape.dims();
      shapes[input.name] = Shape(std::vector<std::int64_t>(dims.begin() + 1, dims.end()));
    }
    const Predictor predictor(options.run.model, options.run.pipeline.backend,
                              network.micro_batch(), shapes);
    confusion = confuse(predictor, *network.evaluation_data(), graph.loss.output,
                        graph.loss.ignore_index, std::max(1, options.top_k));
    if (options.top_k > 0) {
      report.k = options.top_k;
      report.top_k = static_cast<double>(confusion->in_top_k) /
                     static_cast<double>(std::max<std::int64_t>(1, confusion->counted));
    }
    if (!options.confusion.empty()) write_or_print(options.confusion, confusion_csv(*confusion));
  }
  if (options.json) {
    Json json = {{"schema", "pipetrain.eval/1"}};
    json.update(json_of(report));
    print(json.dump(2) + "\n");
  } else if (options.confusion != "-") {
    print(text_of(report));
  }
  if (!options.assertion.empty()) check_assertion(options.assertion, report);
  return 0;
}

}  // namespace pipetrain
