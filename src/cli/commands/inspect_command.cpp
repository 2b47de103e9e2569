// pipetrain inspect: what a model is and whether it can be trained.
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "cli/commands/commands.h"
#include "cli/commands/layers_table.h"
#include "cli/output/output.h"
#include "device/plugin.h"
#include "ops/conv/conv.h"
#include "passes/build.h"
#include "passes/linearise.h"
#include "profile/measure.h"
#include "train/given_shapes.h"
#include "train/loaded_model.h"
#include "train/planned_network.h"

namespace pipetrain {
namespace {

using Json = nlohmann::ordered_json;

/// Keeps a value until the process ends, when the system takes its memory back at once: freeing the
/// parts of a million nodes one by one takes as long as reading them.
template <class T>
const T& keep(T value) {
  static std::vector<std::unique_ptr<T>>& kept = *new std::vector<std::unique_ptr<T>>();
  return *kept.emplace_back(std::make_unique<T>(std::move(value)));
}

std::string dims_text(const OnnxValue& value) {
  std::string out;
  for (const OnnxDim& dim : value.dims) {
    out += out.empty() ? "" : ", ";
    out += dim.value >= 0       ? fmt::format("{}", dim.value)
           : dim.symbol.empty() ? "?"
                                : printable(dim.symbol);
  }
  return value.has_shape ? "(" + out + ")" : "(shape unknown)";
}

std::string_view use_name(TensorUse use) {
  return use == TensorUse::kTrained ? "trained" : use == TensorUse::kFrozen ? "frozen" : "running";
}

/// The training graph of the smallest sensible micro-batch.
TrainingGraph build(const Options& options, const LoadedModel& model) {
  BuildOptions build;
  build.lower.micro_batch = model.has_fixed_batch() ? model.fixed_batch() : 2;
  build.lower.dims = options.run.model.dims;
  for (const auto& [name, shape] : options.run.model.shapes) {
    build.lower.sample_shapes[name] =
        Shape(std::vector<std::int64_t>(shape.begin() + 1, shape.end()));
  }
  build.lower.output_node = options.run.model.output_node;
  build.lower.mode = {true, options.run.model.batch_norm, options.run.model.dropout};
  build.loss = options.run.model.loss;
  build.precision = options.run.model.precision;
  build.feature_map_layout = convolution_layout();
  return build_training_graph(model.model, model.rules, build);
}

/// The output as text and as JSON.
struct Description {
  std::string text;
  Json json;
};

/// Operators and how often they occur.
std::map<std::string, int> histogram_of(const LoadedModel& model) {
  std::map<std::string, int> histogram;
  for (const OnnxNode& node : model.file.nodes) ++histogram[node.op_type];
  return histogram;
}

/// The originals of copies, by copy.
std::map<std::string, std::string> originals_of(const LoadedModel& model) {
  std::map<std::string, std::string> originals;
  for (const UntiedCopy& copy : model.copies) originals[copy.name] = copy.original;
  return originals;
}

Json json_of_file(const Options& options, const LoadedModel& model) {
  Json json = {{"schema", "pipetrain.inspect/1"},
               {"file", options.run.model.path},
               {"opset", model.file.opset},
               {"ir_version", model.file.ir_version},
               {"producer", printable(model.file.producer)},
               {"nodes", model.file.nodes.size()},
               {"operators", histogram_of(model)}};
  for (const auto* list : {&model.file.inputs, &model.file.outputs}) {
    for (const OnnxValue& value : *list) {
      json[list == &model.file.inputs ? "inputs" : "outputs"].push_back(
          {{"name", printable(value.name)},
           {"type", name_of(value.dtype)},
           {"shape", dims_text(value)}});
    }
  }
  for (const auto& [name, rule] : model.rules) {
    json["parameters"].push_back({{"name", name},
                                  {"trainable", rule.use == TensorUse::kTrained},
                                  {"use", use_name(rule.use)},
                                  {"reason", rule.reason}});
  }
  for (const auto& [name, original] : originals_of(model))
    json["copies"].push_back({{"name", name}, {"original", original}});
  return json;
}

std::string text_of_file(const Options& options, const LoadedModel& model) {
  std::string text = fmt::format("{}: opset {}, IR {}, {} nodes, by {}\n",
                                 std::filesystem::path(options.run.model.path).filename().string(),
                                 model.file.opset, model.file.ir_version, model.file.nodes.size(),
                                 printable(model.file.producer));
  for (const OnnxValue& value : model.file.inputs)
    text += fmt::format("input    {} {} {}\n", printable(value.name), name_of(value.dtype),
                        dims_text(value));
  for (const OnnxValue& value : model.file.outputs)
    text += fmt::format("output   {} {} {}\n", printable(value.name), name_of(value.dtype),
                        dims_text(value));
  text += "nodes   ";
  for (const auto& [op, count] : histogram_of(model))
    text += fmt::format(" {}:{}", printable(op), count);
  std::map<std::string_view, int> uses;
  for (const auto& [name, rule] : model.rules) ++uses[use_name(rule.use)];
  text += "\ntensors ";
  for (const auto& [use, count] : uses) text += fmt::format(" {}:{}", use, count);
  if (!model.copies.empty())
    text += fmt::format("  ({} of them merged by the exporter, trained separately)",
                        originals_of(model).size());
  if (!model.expanded.empty())
    text += fmt::format("  ({} of them expanded to the batch by the exporter, trained as one)",
                        model.expanded.size());
  if (!model.biases.empty())
    text +=
        fmt::format("  ({} of them zero biases that the exporter removed)", model.biases.size());
  text += "  (list: --params)\n";
  for (const std::string& warning : model.file.warnings) text += "warning  " + warning + "\n";
  for (const std::string& note : model.notes()) text += "note     " + note + "\n";
  if (options.show_params) {
    for (const auto& [name, rule] : model.rules)
      text += fmt::format("  {:<8} {:<48} {}\n", use_name(rule.use), printable(name), rule.reason);
  }
  return text;
}

/// The layers as a table, with their share of the time of a step if there is a profile.
void add_layers(const Options& options, const TrainingGraph& graph, const Chain& chain,
                Description& out) {
  std::vector<LayerRow> rows;
  if (options.run.pipeline.profile_path.empty()) {
    rows = layers_of(graph, chain, nullptr);
  } else {
    RunConfig config = options.run;
    config.pipeline.devices = 1;
    const PlannedNetwork network = plan_network(config);
    rows = layers_of(network.graph(), network.chain(), &network.costs().elements);
  }
  out.text += layers_table(rows);
  for (const LayerRow& row : rows) {
    Json layer = {{"name", row.name},
                  {"op", row.op},
                  {"output", row.output},
                  {"parameters", row.parameters},
                  {"flops", row.flops}};
    if (row.share >= 0) layer["time_share"] = row.share;
    out.json["layers"].push_back(layer);
  }
}

/// The trainable parameters of the model. Error if it cannot be trained.
void describe_training(const Options& options, const LoadedModel& model, Description& out) {
  const TrainingGraph& graph = keep(build(options, model));
  const Chain chain = linearise(graph);
  std::int64_t parameters = 0;
  for (const Parameter& parameter : graph.parameters)
    parameters += graph.graph[parameter.value].type.count();
  out.json["trainable"] = true;
  out.json["loss"] = {
      {"kind", name_of(graph.loss.kind)}, {"output", graph.loss.output}, {"task", graph.loss.task}};
  out.json["trained_numbers"] = parameters;
  out.text += fmt::format("trains   yes, {} trainable parameters in {} tensors; loss: {}\n",
                          parameters, graph.parameters.size(), graph.loss.task);
  out.text += fmt::format("cuts     before any of {} nodes\n", chain.order.size());
  for (std::size_t i = 0; i < chain.order.size(); ++i) {
    const Node& node = graph.graph[chain.order[i]];
    if (options.json) {
      out.json["chain"].push_back({{"name", printable(node.name)},
                                   {"op", node.op->name},
                                   {"forward_bytes", chain.forward_bytes[i]}});
    }
    if (options.show_chain) {
      out.text += fmt::format("  {:<4} {:<20} {:<40} cut before: {}\n", i, node.op->name,
                              printable(node.name), bytes_text(chain.forward_bytes[i]));
    }
  }
  if (options.show_layers) add_layers(options, graph, chain, out);
  for (const std::string& note : graph.notes) out.text += "note     " + note + "\n";
  if (options.show_graph) out.text += graph.graph.to_text();
}

}  // namespace

int inspect_command(Options& options) {
  resolve_verbosity(options);
  resolve_model(options, "inspect");
  const LoadedModel& model = keep(load_model(options.run.model));
  check_given_shapes(options.run.model, model.model);
  Description out = {text_of_file(options, model), json_of_file(options, model)};
  std::optional<Error> failure;
  try {
    describe_training(options, model, out);
  } catch (const Error& error) {
    // A missing option is not an error in the model.
    const bool needs_flag = error.kind() == ErrorKind::kUsage;
    if (!needs_flag) failure = error;
    out.json["trainable"] = needs_flag;
    out.json[needs_flag ? "needs" : "error"] = error.what();
    if (needs_flag) out.text += fmt::format("trains   yes, needs an option: {}\n", error.what());
  }
  print(options.json ? out.json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                     : out.text);
  if (failure) throw *failure;
  return 0;
}

}  // namespace pipetrain
