// pipetrain inspect, doctor: what a model is and whether it can be trained; what this machine
// offers.
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/cache_directory.h"
#include "base/error.h"
#include "base/units.h"
#include "base/vectors.h"
#include "cli/commands/commands.h"
#include "cli/output/doctor_measure.h"
#include "device/nvidia_libraries.h"
#include "device/plugin.h"
#include "ops/conv.h"
#include "passes/build.h"
#include "passes/linearise.h"
#include "profile/machine.h"
#include "profile/measure.h"
#include "train/loaded_model.h"

namespace pipetrain {
namespace {

using Json = nlohmann::ordered_json;

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
  build.lower.micro_batch = 2;
  for (const OnnxValue& input : model.model.inputs) {
    if (!input.dims.empty() && input.dims[0].value > 0)
      build.lower.micro_batch = input.dims[0].value;
  }
  build.lower.dims = options.run.model.dims;
  for (const auto& [name, shape] : options.run.model.shapes) {
    build.lower.sample_shapes[name] =
        Shape(std::vector<std::int64_t>(shape.begin() + 1, shape.end()));
  }
  build.lower.output_node = options.run.model.output_node;
  build.lower.mode = {true, options.run.model.batch_norm, options.run.model.dropout};
  build.loss = options.run.model.loss;
  build.precision = options.run.model.precision;
  build.picture_layout = convolution_layout();
  return build_training_graph(model.model, model.rules, build);
}

}  // namespace

