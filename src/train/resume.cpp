#include "train/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "train/fingerprint.h"

namespace pipetrain {
namespace {

constexpr const char* kLossScaleNumber = "loss-scale";
constexpr const char* kAdaptingScale = "auto";

std::string state_key(const OptimizerSettings& optimizer, int slot) {
  return std::string(state_name(optimizer, slot)) + "/";
}

/// What the session has made of the settings, as far as numbers depend on it.
std::vector<Setting> facts_of(const Session& session) {
  const RunConfig& config = session.config();
  const OptimizationConfig& optimization = config.optimization;
  std::string places;
  for (const auto& devices : session.predicted_program().placement)
    places += fmt::format("{}{}", places.empty() ? "" : ",", devices.size());
  std::vector<Setting> facts = {
      {"schedule", config.pipeline.schedule},
      {"updates", session.asynchronous() ? "asynchronous" : "synchronous"},
      {"stages", fmt::format("{}", session.stages())},
      {"replicas", places},
      {"micro-batch-size", fmt::format("{}", session.micro_batch())},
      {"threads", fmt::format("{}", session.threads())},
      {"device", !config.pipeline.gpu_ids.empty()           ? "cuda"
                 : config.pipeline.backend == Backend::kCpu ? "cpu"
                                                            : "reference"},
      {"batch-size", fmt::format("{}", optimization.batch_size)},
      {"steps", fmt::format("{}", session.total_steps())},
      {"drop-last", optimization.drop_last ? "true" : "false"},
      {"loss", std::string(name_of(session.graph().loss.kind))},
      {"optimizer", std::string(name_of(optimization.optimizer.kind))},
      {"dampening", fmt::format("{}", optimization.optimizer.dampening)}};
  if (config.model.precision == DType::kFloat16)
    facts.emplace_back(kLossScaleNumber, session.loss_scaling().adapts
                                             ? kAdaptingScale
                                             : fmt::format("{}", optimization.loss_scale));
  return facts;
}

/// Mini-batches of the round that are done, in units.
int units_done(const Session& session, const Checkpoint& checkpoint) {
  return static_cast<int>((checkpoint.step - checkpoint.round_start) * session.micro_batches());
}

/// Goes on where an adapting scale was; another one begins as it is set. Either way steps that were
/// left out stay so.
LossScale scale_after(const Session& session, const Checkpoint& checkpoint) {
  const LossScaling scaling = session.loss_scaling();
  if (scaling.adapts && checkpoint.run.value(kLossScaleNumber) == kAdaptingScale)
    return checkpoint.loss_scale;
  return {scaling.initial, 0, checkpoint.loss_scale.skipped};
}

}  // namespace

RunRecord describe_run(const Session& session, std::vector<Setting> settings,
                       const std::vector<Setting>& numbers) {
  RunRecord run;
  run.model_fingerprint = fingerprint(session.model().file);
  run.data_fingerprint = fingerprint(*session.data().train);
  run.settings = std::move(settings);
  run.numbers = facts_of(session);
  run.numbers.insert(run.numbers.end(), numbers.begin(), numbers.end());
  return run;
}

Checkpoint make_checkpoint(const Session& session, const RunRecord& run, std::int64_t step,
                           std::int64_t round_start, std::int64_t round_batches,
                           const std::vector<StageContent>& contents) {
  Checkpoint out;
  out.run = run;
  out.step = step;
  out.total_steps = session.total_steps();
  out.batches_per_epoch = session.batches_per_epoch();
  out.cuts = session.the_plan().cuts();
  out.round_start = round_start;
  out.round_batches = round_batches;
  out.loss_scale = session.runtime().loss_scale();
  const OptimizerSettings& optimizer = session.config().optimization.optimizer;
  for (const StageContent& content : contents) {
    out.weights.insert(content.weights.begin(), content.weights.end());
    for (int slot = 0; slot < state_slots(optimizer); ++slot) {
      for (const auto& [name, values] : content.states[slot])
        out.optimizer[state_key(optimizer, slot) + name] = values;
    }
    for (const auto& [name, values] : content.averages)
      out.optimizer[std::string(kAverageKey) + name] = values;
    for (const auto& [version, parameters] : content.stashed)
      out.stashed[version].insert(parameters.begin(), parameters.end());
    out.updates.push_back(content.updates);
  }
  return out;
}

std::vector<std::string> compare_run(const Session& session, const Checkpoint& checkpoint,
                                     const std::vector<Setting>& numbers) {
  const RunRecord now = describe_run(session, {}, numbers);
  PT_CHECK(now.model_fingerprint == checkpoint.run.model_fingerprint, kUsage,
           "the checkpoint is of another network than {}; give the same --model, or take over what "
           "fits into a new run "
           "with --resume-weights-only",
           printable(session.config().model.path));
  PT_CHECK(now.data_fingerprint == checkpoint.run.data_fingerprint, kData,
           "the checkpoint was trained on other data ({}) than these ({}); give the same --data, "
           "or begin a new run with "
           "its weights: --resume-weights-only",
           checkpoint.run.data_fingerprint, now.data_fingerprint);
  const std::string optimizer = checkpoint.run.value("optimizer");
  PT_CHECK(optimizer == now.value("optimizer"), kUsage,
           "the checkpoint is of --optimizer {}, whose state {} cannot use; leave it, or begin a "
           "new run with its weights: "
           "--resume-weights-only",
           optimizer, now.value("optimizer"));
  // What the numbers do not depend on where all updates are synchronous.
  static const std::set<std::string> layout = {"schedule", "stages", "updates"};
  const bool synchronous =
      !session.asynchronous() && checkpoint.run.value("updates") == "synchronous";
  std::vector<std::string> changes;
  for (const auto& [name, value] : now.numbers) {
    const std::string before = checkpoint.run.value(name);
    const bool one_each = name == "replicas" &&
                          before.find_first_not_of("1,") == std::string::npos &&
                          value.find_first_not_of("1,") == std::string::npos;
    if (before == value || (synchronous && (layout.contains(name) || one_each))) continue;
    changes.push_back(fmt::format("{} {} → {}", name, before.empty() ? "none" : before,
                                  value.empty() ? "none" : value));
  }
  return changes;
}

bool continues_in_flight(const Session& session, const Checkpoint& checkpoint) {
  const RunRecord now = describe_run(session, {}, {});
  const auto same = [&](const char* name) { return now.value(name) == checkpoint.run.value(name); };
  return checkpoint.in_flight() && session.asynchronous() &&
         checkpoint.cuts == session.the_plan().cuts() && same("schedule") && same("replicas") &&
         same("micro-batch-size") && same("batch-size") &&
         checkpoint.batches_per_epoch == session.batches_per_epoch() &&
         checkpoint.round_batches == session.round_batches(checkpoint.round_start);
}

std::int64_t first_round(const Session& session, const Checkpoint& checkpoint) {
  return continues_in_flight(session, checkpoint)
             ? checkpoint.round_start
             : std::min(checkpoint.step, session.total_steps());
}

std::optional<ProgramCut> restore(Session& session, const Checkpoint& checkpoint) {
  std::optional<ProgramCut> cut;
  if (continues_in_flight(session, checkpoint)) {
    cut = cut_program(session.program(session.round_units(checkpoint.round_start)),
                      units_done(session, checkpoint));
  }
  const OptimizerSettings& optimizer = session.config().optimization.optimizer;
  StageContent content;
  content.weights = checkpoint.weights;
  for (int slot = 0; slot < state_slots(optimizer); ++slot) {
    const std::string key = state_key(optimizer, slot);
    for (const auto& [name, values] : checkpoint.optimizer) {
      if (name.starts_with(key)) content.states[slot][name.substr(key.size())] = values;
    }
  }
  for (const auto& [name, values] : checkpoint.optimizer) {
    if (name.starts_with(kAverageKey)) content.averages[name.substr(kAverageKey.size())] = values;
  }
  for (int s = 0; s < session.stages(); ++s) {
    const auto stage = static_cast<std::size_t>(s);
    const bool same_stages =
        checkpoint.updates.size() == static_cast<std::size_t>(session.stages());
    content.updates = same_stages ? checkpoint.updates[stage] : checkpoint.step;
    content.stashed.clear();
    // The newest version is in `weights`; the stage takes of the others what it holds.
    for (std::size_t v = 0; cut && v + 1 < cut->versions[stage].size(); ++v) {
      const int version = cut->versions[stage][v];
      const auto found = checkpoint.stashed.find(version);
      PT_CHECK(found != checkpoint.stashed.end(), kData,
               "the checkpoint lacks version {} of the weights of stage {}", version, s);
      content.stashed[version] = found->second;
    }
    session.runtime().restore(s, content);
  }
  session.runtime().set_loss_scale(scale_after(session, checkpoint));
  return cut;
}

void restore_weights(Session& session, const Checkpoint& checkpoint) {
  StageContent content;
  content.weights = checkpoint.weights;
  for (int s = 0; s < session.stages(); ++s) session.runtime().restore(s, content);
}

}  // namespace pipetrain
