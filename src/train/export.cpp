#include "train/export.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "onnx_io/writer.h"

namespace pipetrain {
namespace {

constexpr const char* kClasses = "pipetrain.classes";  // a line for each

}  // namespace

std::vector<std::string> export_weights(const LoadedModel& model,
                                        const std::function<HostTensor(const std::string&)>& read,
                                        const OnnxMetadata& metadata, const std::string& path,
                                        bool overwrite_input) {
  TrainedValues values;
  ExportEdits edits;
  std::set<std::string> copies;
  for (const UntiedCopy& copy : model.copies) copies.insert(copy.name);
  for (const auto& [name, rule] : model.rules) {
    if (rule.use == TensorUse::kFrozen || copies.contains(name)) continue;
    if (HostTensor value = read(name)) values[name] = std::move(value);
  }
  for (const UntiedCopy& copy : model.copies) {
    const HostTensor value = read(copy.name);
    const auto original = values.find(copy.original);
    if (!value || original == values.end() ||
        std::memcmp(value.view().data, original->second.view().data, value.type().bytes()) == 0) {
      continue;  // still equal: the file can keep sharing them
    }
    const bool through_identity = model.file.nodes[copy.node].op_type == "Identity";
    const std::string name = through_identity ? copy.name + ".untied" : copy.name;
    edits.added.push_back({name, value, copy.original});
    edits.rewritten.push_back({copy.node, copy.slot, name});
  }
  edits.metadata = metadata;
  WriteOptions options;
  options.overwrite_input = overwrite_input;
  return write_trained(model.file, values, edits, path, options).changes;
}

OnnxMetadata describe_training(bool trained, bool synthetic,
                               const std::vector<std::string>& class_names) {
  OnnxMetadata out;
  if (!trained) return out;
  if (synthetic) out["pipetrain.data"] = "synthetic";
  std::string names;
  for (const std::string& name : class_names) names += name + "\n";
  if (!names.empty()) out[kClasses] = names;
  return out;
}

void check_one_file(const OnnxModel& model, const std::string& output) {
  if (output != "-") return;
  for (const OnnxInitializer& tensor : model.initializers) {
    PT_CHECK(!tensor.external, kUsage,
             "--output -: {} has external weights, which cannot go to standard output; give "
             "--output a file name",
             printable(model.path.string()));
  }
}

std::vector<std::string> trained_classes(const OnnxModel& model) {
  const auto found = model.metadata.find(kClasses);
  std::vector<std::string> names;
  if (found == model.metadata.end()) return names;
  const std::string& text = found->second;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

}  // namespace pipetrain