int inspect_command(Options& options) {
  resolve_verbosity(options);
  resolve_model(options, "inspect");
  const LoadedModel model = load_model(options.run.model);
  std::map<std::string, int> histogram;
  for (const OnnxNode& node : model.file.nodes) ++histogram[node.op_type];
  std::map<std::string_view, int> uses;
  for (const auto& [name, rule] : model.rules) ++uses[use_name(rule.use)];

  Json json = {{"schema", "pipetrain.inspect/1"},
               {"file", options.run.model.path},
               {"opset", model.file.opset},
               {"ir_version", model.file.ir_version},
               {"producer", printable(model.file.producer)},
               {"nodes", model.file.nodes.size()},
               {"operators", histogram}};
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
  for (const UntiedCopy& copy : model.copies)
    json["copies"].push_back({{"name", copy.name}, {"original", copy.original}});

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
  for (const auto& [op, count] : histogram) text += fmt::format(" {}:{}", printable(op), count);
  text += "\ntensors ";
  for (const auto& [use, count] : uses) text += fmt::format(" {} {}", count, use);
  text += fmt::format("  ({} copies trained apart; list: --params)\n", model.copies.size());
  for (const std::string& warning : model.file.warnings) text += "warning  " + warning + "\n";
  if (options.show_params) {
    for (const auto& [name, rule] : model.rules)
      text += fmt::format("  {:<8} {:<48} {}\n", use_name(rule.use), printable(name), rule.reason);
  }

  std::optional<Error> failure;
  try {
    const TrainingGraph graph = build(options, model);
    const Chain chain = linearise(graph);
    std::int64_t parameters = 0;
    for (const Parameter& parameter : graph.parameters)
      parameters += graph.graph[parameter.value].type.count();
    json["trainable"] = true;
    json["loss"] = {{"kind", name_of(graph.loss.kind)},
                    {"output", graph.loss.output},
                    {"task", graph.loss.task}};
    json["trained_numbers"] = parameters;
    text += fmt::format("trains   yes: {} numbers in {} tensors, {}\n", parameters,
                        graph.parameters.size(), graph.loss.task);
    text += fmt::format("chain    {} nodes after folding, of which any can start a stage\n",
                        chain.order.size());
    for (std::size_t i = 0; i < chain.order.size(); ++i) {
      const Node& node = graph.graph[chain.order[i]];
      json["chain"].push_back({{"name", printable(node.name)},
                               {"op", node.op->name},
                               {"forward_bytes", chain.forward_bytes[i]}});
      if (options.show_chain) {
        text += fmt::format("  {:<4} {:<20} {:<40} cut before: {}\n", i, node.op->name,
                            printable(node.name), bytes_text(chain.forward_bytes[i]));
      }
    }
    for (const std::string& note : graph.notes) text += "note     " + note + "\n";
    if (options.show_graph) text += graph.graph.to_text();
  } catch (const Error& error) {
    // What only a flag can decide is no fault of the model.
    const bool needs_flag = error.kind() == ErrorKind::kUsage;
    if (!needs_flag) failure = error;
    json["trainable"] = needs_flag;
    json[needs_flag ? "needs" : "error"] = error.what();
    if (needs_flag) text += fmt::format("trains   with a flag: {}\n", error.what());
  }
  std::fputs((options.json ? json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n" : text)
                 .c_str(),
             stdout);
  if (failure) throw *failure;
  return 0;
}

namespace {

/// What GPU support finds on this machine.
struct Gpus {
  std::vector<std::string> names;
  std::string absent;                   // why there is none
  std::string exchange;                 // NCCL and its version, or why not; empty without a GPU
  std::vector<FoundLibrary> libraries;  // empty without a plugin
};

Gpus find_gpus() {
  const auto reason = [](const Error& error) {
    const std::string text = error.message();
    return text.substr(0, text.find('\n'));
  };
  Gpus gpus;
  try {
    gpus.names = cuda_plugin().devices();
  } catch (const Error& error) {
    gpus.absent = reason(error);
    return gpus;
  }
  try {
    gpus.exchange = cuda_plugin().collectives().name();
  } catch (const Error& error) {
    gpus.exchange = "none: " + reason(error);
  }
  return gpus;
}

std::string gpus_text(const Gpus& gpus) {
  if (gpus.names.empty()) return "none: " + gpus.absent;
  std::string text;
  for (std::size_t g = 0; g < gpus.names.size(); ++g)
    text += fmt::format("{}cuda:{} {}", g == 0 ? "" : ", ", g, printable(gpus.names[g]));
  return text + "\nnccl     " + gpus.exchange;
}

std::string libraries_text(const std::vector<FoundLibrary>& libraries) {
  std::string text, missing;
  const auto line = [&](const std::string& words) {
    text += fmt::format("{:<9}{}\n", text.empty() ? "cuda" : "", words);
  };
  for (const FoundLibrary& library : libraries) {
    if (library.handle) {
      line(fmt::format("{} {}: {}, from {}", library.name, library.version, printable(library.path),
                       library.origin));
    } else if (library.damaged) {
      line(fmt::format("{}: none: {}", library.name, library.problem));
    } else {
      missing += (missing.empty() ? "" : ", ") + library.file;
    }
  }
  if (!missing.empty())
    line("not found: " + missing + " (PIPETRAIN_CUDA_LIBRARIES names their folder)");
  return text;
}

Json libraries_json(const std::vector<FoundLibrary>& libraries) {
  Json json = Json::array();
  for (const FoundLibrary& library : libraries)
    json.push_back({{"name", library.name},
                    {"file", library.file},
                    {"version", library.version},
                    {"path", library.path},
                    {"from", library.origin},
                    {"absent", library.problem}});
  return json;
}

}  // namespace

int doctor_command(Options& options) {
  resolve_verbosity(options);
  if (options.measure) {
    check_processor();
    return measure_and_report(options.json, options.output);
  }
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  const std::size_t memory = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                             static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::string vectors = vector_instructions(), missing = missing_instructions();
  const std::string cache = default_cache_directory().string();
  Gpus gpus = find_gpus();
  // Also where the plugin does not serve; after it, so that these are what it has taken.
  if (has_cuda_plugin()) gpus.libraries = nvidia_libraries();
  if (options.json) {
    const Json json = {{"schema", "pipetrain.doctor/1"},
                       {"version", PIPETRAIN_VERSION},
                       {"cores", cores},
                       {"memory_bytes", memory},
                       {"avx2", vectors != "none"},
                       {"avx512", vectors.starts_with("AVX-512")},
                       {"avx512_bfloat16", vectors == "AVX-512 with bfloat16"},
                       {"gpus", gpus.names.size()},
                       {"gpu_names", gpus.names},
                       {"gpus_absent", gpus.absent},
                       {"nccl", gpus.exchange},
                       {"cuda_libraries", libraries_json(gpus.libraries)},
                       {"cache", cache}};
    std::fputs((json.dump(2) + "\n").c_str(), stdout);
    return 0;
  }
  std::string text = fmt::format(
      "pipetrain {}\ncores    {}{}\nmemory   {}\nvectors  {}\ngpus     {}\n{}cache    {}\n",
      PIPETRAIN_VERSION, cores,
      cores > 1 ? fmt::format(": up to {} stages with a core each", cores) : "", bytes_text(memory),
      missing.empty() ? vectors : "too old for this build's CPU kernels, which need " + missing,
      gpus_text(gpus), libraries_text(gpus.libraries), cache.empty() ? "none" : cache);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace pipetrain
