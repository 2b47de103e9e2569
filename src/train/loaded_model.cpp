#include "train/loaded_model.h"

#include <set>
#include <string_view>
#include <utility>

#include "onnx_io/reader.h"
#include "onnx_io/writer.h"
#include "passes/exporter_traces.h"
#include "passes/needed_nodes.h"

namespace pipetrain {

std::int64_t LoadedModel::fixed_batch() const {
  std::int64_t fixed = 0;
  for (const OnnxValue& input : inputs) {
    if (!input.dims.empty() && input.dims[0].value > 0) fixed = input.dims[0].value;
  }
  return fixed;
}

std::vector<std::string> LoadedModel::notes() const {
  std::vector<std::string> notes = {note_on_folded_layers(file), note_on_training_mode(file),
                                    note_on_missing_biases(missing_biases),
                                    note_on_uncertain_parameters(rules),
                                    note_on_tensors_in_subgraphs(file)};
  std::erase(notes, "");
  return notes;
}

LoadedModel load_model(const ModelConfig& config, std::uint64_t seed) {
  LoadedModel loaded;
  loaded.file = read_onnx(config.path);
  const bool adapts = config.adapters.rank > 0;
  ParameterOptions parameters = config.parameters;
  AdapterOptions adapters = config.adapters;
  // Beside adapters, --train-only names what is trained as well.
  if (adapts) std::swap(adapters.trained_whole, parameters.train_only);
  loaded.model = loaded.file;
  (parameters.undone == Undone::kRemoval ? loaded.biases : loaded.missing_biases) =
      removed_biases(loaded.file);
  restore_biases(loaded.model, loaded.biases);
  const bool unties = parameters.undone != Undone::kNothing;
  if (unties) loaded.expanded = restore_expanded_parameters(loaded.model);
  loaded.rules = classify_tensors(loaded.model, parameters);
  std::set<std::string_view> not_in_file;
  for (const RemovedBias& bias : loaded.biases) not_in_file.insert(bias.name);
  for (const ExpandedParameter& parameter : loaded.expanded) not_in_file.insert(parameter.name);
  const TensorsByName tensors(loaded.file);
  for (auto& [name, rule] : loaded.rules) {
    if (rule.use == TensorUse::kFrozen || not_in_file.contains(name)) continue;
    const std::string reason = why_not_writable(loaded.file, tensors, name);
    if (!reason.empty()) rule = {TensorUse::kFrozen, reason};
  }
  if (unties) loaded.copies = untie_copies(loaded.model, loaded.rules, not_in_file);
  freeze_tensors(loaded.rules, parameters);  // copies have names of their own
  if (adapts) loaded.adapters = add_adapters(loaded.model, loaded.rules, adapters, seed);
  loaded.inputs = needed_inputs(loaded.model, config.output_node);
  return loaded;
}

}  // namespace pipetrain
