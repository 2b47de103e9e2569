#include "train/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "passes/linearise.h"
#include "train/export.h"
#include "train/fingerprint.h"
#include "train/replica_updates.h"

namespace pipetrain {
namespace {

constexpr const char* kLossScaleNumber = "loss-scale";
constexpr const char* kAdaptingScale = "auto";
constexpr const char* kMemoryUnits = "memory-units";

std::string state_key(const OptimizerSettings& optimizer, int slot) {
  return std::string(state_name(optimizer, slot)) + "/";
}

/// The resolved settings of the network that affect the results.
std::vector<Setting> facts_of(const PlannedNetwork& network) {
  const RunConfig& config = network.config();
  const OptimizationConfig& optimization = config.optimization;
  std::string places;
  for (const auto& devices : network.predicted_program().placement)
    places += fmt::format("{}{}", places.empty() ? "" : ",", devices.size());
  std::vector<Setting> facts = {
      {"schedule", config.pipeline.schedule},
      {"updates", network.asynchronous() ? "asynchronous" : "synchronous"},
      {"stages", fmt::format("{}", network.stages())},
      {"replicas", places},
      {"micro-batch-size", fmt::format("{}", network.micro_batch())},
      {"threads", fmt::format("{}", network.threads())},
      {"device", !config.pipeline.gpu_ids.empty()           ? "cuda"
                 : config.pipeline.backend == Backend::kCpu ? "cpu"
                                                            : "reference"},
      {"batch-size", fmt::format("{}", optimization.batch_size)},
      {"steps", fmt::format("{}", network.total_steps())},
      {"drop-last", optimization.drop_last ? "true" : "false"},
      {"loss", std::string(name_of(network.graph().loss.kind))},
      {"optimizer", std::string(name_of(optimization.optimizer.kind))},
      {"dampening", fmt::format("{}", optimization.optimizer.dampening)}};
  if (const ReplicaUpdates& updates = config.pipeline.replica_updates; !updates.waits()) {
    facts.emplace_back("replica-mode", words_on(updates));
    facts.emplace_back("samples-of-part", fmt::format("{}", samples_of_part(config)));
  }
  // A stage that may run fewer mini-batches ahead reads newer weights.
  if (sends_whole_mini_batches(network.schedule().rule()))
    facts.emplace_back(kMemoryUnits, fmt::format("{}", config.pipeline.memory_units));
  const TrainingDescription training = training_of(network);
  if (training.normalization != "auto") facts.emplace_back("normalize", training.normalization);
  if (!training.image_shapes.empty()) facts.emplace_back("image-sizes", training.image_shapes);
  if (config.model.precision == DType::kFloat16)
    facts.emplace_back(kLossScaleNumber, network.loss_scaling().adapts
                                             ? kAdaptingScale
                                             : fmt::format("{}", optimization.loss_scale));
  // With other data, validations cannot be compared with those before.
  if (const auto& validation = network.data().validation)
    facts.emplace_back("validation", fingerprint(*validation));
  return facts;
}

/// Whether each stage has one device: "1,1,1", and not "11".
bool is_one_each(std::string_view places) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i] != (i % 2 == 0 ? '1' : ',')) return false;
  }
  return places.size() % 2 == 1;
}

/// Mini-batches of the round that are done, in units.
int units_done(const PlannedNetwork& network, const Checkpoint& checkpoint) {
  return static_cast<int>((checkpoint.step - checkpoint.round_start) * network.micro_batches());
}

/// The order of the nodes that is cut: where the cuts decide results, also the standard one, since
/// other nodes, as those of another precision, are told by their number.
std::vector<int> order_of_cuts(const PlannedNetwork& network) {
  return network.asynchronous() && network.stages() > 1 ? order_of(network.graph(), network.chain())
                                                        : network.order();
}

/// Older checkpoints have no order where it is the standard one.
bool is_cut_in_same_order(const PlannedNetwork& network, const Checkpoint& checkpoint) {
  return checkpoint.order.empty() ? network.order().empty()
                                  : checkpoint.order == order_of_cuts(network);
}

