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
#include "base/safe_text.h"
#include "cli/commands/commands.h"
#include "cli/commands/run_folder.h"
#include "cli/commands/run_messages.h"
#include "cli/commands/supervise.h"
#include "cli/commands/trained_output.h"
#include "cli/options/resume_command_line.h"
#include "cli/output/output.h"
#include "cli/output/output_table.h"
#include "cli/output/progress_line.h"
#include "data/formats/csv_cells.h"
#include "train/evaluation.h"
#include "train/export.h"
#include "train/folder_lock.h"
#include "train/scores.h"
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

/// A text without the blanks around it: "accuracy >= 0.97" is "accuracy>=0.97".
std::string without_blanks(std::string text) {
  text.erase(text.find_last_not_of(' ') + 1);
  return text.erase(0, text.find_first_not_of(' '));
}

/// Error (kUsage) for what is no such demand, before anything is evaluated.
Assertion parse_assertion(const std::string& text) {
  Assertion out;
  out.text = text;
  for (const char* comparison : {">=", "<=", ">", "<"}) {
    const std::size_t at = text.find(comparison);
    if (at == std::string::npos) continue;
    out.comparison = comparison;
    out.metric = metric_named(without_blanks(text.substr(0, at)));
    const std::string number = without_blanks(text.substr(at + out.comparison.size()));
    char* end = nullptr;
    out.limit = std::strtod(number.c_str(), &end);
    PT_CHECK(end && end != number.c_str() && *end == 0, kUsage, "--assert: \"{}\" is not a number",
             printable(number));
    return out;
  }
  PT_FAIL(kUsage, "--assert takes METRIC>=NUMBER, not \"{}\"", printable(text));
}

/// Error (kUsage) where the task does not have the metric, before anything is evaluated.
void check_offered(const Assertion& assertion, const Loss& loss) {
  PT_CHECK(offers(loss, assertion.metric), kUsage, "--assert: a {} has no {}", loss.task,
           assertion.metric);
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
  if (report.mae) json["mae"] = number(*report.mae);
  if (report.f1) json["f1"] = *report.f1;
  if (report.auc) json["auc"] = *report.auc;
  if (report.miou) json["miou"] = *report.miou;
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
  if (report.mae) text += fmt::format("  mae {:.6g}", *report.mae);
  if (report.f1) text += fmt::format("  f1 {:.4f}", *report.f1);
  if (report.auc) text += fmt::format("  auc {:.4f}", *report.auc);
  if (report.miou) text += fmt::format("  miou {:.4f}", *report.miou);
  return fmt::format("{}  samples {}\n", text, report.samples);
}

/// The name of a class where classes have names, else its number.
std::string class_name(const std::vector<std::string>& names, std::size_t c) {
  return c < names.size() ? names[c] : fmt::format("{}", c);
}

/// Rows are labels, columns predictions.
std::string confusion_csv(const Confusion& confusion, const std::vector<std::string>& names) {
  std::string out = "label";
  const auto classes = static_cast<std::size_t>(confusion.classes);
  for (std::size_t c = 0; c < classes; ++c) out += "," + quoted_cell(class_name(names, c));
  for (std::size_t i = 0; i < confusion.counts.size(); ++i) {
    if (i % classes == 0) out += "\n" + quoted_cell(class_name(names, i / classes));
    out += fmt::format(",{}", confusion.counts[i]);
  }
  return out + "\n";
}

Json json_of(const std::vector<ClassScore>& classes, const std::vector<std::string>& names) {
  Json all = Json::array();
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const ClassScore& each = classes[c];
    Json json = {
        {"class", class_name(names, c)}, {"samples", each.labels}, {"precision", each.precision},
        {"recall", each.recall},         {"f1", each.f1},          {"iou", each.iou}};
    json["auc"] = each.auc ? Json(*each.auc) : Json();
    all.push_back(std::move(json));
  }
  return all;
}

std::string table_of(const std::vector<ClassScore>& classes,
                     const std::vector<std::string>& names) {
  constexpr std::size_t kMostRows = 1000, kMostName = 28;
  if (classes.empty() || classes.size() > kMostRows) return {};
  std::size_t width = 5;
  std::vector<std::string> shown;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    shown.push_back(first_characters(printable(class_name(names, c)), kMostName));
    width = std::max(width, columns_of(shown.back()));
  }
  const auto padded = [&](const std::string& name) {
    return name + std::string(width - columns_of(name), ' ');
  };
  std::string out = padded("class") + "  precision  recall      f1     auc     iou  samples\n";
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const ClassScore& each = classes[c];
    out += fmt::format("{}  {:>9.4f}  {:.4f}  {:.4f}  {:>6}  {:.4f}  {:>7}\n", padded(shown[c]),
                       each.precision, each.recall, each.f1,
                       each.auc ? fmt::format("{:.4f}", *each.auc) : "-", each.iou, each.labels);
  }
  return out;
}

/// The names of the classes: of the data, else of the training.
std::vector<std::string> class_names_of(const PlannedNetwork& network) {
  const std::vector<std::string> names = trained_classes(network.model().file);
  return names.empty() ? network.data().class_names : names;
}

/// Evaluates a model with what the options ask for, and shows it.
class Evaluator {
 public:
  Evaluator(const Options& options, const std::optional<Assertion>& assertion, PipelineRun& run)
      : options_(options),
        run_(run),
        names_(class_names_of(run.network())),
        needs_outputs_(options.top_k > 0 || !options.confusion.empty() || options.details ||
                       (assertion && needs_outputs(assertion->metric))) {
    const Loss& loss = run.network().graph().loss;
    if (assertion) check_offered(*assertion, loss);
    const bool ranks = loss.kind == LossKind::kCrossEntropy || loss.kind == LossKind::kCausalLm;
    PT_CHECK(options.top_k == 0 || ranks, kUsage,
             "--top-k: a {} has no top-k accuracy; leave it out", loss.task);
  }

