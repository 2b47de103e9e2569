#include "train/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <type_traits>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/setting.h"
#include "data/formats/table_encoding.h"
#include "onnx_io/new_head.h"
#include "onnx_io/subgraph.h"
#include "onnx_io/writer.h"
#include "train/adapter_file.h"
#include "train/image_shapes.h"
#include "train/network.h"

namespace pipetrain {
namespace {

constexpr const char* kDataEntry = "pipetrain.data";
constexpr const char* kLoss = "pipetrain.loss";
constexpr const char* kLossOutput = "pipetrain.loss-output";
constexpr const char* kIgnoreIndex = "pipetrain.ignore-index";
constexpr const char* kResize = "pipetrain.resize";
constexpr const char* kLabelColumn = "pipetrain.label-column";
constexpr const char* kColumns = "pipetrain.columns";
constexpr const char* kTexts = "pipetrain.texts";
constexpr const char* kFirstIndex = "pipetrain.first-index";
constexpr const char* kMasks = "pipetrain.masks";
constexpr const char* kNormalization = "pipetrain.normalize";
constexpr const char* kImageShapes = "pipetrain.image-shapes";
constexpr const char* kNumbered = "numbered";  // of kMasks

/// Takes how texts became tokens. A tokenizer that is given has to be the one of the training;
/// otherwise that is looked for beside the model and in the current directory. Returns its name, if
/// it was found.
std::string follow_texts(const std::string& recorded, RunConfig& config) {
  TextOptions& given = config.data.text;
  TextOptions trained =
      with_context([&] { return fmt::format("reading the model's metadata \"{}\"", kTexts); },
                   [&] { return TextOptions::parse(recorded); });
  given.name = trained.name;
  given.sha256 = trained.sha256;
  const auto follow = [](auto& open, const auto& known) {
    if (open == std::decay_t<decltype(open)>()) open = known;
  };
  follow(given.column, trained.column);
  follow(given.pair, trained.pair);
  follow(given.layout, trained.layout);
  follow(given.document, trained.document);
  given.trained_length = trained.length;
  follow(given.end_of_text, trained.end_of_text);
  if (!given.tokenizer.empty()) return {};
  const std::filesystem::path folder = std::filesystem::path(config.model.path).parent_path();
  for (const std::filesystem::path& place :
       {folder / trained.name, std::filesystem::path(trained.name)}) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(place, error)) continue;
    given.tokenizer = place.string();
    given.from_model = true;
    return printable(given.tokenizer);
  }
  return {};
}

/// The weight that an adapter has changed; nothing where `read` does not have the adapter.
HostTensor merge(const LoadedModel& model, const Adapter& adapter,
                 const std::function<HostTensor(const std::string&)>& read) {
  const HostTensor a = read(adapter.a), b = read(adapter.b);
  if (!a || !b) return {};
  return merged_weight(adapter, model.model.find_initializer(adapter.weight)->to_float32(), a, b);
}

/// The tensors of the file that something reads beside copies of them, which have values of their
/// own.
std::set<std::string> read_beside_copies(const LoadedModel& model) {
  std::set<std::pair<std::size_t, std::size_t>> of_copies;  // nodes and their inputs
  for (const UntiedCopy& copy : model.copies) of_copies.insert({copy.node, copy.slot});
  std::set<std::string> names;
  for (const OnnxValue& output : model.file.outputs) names.insert(output.name);
  for (std::size_t n = 0; n < model.file.nodes.size(); ++n) {
    const OnnxNode& node = model.file.nodes[n];
    for (std::size_t slot = 0; slot < node.inputs.size(); ++slot) {
      if (!of_copies.contains({n, slot})) names.insert(node.inputs[slot]);
    }
    if (has_subgraphs(node)) names.merge(captured_names(node));
  }
  return names;
}

using ReadTensor = std::function<HostTensor(const std::string&)>;

