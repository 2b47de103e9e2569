#include "passes/exporter_traces.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

namespace pipetrain {
namespace {

constexpr const char* kScopes = "pkg.torch.onnx.name_scopes";
constexpr const char* kClasses = "pkg.torch.onnx.class_hierarchy";
constexpr const char* kCall = "pkg.torch.onnx.fx_node";
constexpr const char* kFoldedFrom = "pkg.onnxscript.optimizer.folded_from";
constexpr const char* kRule = "pkg.onnxscript.rewriter.rule_name";

/// An entry of the metadata of a node, which the reader keeps with its first output.
std::string_view entry_of(const OnnxModel& model, const OnnxNode& node, const char* key) {
  if (node.outputs.empty()) return {};
  const auto metadata = model.value_metadata.find(node.outputs[0]);
  if (metadata == model.value_metadata.end()) return {};
  const auto entry = metadata->second.find(key);
  return entry == metadata->second.end() ? std::string_view() : entry->second;
}

bool multiplies(const OnnxNode& node) {
  return node.op_type == "Conv" || node.op_type == "ConvTranspose" || node.op_type == "Gemm" ||
         node.op_type == "MatMul";
}

/// Whether BatchNormalization is in training mode: older ones have more outputs instead.
bool normalizes_by_batch(const OnnxNode& node) {
  return node.opset >= 14 ? node.int_attribute("training_mode", 0) != 0 : node.outputs.size() > 1;
}

/// How many Dropouts have an input `training_mode` that is a constant and true.
std::int64_t dropouts_in_training_mode(const OnnxModel& model) {
  std::map<std::string_view, std::int64_t> dropouts;  // by this input
  for (const OnnxNode& node : model.nodes) {
    if (node.domain.empty() && node.op_type == "Dropout" && node.has_input(2))
      ++dropouts[node.inputs[2]];
  }
  std::int64_t count = 0;
  const auto add_if_true = [&](const std::string& name, const auto& value_of) {
    const auto found = dropouts.find(name);
    if (found == dropouts.end()) return;
    const HostTensor value = value_of();
    if (value && value.type().count() == 1 && value.to_doubles()[0] != 0) count += found->second;
  };
  for (const OnnxInitializer& tensor : model.initializers)
    add_if_true(tensor.name, [&] { return tensor.value; });
  for (const OnnxNode& node : model.nodes) {
    if (node.op_type == "Constant" && node.has_output(0))
      add_if_true(node.outputs[0], [&] { return constant_value(node); });
  }
  return count;
}

}  // namespace

std::vector<std::string> strings_in(std::string_view list) {
  std::vector<std::string> out;
  for (std::size_t at = list.find('\''); at != std::string_view::npos;
       at = list.find('\'', at + 1)) {
    const std::size_t end = list.find('\'', at + 1);
    if (end == std::string_view::npos) break;
    out.emplace_back(list.substr(at + 1, end - at - 1));
    at = end;
  }
  return out;
}

std::string module_of(const OnnxModel& model, const OnnxNode& node) {
  // The last one is the call within the module.
  const std::vector<std::string> scopes = strings_in(entry_of(model, node, kScopes));
  return scopes.size() < 2 ? std::string() : scopes[scopes.size() - 2];
}

std::string_view call_of(const OnnxModel& model, const OnnxNode& node) {
  return entry_of(model, node, kCall);
}

std::vector<std::string_view> parameters_of_call(std::string_view call) {
  constexpr std::string_view kPrefix = "%p_";
  std::vector<std::string_view> out;
  for (std::size_t at = call.find(kPrefix); at != std::string_view::npos;
       at = call.find(kPrefix, at)) {
    at += kPrefix.size();
    const std::size_t end = call.find_first_of(",)] ", at);
    out.push_back(call.substr(at, end == std::string_view::npos ? end : end - at));
  }
  return out;
}

std::string folded_from(const OnnxMetadata& tensor) {
  const auto entry = tensor.find(kFoldedFrom);
  return entry == tensor.end() ? std::string() : entry->second;
}

std::string removed_bias_of(const OnnxModel& model, const OnnxNode& node) {
  if (!entry_of(model, node, kRule).starts_with("RemoveOptionalBias")) return {};
  const std::string module = module_of(model, node);
  std::string prefix = module.empty() ? module : module + "_";
  std::ranges::replace(prefix, '.', '_');
  std::string found;
  for (const std::string_view parameter : parameters_of_call(call_of(model, node))) {
    if (!parameter.starts_with(prefix) || !parameter.ends_with("bias")) continue;
    if (!found.empty()) return {};  // it does not say which
    found = (module.empty() ? module : module + ".") + std::string(parameter.substr(prefix.size()));
  }
  return found;
}

std::string note_on_folded_layers(const OnnxModel& model) {
  const auto is_folded = [&](const OnnxNode& node) {
    const std::vector<std::string> classes = strings_in(entry_of(model, node, kClasses));
    return multiplies(node) && std::ranges::any_of(classes, [](const std::string& name) {
             return name.find(".batchnorm.") != std::string::npos;
           });
  };
  // The older exporter gives the weights that it has computed names of its own.
  const auto is_computed = [&](const OnnxNode& node) {
    return multiplies(node) && node.op_type != "MatMul" && node.has_input(1) &&
           node.inputs[1].starts_with("onnx::Conv");
  };
  const auto folded = std::ranges::count_if(model.nodes, is_folded);
  const auto computed = std::ranges::count_if(model.nodes, is_computed);
  if (folded + computed == 0) return {};
  return fmt::format(
      "the exporter folded {} normalization layer{} into convolutions: {} not trained as such, and "
      "the trained weights do not fit the module's names; {} keeps {}",
      folded + computed, folded + computed == 1 ? "" : "s",
      folded + computed == 1 ? "it is" : "they are",
      folded > 0 ? "torch.onnx.export(..., optimize=False)"
                 : "torch.onnx.export(..., dynamo=False, training=TrainingMode.TRAINING, "
                   "do_constant_folding=False)",
      folded + computed == 1 ? "it" : "them");
}

std::string note_on_training_mode(const OnnxModel& model) {
  const auto norms = std::ranges::count_if(model.nodes, [](const OnnxNode& node) {
    return node.domain.empty() && node.op_type == "BatchNormalization" && normalizes_by_batch(node);
  });
  const std::int64_t dropouts = dropouts_in_training_mode(model);
  std::vector<std::string> layers;
  if (norms > 0) layers.push_back(fmt::format("{} BatchNormalization", norms));
  if (dropouts > 0) layers.push_back(fmt::format("{} Dropout", dropouts));
  if (layers.empty()) return {};
  const bool is_one = norms + dropouts == 1;
  return fmt::format(
      "{} layer{} {} in training mode and will be so in the trained file, also in ONNX Runtime; to "
      "predict with that, load the trained weights into the module and export it after eval()",
      fmt::join(layers, " and "), is_one ? "" : "s", is_one ? "is" : "are");
}

}  // namespace pipetrain