  /// `checkpoint`: one of several that are evaluated; null: there is only the model.
  EvaluationReport evaluate_and_show(const Checkpoint* checkpoint) {
    EvaluationReport report =
        checkpoint ? evaluate(run_, checkpoint->step, checkpoint->epoch()) : evaluate(run_, 0, 0);
    Scores scores;
    if (needs_outputs_) {
      scores = outputs_.add(report, options_.top_k);
      PT_CHECK(options_.confusion.empty() || scores.confusion.classes > 0, kUsage,
               "the model is no classifier: it has no confusion matrix");
      PT_CHECK(options_.confusion.empty() || !scores.confusion.counts.empty(), kUsage,
               "{} classes are too many for a confusion matrix", scores.confusion.classes);
      if (!options_.confusion.empty())
        write_or_print(options_.confusion, confusion_csv(scores.confusion, names_));
    }
    if (options_.json) {
      Json json = {{"schema", "pipetrain.eval/1"}};
      if (checkpoint) json.update({{"step", report.step}, {"epoch", report.epoch}});
      json.update(json_of(report));
      if (options_.details) json["classes"] = json_of(scores.classes, names_);
      print(json.dump(checkpoint ? -1 : 2, ' ', false, Json::error_handler_t::replace) + "\n");
    } else if (options_.confusion != "-") {
      print((checkpoint ? fmt::format("step {}  ", report.step) : "") + text_of(report));
      if (options_.details) print(table_of(scores.classes, names_));
    }
    return report;
  }

 private:
  const Options& options_;
  PipelineRun& run_;
  std::vector<std::string> names_;
  bool needs_outputs_;
  OutputMetrics outputs_{run_};
};

void log_data_warnings(const PlannedNetwork& network) {
  for (const std::string& warning : network.data().warnings)
    log_info("eval", "note     {}", warning);
  log_left_out("eval", /*drops_last=*/false, network);
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

/// Reads data as the run does that is in `folder`, which has a copy of its tokenizer.
void follow_run(const FoundCheckpoint& found, const fs::path& folder, RunConfig& config) {
  TextOptions& text = config.data.text;
  const bool is_given = !text.tokenizer.empty();
  follow_training(describe_training(true, training_of(found), {}), config);
  std::error_code error;
  if (is_given || text.name.empty() || !fs::is_regular_file(folder / text.name, error)) return;
  text.tokenizer = (folder / text.name).string();
  text.from_model = true;
}

/// Evaluates every checkpoint of a run as it appears, until the run has ended.
int follow(Options& options, const std::optional<Assertion>& assertion) {
  const fs::path run = options.follow;
  const fs::path folder = run / "checkpoints";
  wait_for_run(run);
  std::set<std::string> done;
  std::optional<PlannedNetwork> network;
  std::optional<PipelineRun> started;
  std::optional<Evaluator> evaluator;
  EvaluationReport last;
  for (bool ended = false; !ended;) {
    // Events may be elsewhere, and a killed run writes no last one. Supervision, which ends last,
    // and `launch`, which locks its logs, may start it again.
    ended = !is_supervised(run) && !is_locked(run) && !is_locked(run / "logs");
    // A run that is about to replace this one has put its model there, and may yet fail.
    if (!started && !ended && has_earlier_model(run)) {
      ::usleep(500000);
      continue;
    }
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
      const bool is_first = !started;
      if (!started) {
        put_back_earlier_model(newer);
        if (options.run.model.path.empty() && options.arguments.empty())
          options.run.model.path = model_of(newer, "eval");
        resolve_model(options, "eval");
        resolve_device(options, "eval");
        // The checkpoint knows it, the model may be as it was before training.
        const ModelConfig trained = options_of("train", checkpoint.run.settings).run.model;
        options.run.model.parameters = trained.parameters;
        options.run.model.adapters = trained.adapters;
        std::error_code unknown;
        if (trained.adapters.rank > 0 &&
            !fs::equivalent(options.run.model.path, model_of(newer, "eval"), unknown))
          log_warning("eval", "the run's adapters are added to {}, which is not the run's model",
                      printable(options.run.model.path));
        follow_run(newer, run, options.run);
        network.emplace(plan_network(options.run, RunMode::kEvaluate));
        log_data_warnings(*network);
        started.emplace(*network);
        evaluator.emplace(options, assertion, *started);
      }
      for (const auto& [name, value] : exported_weights(checkpoint)) {
        const bool placed = started->runtime().write(name, value);
        if (!placed && is_first)
          log_warning("eval", "{} of the checkpoint is not part of the model", printable(name));
      }
      last = evaluator->evaluate_and_show(&checkpoint);
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
  check_one_prints({{"--json", options.json}, {"--confusion -", options.confusion == "-"}});
  std::optional<Assertion> assertion;
  if (!options.assertion.empty()) assertion = parse_assertion(options.assertion);
  if (const int k = assertion ? top_of(assertion->metric) : 0; k > 0) {
    PT_CHECK(options.top_k == 0 || options.top_k == k, kUsage,
             "--assert looks at top{}, --top-k says {}", k, options.top_k);
    options.top_k = k;
  }
  if (!options.follow.empty()) return follow(options, assertion);
  resolve_model(options, "eval");
  resolve_device(options, "eval");
  PlannedNetwork network = plan_network(options.run, RunMode::kEvaluate);
  log_data_warnings(network);
  PipelineRun run(network);
  const EvaluationReport report =
      Evaluator(options, assertion, run).evaluate_and_show(/*checkpoint=*/nullptr);
  if (assertion) check(*assertion, report);
  return 0;
}

}  // namespace pipetrain
