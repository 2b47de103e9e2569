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

/// What --assert demands: "accuracy>=0.97".
struct Assertion {
  std::string text, metric, comparison;
  double limit = 0;
};

/// Error (kUsage) for what is no such demand, before anything is evaluated.
Assertion parse_assertion(const std::string& text) {
  Assertion out;
  out.text = text;
  for (const char* comparison : {">=", "<=", ">", "<"}) {
    const std::size_t at = text.find(comparison);
    if (at == std::string::npos) continue;
    out.comparison = comparison;
    out.metric = metric_named(text.substr(0, at));
    const std::string number = text.substr(at + out.comparison.size());
    char* end = nullptr;
    out.limit = std::strtod(number.c_str(), &end);
    PT_CHECK(end && end != number.c_str() && *end == 0, kUsage, "--assert: \"{}\" is not a number",
             printable(number));
    return out;
  }
  PT_FAIL(kUsage, "--assert takes METRIC>=NUMBER, not \"{}\"", printable(text));
}

/// Error (kAssertion) when the report does not have what is demanded.
void check(const Assertion& assertion, const EvaluationReport& report) {
  const std::optional<double> value = metric_of(report, assertion.metric);
  PT_CHECK(value.has_value(), kUsage, "--assert: this model has no {}", assertion.metric);
  const bool holds = assertion.comparison == ">="   ? *value >= assertion.limit
                     : assertion.comparison == "<=" ? *value <= assertion.limit
                     : assertion.comparison == ">"  ? *value > assertion.limit
                                                    : *value < assertion.limit;
  PT_CHECK(holds, kAssertion, "--assert {} does not hold: {} is {:.6g}", assertion.text,
           assertion.metric, *value);
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
  const bool large = std::abs(report.loss) >= 1e6;
  std::string text =
      large ? fmt::format("loss {:.6e}", report.loss) : fmt::format("loss {:.6f}", report.loss);
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
int follow(Options& options, const std::optional<Assertion>& assertion) {
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
  if (assertion) check(*assertion, last);
  return 0;
}

}  // namespace

int eval_command(Options& options) {
  resolve_verbosity(options);
  PT_CHECK(options.run.data.path != "synthetic", kUsage, "eval needs --data PATH");
  std::optional<Assertion> assertion;
  if (!options.assertion.empty()) assertion = parse_assertion(options.assertion);
  if (const int k = assertion ? top_of(assertion->metric) : 0; k > 0) {
    PT_CHECK(options.top_k == 0 || options.top_k == k, kUsage,
             "--assert looks at top{}, --top-k says {}", k, options.top_k);
    options.top_k = k;
  }
  if (!options.follow.empty()) return follow(options, assertion);
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
  if (assertion) check(*assertion, report);
  return 0;
}

}  // namespace pipetrain