/// Copies whose values differ from their original's become tensors of the file, also those that
/// were not trained and keep their initial values. `read` has to outlive `values`.
void add_copies(const LoadedModel& model, const ReadTensor& read, TrainedValues& values,
                ExportEdits& edits) {
  std::set<std::string> read_too = read_beside_copies(model);
  std::vector<HostTensor> copied;
  for (const UntiedCopy& copy : model.copies) {
    copied.push_back(read(copy.name));
    if (!copied.back()) read_too.insert(copy.original);  // by a copy that keeps its values
  }
  std::map<std::string, std::string> added;  // names in the file, by copy
  for (std::size_t i = 0; i < copied.size(); ++i) {
    const UntiedCopy& copy = model.copies[i];
    HostTensor value = copied[i];
    const auto original = values.find(copy.original);
    if (original == values.end()) {
      if (!value) continue;  // neither was trained
      if (!read_too.contains(copy.original)) {
        values[copy.original] = [&read, name = copy.name] { return read(name); };
        continue;
      }
    } else {
      if (!value) value = model.model.find_initializer(copy.name)->to_float32();
      const HostTensor kept = original->second();
      // Still equal: the file can keep sharing them.
      if (std::memcmp(value.view().data, kept.view().data, value.type().bytes()) == 0) continue;
    }
    std::string& name = added[copy.name];
    if (name.empty()) {
      name = copy.name;
      if (model.file.nodes[copy.node].op_type == "Identity")
        name += ".untied";  // its result's name
      while (model.file.find_initializer(name)) name += "_";
      edits.added.push_back({name, value, copy.original});
    }
    edits.rewritten.push_back({copy.node, copy.slot, name});
  }
}

/// How inputs are scaled, with what the training data decided.
Normalization scale_in_force(const Network& network) {
  using Kind = Normalization::Kind;
  const Normalization& given = network.config().data.bind.normalization;
  const OpenedData& data = network.data();
  std::map<std::string, double> divisors;  // of the inputs that are divided
  for (std::size_t i = 0; i < data.divisors.size(); ++i) {
    const Column& column = data.train->columns()[i];
    if (is_float(column.dtype)) divisors[column.name] = data.divisors[i];
  }
  if (given.kind != Kind::kMax && (given.kind != Kind::kAuto || divisors.empty())) return given;
  Normalization out = as_measured(divisors);
  // Numbers from 0 to 1 are what bytes become, too: for these the rule holds on.
  const bool undivided = out.kind == Kind::kDivide && out.divisor == 1;
  if (given.kind == Kind::kAuto && undivided)
    out.kind = data.has_large_values ? Kind::kNone : Kind::kAuto;
  out.mean = given.mean;
  out.deviation = given.deviation;
  return out;
}

/// Whether training changes a tensor: itself, or by its adapter.
bool may_change(const LoadedModel& model, const std::string& name) {
  const auto rule = model.rules.find(name);
  return (rule != model.rules.end() && rule->second.use != TensorUse::kFrozen) ||
         std::ranges::count(model.adapters, name, &Adapter::weight) > 0;
}

}  // namespace

std::set<std::string> initial_values_in_export(const LoadedModel& model, const Graph& graph) {
  std::set<std::string> names;
  for (const Adapter& adapter : model.adapters) names.insert(adapter.weight);
  for (const UntiedCopy& copy : model.copies) {
    if (may_change(model, copy.original)) names.insert(copy.name);
  }
  for (const Node& node : graph.nodes) {
    for (const ValueId id : node.inputs) {
      if (id && graph[id].role == Role::kParameter) names.erase(graph[id].name);
    }
  }
  return names;
}