/// Older checkpoints have them among the given settings only, by themselves or as a part of the
/// schedule.
std::string memory_units_of(const RunRecord& run) {
  if (std::string recorded = run.value(kMemoryUnits); !recorded.empty()) return recorded;
  std::string units("0");
  if (run.value("updates") != "asynchronous") return units;
  const std::string part = std::string(kMemoryUnits) + "=";
  for (const auto& [name, value] : run.settings) {
    if (name.ends_with(kMemoryUnits)) units = value;
    if (!name.ends_with("schedule")) continue;
    const std::size_t found = value.find(part);
    if (found == std::string::npos) continue;
    const std::size_t first = found + part.size();
    units = value.substr(first, value.find(',', first) - first);
  }
  return units;
}

/// A dynamic loss scale continues from its saved value; a fixed one is used as set. Skipped steps
/// stay skipped.
LossScale scale_after(const PlannedNetwork& network, const Checkpoint& checkpoint) {
  const LossScaling scaling = network.loss_scaling();
  if (scaling.adapts && checkpoint.run.value(kLossScaleNumber) == kAdaptingScale)
    return checkpoint.loss_scale;
  return {scaling.initial, 0, checkpoint.loss_scale.skipped};
}

/// The trained weights and running statistics of a network.
std::vector<const Value*> tensors_of(const PlannedNetwork& network) {
  std::vector<const Value*> tensors;
  for (const Value& value : network.graph().graph.values) {
    if (value.role == Role::kParameter || value.role == Role::kState) tensors.push_back(&value);
  }
  return tensors;
}

/// Tensors that are frozen, or adapters that are left out, would silently have the values of the
/// model's file again. `same_network`: nothing else can be without use.
void check_that_all_are_used(const PlannedNetwork& network, const Checkpoint& checkpoint,
                             bool same_network) {
  std::set<std::string_view> used;
  for (const Value* tensor : tensors_of(network)) used.insert(tensor->name);
  for (const auto& [name, values] : checkpoint.weights) {
    const bool is_adapter = name.find(".lora_") != std::string::npos;
    PT_CHECK(used.contains(name) ||
                 !(same_network || is_adapter || network.model().rules.contains(name)),
             kUsage,
             "the checkpoint has trained values of \"{}\", which this run would reset to those of "
             "the model file; give the same {}, {}, {} and {} as before, or export the checkpoint "
             "and train that model",
             printable(name), setting("freeze"), setting("train-only"), setting("lora"),
             setting("bn"));
  }
}

/// Whether a checkpoint has a tensor of the network with the same name and type.
bool has_same(const Checkpoint& checkpoint, const Value& value) {
  const auto found = checkpoint.weights.find(value.name);
  return found != checkpoint.weights.end() && found->second.type() == value.type;
}

}  // namespace

RunRecord describe_run(const PlannedNetwork& network, std::vector<Setting> settings,
                       const std::vector<Setting>& numbers) {
  RunRecord run;
  run.model_fingerprint = fingerprint(network.model().file);
  run.data_fingerprint = network.data().shard_samples.empty() ? fingerprint(*network.data().train)
                                                              : network.data().shard_fingerprint;
  run.settings = std::move(settings);
  run.numbers = facts_of(network);
  run.numbers.insert(run.numbers.end(), numbers.begin(), numbers.end());
  return run;
}

