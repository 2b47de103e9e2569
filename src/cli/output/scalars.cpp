#include "cli/output/scalars.h"

#include <fmt/format.h>

#include <optional>

namespace pipetrain {
namespace {

void add(Scalars& scalars, std::string tag, const std::optional<double>& value) {
  if (value) scalars.emplace_back(std::move(tag), *value);
}

}  // namespace

Scalars scalars_of(const StepReport& report) {
  Scalars scalars = {{"train/loss", report.loss}, {"train/lr", report.learning_rate}};
  add(scalars, "train/accuracy", report.accuracy);
  add(scalars, "train/grad_norm", report.gradient_norm);
  add(scalars, "train/loss_scale", report.loss_scale);
  scalars.emplace_back("perf/step_ms", report.seconds * 1e3);
  scalars.emplace_back("perf/samples_per_s", report.samples_per_second);
  add(scalars, "perf/mfu", report.utilisation);
  add(scalars, "pipeline/bubble", report.bubble);
  for (std::size_t d = 0; d < report.stage_busy.size(); ++d)
    scalars.emplace_back(fmt::format("pipeline/device{}/busy", d), report.stage_busy[d]);
  return scalars;
}

Scalars scalars_of(const EvaluationReport& report) {
  Scalars scalars = {{"val/loss", report.loss}};
  add(scalars, "val/accuracy", report.accuracy);
  if (report.top_k) scalars.emplace_back(fmt::format("val/top{}", report.k), *report.top_k);
  add(scalars, "val/perplexity", report.perplexity);
  add(scalars, "val/r2", report.r2);
  add(scalars, "val/mae", report.mae);
  add(scalars, "val/f1", report.f1);
  add(scalars, "val/auc", report.auc);
  add(scalars, "val/miou", report.miou);
  return scalars;
}

}  // namespace pipetrain
