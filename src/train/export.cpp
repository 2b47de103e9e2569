#include "train/export.h"

#include <cstring>
#include <set>

#include "onnx_io/writer.h"

namespace pipetrain {

std::vector<std::string> export_weights(const LoadedModel& model,
                                        const std::function<HostTensor(const std::string&)>& read,
                                        bool synthetic, const std::string& path,
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
      continue;  // still the same numbers: the file may go on sharing them
    }
    const bool through_identity = model.file.nodes[copy.node].op_type == "Identity";
    const std::string name = through_identity ? copy.name + ".untied" : copy.name;
    edits.added.push_back({name, value, copy.original});
    edits.rewritten.push_back({copy.node, copy.slot, name});
  }
  if (synthetic) edits.metadata["pipetrain.data"] = "synthetic";
  WriteOptions options;
  options.overwrite_input = overwrite_input;
  return write_trained(model.file, values, edits, path, options).changes;
}

}  // namespace pipetrain