Checkpoint make_checkpoint(const PipelineRun& run, const RunRecord& record, std::int64_t step,
                           std::int64_t round_start, std::int64_t round_batches,
                           const std::vector<StageContent>& contents) {
  Checkpoint out;
  const PlannedNetwork& network = run.network();
  out.run = record;
  out.step = step;
  out.total_steps = network.total_steps();
  out.batches_per_epoch = network.batches_per_epoch();
  out.cuts = network.plan().cuts();
  out.order = order_of_cuts(network);
  out.round_start = round_start;
  out.round_batches = round_batches;
  out.loss_scale = run.runtime().loss_scale();
  const OptimizerSettings& optimizer = network.config().optimization.optimizer;
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

std::vector<std::string> compare_run(const PlannedNetwork& network, const Checkpoint& checkpoint,
                                     const std::vector<Setting>& numbers) {
  const RunRecord now = describe_run(network, {}, numbers);
  PT_CHECK(now.model_fingerprint == checkpoint.run.model_fingerprint, kUsage,
           "the checkpoint is of another network than {}; give the same {}, or start a new "
           "run from the weights that match with {}",
           printable(network.config().model.path), setting("model"),
           setting("resume-weights-only"));
  PT_CHECK(now.data_fingerprint == checkpoint.run.data_fingerprint, kData,
           "the checkpoint was trained on other data ({}) than these ({}); give the same {}, with "
           "the same {}, {}, {} and {}, or start a new run from its weights: {}",
           checkpoint.run.data_fingerprint, now.data_fingerprint, setting("data"),
           setting("val-split"), setting("limit"), setting("seed"), setting("normalize"),
           setting("resume-weights-only"));
  const std::string optimizer = checkpoint.run.value("optimizer");
  PT_CHECK(optimizer == now.value("optimizer"), kUsage,
           "the checkpoint is of {} {}, whose state {} cannot use; leave it out, or start a new "
           "run from its weights: {}, with {} and {}",
           setting("optimizer"), optimizer, now.value("optimizer"), setting("resume-weights-only"),
           setting("model"), setting("data"));
  PT_CHECK(now.value("samples-of-part") == checkpoint.run.value("samples-of-part"), kUsage,
           "the updates of the checkpoint were made of other gradients than these options ask for; "
           "give its {} and {}, or start a new run from its weights: {}",
           setting("replica-mode"), setting("batch-size"), setting("resume-weights-only"));
  // What does not affect the results if all updates are synchronous.
  static const std::set<std::string> layout = {"schedule", "stages", "updates"};
  const bool synchronous =
      !network.asynchronous() && checkpoint.run.value("updates") == "synchronous";
  std::vector<std::string> changes;
  for (const auto& [name, value] : now.numbers) {
    if (checkpoint.run.predates(name)) continue;
    const std::string before =
        name == kMemoryUnits ? memory_units_of(checkpoint.run) : checkpoint.run.value(name);
    const bool one_each = name == "replicas" && is_one_each(before) && is_one_each(value);
    if (before == value || (synchronous && (layout.contains(name) || one_each))) continue;
    changes.push_back(fmt::format("{} {} → {}", name, before.empty() ? "none" : before,
                                  value.empty() ? "none" : value));
  }
  return changes;
}

bool continues_in_flight(const PlannedNetwork& network, const Checkpoint& checkpoint) {
  const RunRecord now = describe_run(network, {}, {});
  const auto same = [&](const char* name) { return now.value(name) == checkpoint.run.value(name); };
  const std::string units = now.value(kMemoryUnits);  // none where they decide nothing
  return checkpoint.in_flight() && network.asynchronous() &&
         checkpoint.cuts == network.plan().cuts() && is_cut_in_same_order(network, checkpoint) &&
         same("schedule") && same("replicas") && same("micro-batch-size") && same("batch-size") &&
         checkpoint.batches_per_epoch == network.batches_per_epoch() &&
         checkpoint.round_batches == network.round_batches(checkpoint.round_start) &&
         (units.empty() || units == memory_units_of(checkpoint.run));
}

std::int64_t first_round(const PlannedNetwork& network, const Checkpoint& checkpoint) {
  return continues_in_flight(network, checkpoint)
             ? checkpoint.round_start
             : std::min(checkpoint.step, network.total_steps());
}

void check_same_tensors(const PlannedNetwork& network, const Checkpoint& checkpoint) {
  check_that_all_are_used(network, checkpoint, /*same_network=*/true);
  for (const Parameter& parameter : network.graph().parameters) {
    if (!parameter.gradient) continue;
    const auto found = checkpoint.weights.find(parameter.name);
    const TensorType& type = network.graph().graph[parameter.value].type;
    PT_CHECK(found != checkpoint.weights.end(), kUsage,
             "the checkpoint has no \"{}\", which this run would train; give the same {}, {} and "
             "{} as before, or start a new run from its weights: {}, with {} and {}",
             printable(parameter.name), setting("freeze"), setting("train-only"), setting("lora"),
             setting("resume-weights-only"), setting("model"), setting("data"));
    PT_CHECK(found->second.type() == type, kUsage,
             "\"{}\" is {} in the checkpoint, but {} in this run; give the same {} as before",
             printable(parameter.name), found->second.type().text(), type.text(), setting("lora"));
  }
}

void check_some_weights(const PlannedNetwork& network, const Checkpoint& checkpoint) {
  check_that_all_are_used(network, checkpoint, /*same_network=*/false);
  const std::vector<const Value*> tensors = tensors_of(network);
  PT_CHECK(std::ranges::any_of(tensors,
                               [&](const Value* tensor) { return has_same(checkpoint, *tensor); }),
           kUsage,
           "the checkpoint has no tensor with the name and shape of one that {} trains; give "
           "another {} or {}, or leave out {}",
           printable(network.config().model.path), setting("model"), setting("resume"),
           setting("resume-weights-only"));
}

std::optional<ProgramCut> restore(PipelineRun& run, const Checkpoint& checkpoint) {
  const PlannedNetwork& network = run.network();
  check_that_all_are_used(network, checkpoint, /*same_network=*/true);
  std::optional<ProgramCut> cut;
  if (continues_in_flight(network, checkpoint)) {
    cut = cut_program(run.program(network.round_units(checkpoint.round_start)),
                      units_done(network, checkpoint));
  }
  const OptimizerSettings& optimizer = network.config().optimization.optimizer;
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
  for (int s = 0; s < network.stages(); ++s) {
    const auto stage = static_cast<std::size_t>(s);
    const bool same_stages =
        checkpoint.updates.size() == static_cast<std::size_t>(network.stages());
    content.updates =
        same_stages ? checkpoint.updates[stage] : checkpoint.step - checkpoint.loss_scale.skipped;
    content.stashed.clear();
    // The newest version is in `weights`; the stage takes of the others what it holds.
    for (std::size_t v = 0; cut && v + 1 < cut->versions[stage].size(); ++v) {
      const int version = cut->versions[stage][v];
      const auto found = checkpoint.stashed.find(version);
      PT_CHECK(found != checkpoint.stashed.end(), kData,
               "the checkpoint lacks version {} of the weights of stage {}", version, s);
      content.stashed[version] = found->second;
    }
    run.runtime().restore(s, content);
  }
  run.runtime().set_loss_scale(scale_after(network, checkpoint));
  return cut;
}

void restore_weights(PipelineRun& run, const Checkpoint& checkpoint) {
  const PlannedNetwork& network = run.network();
  check_some_weights(network, checkpoint);
  std::vector<std::string> left;
  const std::vector<const Value*> tensors = tensors_of(network);
  for (const Value* tensor : tensors) {
    if (has_same(checkpoint, *tensor)) {
      run.runtime().write(tensor->name, checkpoint.weights.at(tensor->name));
    } else {
      left.push_back(fmt::format("\"{}\"", printable(tensor->name)));
    }
  }
  if (left.empty() || !network.leads()) return;
  constexpr std::size_t kNamed = 3;
  const std::size_t all = left.size();
  const bool more = all > kNamed;
  left.resize(std::min(all, kNamed));
  log_info("train",
           "note     {} of {} tensors begin as in a new run, since the checkpoint has none of "
           "their name and shape: {}{}",
           all, tensors.size(), fmt::join(left, ", "), more ? ", …" : "");
}

}  // namespace pipetrain