std::vector<std::string> export_weights(const LoadedModel& model,
                                        const std::function<HostTensor(const std::string&)>& read,
                                        const OnnxMetadata& metadata, const std::string& path,
                                        bool overwrite_input, const std::string& adapters) {
  TrainedValues values;
  ExportEdits edits;
  std::set<std::string> not_in_file;
  for (const RemovedBias& bias : model.biases) not_in_file.insert(bias.name);
  for (const ExpandedParameter& parameter : model.expanded) not_in_file.insert(parameter.name);
  for (const UntiedCopy& copy : model.copies) not_in_file.insert(copy.name);
  std::map<std::string, const Adapter*> adapted;  // by weight
  for (const Adapter& adapter : model.adapters) {
    adapted[adapter.weight] = &adapter;
    not_in_file.insert({adapter.a, adapter.b});
  }
  const ReadTensor value_of = [&](const std::string& name) {
    const auto adapter = adapted.find(name);
    return adapter == adapted.end() ? read(name) : merge(model, *adapter->second, read);
  };
  for (const auto& [name, rule] : model.rules) {
    const bool changes = rule.use != TensorUse::kFrozen || adapted.contains(name);
    if (!changes || not_in_file.contains(name)) continue;
    if (value_of(name)) values[name] = [&value_of, name = name] { return value_of(name); };
  }
  for (const ExpandedParameter& parameter : model.expanded) {
    if (!read(parameter.name)) continue;
    values[parameter.tensor] = [&read, &model, parameter] {
      const std::int64_t batch = model.file.find_initializer(parameter.tensor)->shape[0];
      return expanded(read(parameter.name), batch);
    };
  }
  add_copies(model, value_of, values, edits);
  std::vector<std::string> separate;
  for (const ExportEdits::Added& added : edits.added) separate.push_back(printable(added.name));
  std::vector<std::string> restored;
  for (const RemovedBias& bias : model.biases) {
    const HostTensor value = read(bias.name);
    if (!value || std::ranges::all_of(value.span<float>(), [](float v) { return v == 0; }))
      continue;
    edits.added.push_back({bias.name, value, bias.weight});
    for (const std::size_t node : bias.nodes)
      edits.rewritten.push_back({node, model.file.nodes[node].inputs.size(), bias.name});
    restored.push_back(printable(bias.name));
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
  const auto say = [&](const std::vector<std::string>& names, const char* one, const char* many) {
    if (names.empty()) return;
    const std::size_t named = std::min<std::size_t>(names.size(), 3);
    changes.push_back(
        fmt::format("{} {}: {}{}", names.size(), names.size() == 1 ? one : many,
                    fmt::join(names.begin(), names.begin() + named, ", "),
                    names.size() > named ? fmt::format(" and {} more", names.size() - named) : ""));
  };
  say(separate, "tensor that the exporter had merged with others is stored separately",
      "tensors that the exporter had merged with others are stored separately");
  say(restored, "bias of zeros that the exporter had removed is stored again",
      "biases of zeros that the exporter had removed are stored again");
  return changes;
}

Normalization as_measured(const std::map<std::string, double>& divisors) {
  std::set<double> values;
  for (const auto& [input, divisor] : divisors) values.insert(divisor);
  if (values.size() == 1) return {Normalization::Kind::kDivide, *values.begin()};
  return {Normalization::Kind::kMax, 1, divisors};
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
  out.resize = name_of(config.data.bind.image.fit);
  out.columns = network.data().encoding;
  out.texts = network.data().texts;
  if (const auto first = network.data().first_index) out.first_index = fmt::format("{}", *first);
  if (network.data().masks_are_numbered) out.masks = kNumbered;
  out.normalization = scale_in_force(network).text();
  if (!out.synthetic) out.image_shapes = text_of_image_shapes(open_image_shapes(network));
  return out;
}

OnnxMetadata describe_training(bool trained, const TrainingDescription& training,
                               const OnnxMetadata& before) {
  OnnxMetadata out;
  if (!trained) return out;
  std::string names;
  for (const std::string& name : training.class_names) names += name + "\n";
  const auto set = [&](const char* key, const std::string& value, std::string_view by_rule) {
    if (value != by_rule || before.contains(key)) out[key] = value;
  };
  set(kClassNamesEntry, names, "");
  set(kDataEntry, training.synthetic ? "synthetic" : "", "");
  set(kLoss, training.loss, "");
  set(kLossOutput, training.loss_output, "");
  set(kIgnoreIndex, fmt::format("{}", training.ignore_index), "-100");
  set(kLabelColumn, training.label_column, "");
  set(kResize, training.resize, name_of(ImageFit::kCrop));
  set(kColumns, training.columns, "");
  set(kTexts, training.texts, "");
  set(kFirstIndex, training.first_index, "");
  set(kMasks, training.masks, "");
  set(kNormalization, training.normalization, "auto");
  set(kImageShapes, training.image_shapes, "");
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
  const bool may_ignore = loss.loss != "bce" && loss.loss != "mse" && loss.loss != "l1";
  take(kIgnoreIndex, setting("ignore-index"), "-100", may_ignore && loss.ignore_index == -100,
       [&](const std::string& v) {
         const auto [end, error] =
             std::from_chars(v.data(), v.data() + v.size(), loss.ignore_index);
         PT_CHECK(error == std::errc() && end == v.data() + v.size(), kModel,
                  "\"{}\" is no whole number", printable(v));
       });
  take(kLabelColumn, setting("label-column"), "", config.data.csv.label_column.empty(),
       [&](const std::string& v) { config.data.csv.label_column = v; });
  ImageOptions& image = config.data.bind.image;
  take(kResize, setting("resize"), name_of(image.fit), !image.fit_is_given,
       [&](const std::string& v) { image.fit = image_fit_named(v); });
  std::string& encoding = config.data.csv.encoding;
  const auto columns = metadata.find(kColumns);
  if (columns != metadata.end() && !columns->second.empty()) {
    encoding = columns->second;
    const bool names_only =
        with_context([] { return fmt::format("reading the model's metadata \"{}\"", kColumns); },
                     [&] { return TableEncoding::parse(encoding).names_only; });
    if (!names_only)
      taken += fmt::format("{}the encoding of the table's columns", taken.empty() ? "" : ", ");
  }
  if (const auto texts = metadata.find(kTexts); texts != metadata.end() && !texts->second.empty()) {
    if (const std::string name = follow_texts(texts->second, config); !name.empty())
      taken += fmt::format("{}{} {}", taken.empty() ? "" : ", ", setting("tokenizer"), name);
  }
  std::optional<std::uint32_t>& first_index = config.data.first_index;
  take(kFirstIndex, "indices from", "", !first_index, [&](const std::string& v) {
    PT_CHECK(v == "0" || v == "1", kModel, "\"{}\" is neither 0 nor 1", printable(v));
    first_index = v == "1" ? 1 : 0;
  });
  take(kMasks, "classes in masks", "", config.data.masks_are_drawings, [&](const std::string& v) {
    PT_CHECK(v == kNumbered, kModel, "\"{}\" is not \"{}\"", printable(v), kNumbered);
    config.data.masks_are_drawings = false;
  });
  Normalization& normalization = config.data.bind.normalization;
  take(kNormalization, setting("normalize"), "auto", normalization.text() == "auto",
       [&](const std::string& v) { normalization = Normalization::parse(v); });
  take(kImageShapes, "images of", "", config.model.image_shapes.empty(),
       [&](const std::string& v) { config.model.image_shapes = parse_image_shapes(v); });
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
  const bool to_stdout = output == "-";
  if (!to_stdout && !is_special(output)) return;
  PT_CHECK(model.data_files.empty(), kUsage,
           "{} {}: {} has external weights, which cannot go to {}; give {} a file name",
           setting("output"), printable(output), printable(model.path.string()),
           to_stdout ? "standard output" : "a pipe or a device", setting("output"));
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
  const auto found = model.metadata.find(kClassNamesEntry);
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
