#include "train/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/setting.h"
#include "onnx_io/writer.h"
#include "train/adapter_file.h"
#include "train/network.h"

namespace pipetrain {
namespace {

constexpr const char* kClasses = "pipetrain.classes";  // a line for each
constexpr const char* kLoss = "pipetrain.loss";
constexpr const char* kLossOutput = "pipetrain.loss-output";
constexpr const char* kIgnoreIndex = "pipetrain.ignore-index";
constexpr const char* kLabelColumn = "pipetrain.label-column";
constexpr const char* kColumns = "pipetrain.columns";
constexpr const char* kNormalization = "pipetrain.normalize";

/// The weight that an adapter has changed; nothing where `read` does not have the adapter.
HostTensor merge(const LoadedModel& model, const Adapter& adapter,
                 const std::function<HostTensor(const std::string&)>& read) {
  const HostTensor a = read(adapter.a), b = read(adapter.b);
  if (!a || !b) return {};
  return merged_weight(adapter, model.model.find_initializer(adapter.weight)->to_float32(), a, b);
}

}  // namespace

std::vector<std::string> export_weights(const LoadedModel& model,
                                        const std::function<HostTensor(const std::string&)>& read,
                                        const OnnxMetadata& metadata, const std::string& path,
                                        bool overwrite_input, const std::string& adapters) {
  TrainedValues values;
  ExportEdits edits;
  std::set<std::string> not_in_file;
  for (const UntiedCopy& copy : model.copies) not_in_file.insert(copy.name);
  std::map<std::string, const Adapter*> adapted;  // by weight
  for (const Adapter& adapter : model.adapters) {
    adapted[adapter.weight] = &adapter;
    not_in_file.insert({adapter.a, adapter.b});
  }
  const auto value_of = [&](const std::string& name) {
    const auto adapter = adapted.find(name);
    return adapter == adapted.end() ? read(name) : merge(model, *adapter->second, read);
  };
  for (const auto& [name, rule] : model.rules) {
    const bool changes = rule.use != TensorUse::kFrozen || adapted.contains(name);
    if (!changes || not_in_file.contains(name)) continue;
    if (HostTensor value = value_of(name)) values[name] = std::move(value);
  }
  for (const UntiedCopy& copy : model.copies) {
    const HostTensor value = value_of(copy.name);
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
  if (!adapters.empty()) write_adapters(adapters, model, read);
  WriteOptions options;
  options.overwrite_input = overwrite_input;
  std::vector<std::string> changes =
      write_trained(model.file, values, edits, path, options).changes;
  // Merged adapters and metadata are many changes, but one message.
  std::erase_if(changes, [](const std::string& change) {
    return change.starts_with("initializer '") || change.starts_with("metadata pipetrain.") ||
           change.find(" now reads '") != std::string::npos;
  });
  if (edits.added.empty()) return changes;
  constexpr std::size_t kNamed = 3;
  std::string names;
  for (std::size_t i = 0; i < std::min(kNamed, edits.added.size()); ++i)
    names += (i > 0 ? ", " : "") + printable(edits.added[i].name);
  const std::size_t more = edits.added.size() - std::min(kNamed, edits.added.size());
  const bool one = edits.added.size() == 1;
  changes.push_back(
      fmt::format("{} tensor{} that the exporter had merged with others {} stored separately: {}{}",
                  edits.added.size(), one ? "" : "s", one ? "is" : "are", names,
                  more > 0 ? fmt::format(" and {} more", more) : ""));
  return changes;
}

TrainingDescription training_of(const Network& network) {
  const RunConfig& config = network.config();
  TrainingDescription out;
  out.synthetic = network.data().synthetic;
  out.class_names = network.data().class_names;
  out.loss = std::string(name_of(network.graph().loss.kind));
  out.loss_output = config.model.loss.output;
  out.ignore_index = config.model.loss.ignore_index;
  out.label_column = config.data.csv.label_column;
  out.columns = network.data().encoding;
  Normalization scale = config.data.bind.normalization;
  const std::vector<double>& divisors = network.data().divisors;
  const bool is_one = !divisors.empty() && std::ranges::count(divisors, divisors[0]) ==
                                               static_cast<std::ptrdiff_t>(divisors.size());
  if (scale.kind == Normalization::Kind::kMax && is_one)
    scale = {Normalization::Kind::kDivide, divisors[0]};
  out.normalization = scale.text();
  return out;
}

OnnxMetadata describe_training(bool trained, const TrainingDescription& training,
                               const OnnxMetadata& before) {
  OnnxMetadata out;
  if (!trained) return out;
  if (training.synthetic) out["pipetrain.data"] = "synthetic";
  std::string names;
  for (const std::string& name : training.class_names) names += name + "\n";
  if (!names.empty()) out[kClasses] = names;
  const auto set = [&](const char* key, const std::string& value, std::string_view by_rule) {
    if (value != by_rule || before.contains(key)) out[key] = value;
  };
  set(kLoss, training.loss, "");
  set(kLossOutput, training.loss_output, "");
  set(kIgnoreIndex, fmt::format("{}", training.ignore_index), "-100");
  set(kLabelColumn, training.label_column, "");
  set(kColumns, training.columns, "");
  set(kNormalization, training.normalization, "auto");
  return out;
}

std::string follow_training(const OnnxMetadata& metadata, RunConfig& config) {
  std::string taken;
  const auto take = [&](const char* key, const std::string& option, std::string_view by_rule,
                        bool is_open, const auto& set) {
    const auto found = metadata.find(key);
    if (!is_open || found == metadata.end() || found->second == by_rule) return;
    with_context([&] { return fmt::format("reading the model's metadata \"{}\"", key); },
                 [&] { set(found->second); });
    taken += fmt::format("{}{} {}", taken.empty() ? "" : ", ", option, printable(found->second));
  };
  LossOptions& loss = config.model.loss;
  take(kLoss, setting("loss"), "auto", loss.loss == "auto",
       [&](const std::string& v) { loss.loss = v; });
  take(kLossOutput, setting("logits"), "", loss.output.empty(),
       [&](const std::string& v) { loss.output = v; });
  take(kIgnoreIndex, setting("ignore-index"), "-100", loss.ignore_index == -100,
       [&](const std::string& v) {
         const auto [end, error] =
             std::from_chars(v.data(), v.data() + v.size(), loss.ignore_index);
         PT_CHECK(error == std::errc() && end == v.data() + v.size(), kModel,
                  "\"{}\" is no whole number", printable(v));
       });
  take(kLabelColumn, setting("label-column"), "", config.data.csv.label_column.empty(),
       [&](const std::string& v) { config.data.csv.label_column = v; });
  std::string& encoding = config.data.csv.encoding;
  const auto columns = metadata.find(kColumns);
  if (columns != metadata.end() && !columns->second.empty() && !config.data.csv.encodes()) {
    encoding = columns->second;
    taken += fmt::format("{}the encoding of the table's columns", taken.empty() ? "" : ", ");
  }
  Normalization& normalization = config.data.bind.normalization;
  take(kNormalization, setting("normalize"), "auto", normalization.text() == "auto",
       [&](const std::string& v) { normalization = Normalization::parse(v); });
  return taken.empty() ? taken : "as in training: " + taken;
}

NamedTensors exported_weights(const Checkpoint& checkpoint) {
  NamedTensors weights = checkpoint.weights;
  for (const auto& [name, value] : checkpoint.optimizer) {
    if (name.starts_with(kAverageKey)) weights[name.substr(kAverageKey.size())] = value;
  }
  return weights;
}

void check_one_file(const OnnxModel& model, const std::string& output) {
  if (output != "-") return;
  for (const OnnxInitializer& tensor : model.initializers) {
    PT_CHECK(!tensor.external, kUsage,
             "{} -: {} has external weights, which cannot go to standard output; give "
             "{} a file name",
             setting("output"), printable(model.path.string()), setting("output"));
  }
}

TrainingDescription described_training(const OnnxMetadata& metadata) {
  TrainingDescription out;
  const auto take = [&](const char* key, std::string& field) {
    if (const auto found = metadata.find(key); found != metadata.end()) field = found->second;
  };
  take(kLoss, out.loss);
  take(kLossOutput, out.loss_output);
  return out;
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
