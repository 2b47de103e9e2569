// Runs official ONNX test cases (a folder with model.onnx and test_data_set_N/{input,output}_N.pb
// each) and says for each whether the numbers are right, computed with both backends or with the
// CPU's alone: run_case [--cpu-only] FOLDER… | --list FILE. One line a case, tab-separated:
//   PASS | FAIL | SKIP   folder   gradient (yes, no, -)   CPU kernels (yes, no, -)   reason
// A case is skipped only where pipetrain itself refuses the model; the reason begins with the kind
// of refusal (operator, type, opset, form, random). A wrong number, an internal error and a signal
// are failures.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "case_files.h"
#include "graph/op.h"
#include "onnx_io/subgraph.h"
#include "ops/registry/registry.h"
#include "passes/execute.h"
#include "passes/lower.h"
#include "passes/sequences.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  std::string status;
  std::string gradient = "-";
  std::string cpu = "-";
  std::string reason;
};

/// The refusal that another role of the inputs may avoid: some inputs must be constants.
constexpr std::string_view kNeedsConstant = "must be known before training";

void refuse_missing_operators(const OnnxModel& model) {
  std::set<std::string> missing;
  for (const OnnxNode& outer : model.nodes) {
    for (const OnnxNode& node : with_inner_nodes(outer)) {
      if (!node.domain.empty()) {
        missing.insert(node.domain + "." + node.op_type);
      } else if (!has_subgraphs(node) && !is_sequence_operator(node) &&
                 !find_import(node.op_type)) {
        missing.insert(node.op_type);
      }
    }
  }
  if (missing.empty()) return;
  std::string list;
  for (const std::string& name : missing) list += (list.empty() ? "" : ", ") + name;
  throw Skip{"operator: " + list};
}

/// Whether the model is to draw random numbers: a Dropout that says so (since opset 12, by its
/// third input), or Bernoulli.
bool asks_for_dropout(const OnnxModel& model) {
  return std::any_of(model.nodes.begin(), model.nodes.end(), [](const OnnxNode& node) {
    return node.op_type == "Bernoulli" ||
           (node.op_type == "Dropout" && node.opset >= 12 && node.has_input(2));
  });
}

/// What the inputs of the case are to the graph. Inputs that are not constants are given the role
/// of parameters, whose content a graph has with it and never folds; so inputs may have any shape,
/// scalars included.
enum class Constants { kNone, kIntegers, kAllButFirst, kAll };

/// Whether a value is the running mean or variance of a BatchNormalization.
bool is_running_statistic(const OnnxModel& model, const std::string& name) {
  return std::any_of(model.nodes.begin(), model.nodes.end(), [&](const OnnxNode& node) {
    return node.op_type == "BatchNormalization" && node.inputs.size() == 5 &&
           (node.inputs[3] == name || node.inputs[4] == name);
  });
}

TrainingGraph lower_case(OnnxModel model, const std::vector<HostTensor>& inputs,
                         Constants constants) {
  std::map<std::string, TensorRule> rules;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string& name = model.inputs[i].name;
    const bool constant = constants == Constants::kAll ||
                          (constants == Constants::kAllButFirst && i > 0) ||
                          (constants == Constants::kIntegers && !is_float(inputs[i].dtype()));
    rules[name] = {constant ? TensorUse::kFrozen : TensorUse::kTrained, "input of the case"};
    if (is_running_statistic(model, name)) rules[name].use = TensorUse::kRunningStatistic;
    OnnxInitializer initializer;
    initializer.name = name;
    initializer.value = inputs[i];
    initializer.file_dtype = inputs[i].dtype();
    initializer.shape = inputs[i].shape();
    model.initializers.push_back(std::move(initializer));
  }
  model.inputs.clear();
  LowerOptions options;
  options.mode.batch_norm = BatchNormMode::kAsFile;
  options.mode.dropout = asks_for_dropout(model);
  return lower(model, rules, options);
}

/// Makes constants of as few inputs as the operators allow, so that kernels compute, not the
/// folding.
TrainingGraph lower_case(const OnnxModel& model, const std::vector<HostTensor>& inputs) {
  constexpr std::array kTries = {Constants::kNone, Constants::kIntegers, Constants::kAllButFirst};
  for (const Constants constants : kTries) {
    try {
      return lower_case(model, inputs, constants);
    } catch (const Error& error) {
      if (error.message().find(kNeedsConstant) == std::string::npos) throw;
    }
  }
  return lower_case(model, inputs, Constants::kAll);
}

/// Difference allowed beside ONNX's own: one unit in the last place of the types that pipetrain
/// computes in float32.
double unit(DType dtype) {
  if (dtype == DType::kFloat16) return 0x1p-10;
  return dtype == DType::kBFloat16 ? 0x1p-7 : 0.0;
}

/// Compares as numpy's assert_allclose(rtol=1e-3, atol=1e-7) does, ONNX's own measure; "" if it
/// holds. Where numbers cancel, no float32 sum is closer to 0 than a unit of the largest number.
std::string compare_floats(const HostTensor& got, const HostTensor& expected) {
  const std::vector<double> a = got.to_doubles();
  const std::vector<double> b = expected.to_doubles();
  const double relative = 1e-3 + unit(expected.dtype());
  double absolute = 1e-7;
  for (const double x : b) {
    if (std::isfinite(x)) absolute = std::max(absolute, 0x1p-22 * std::abs(x));
  }
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] == b[i]) continue;
    if (std::isfinite(b[i]) && std::abs(a[i] - b[i]) <= absolute + relative * std::abs(b[i]))
      continue;
    return fmt::format("element {} of {} is {}, expected {}", i, b.size(), a[i], b[i]);
  }
  return "";
}

std::string compare(const HostTensor& got, const HostTensor& expected) {
  if (got.shape() != expected.shape()) {
    return fmt::format("shape {}, expected {}", got.shape().text(), expected.shape().text());
  }
  if (is_float(expected.dtype()) && is_float(got.dtype())) return compare_floats(got, expected);
  if (got.dtype() != expected.dtype()) {
    return fmt::format("type {}, expected {}", name_of(got.dtype()), name_of(expected.dtype()));
  }
  const std::vector<std::int64_t> a = got.to_int64s();
  const std::vector<std::int64_t> b = expected.to_int64s();
  const auto [at, there] = std::mismatch(a.begin(), a.end(), b.begin());
  if (at == a.end()) return "";
  return fmt::format("element {} of {} is {}, expected {}", at - a.begin(), a.size(), *at, *there);
}

bool has_random_node(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [](const Node& node) { return (node.op->flags & kRandom) != 0; });
}

/// Whether gradients reach every floating-point input that is no constant: "yes", "no", or "-"
/// where there is none. Nodes without a floating-point result need no rule.
std::string has_gradient(const Graph& graph, const std::vector<ValueId>& outputs) {
  const auto is_real = [&](ValueId id) {
    return id && is_float(graph[id].type.dtype) && graph[id].role != Role::kConstant;
  };
  const bool ends_real = std::any_of(outputs.begin(), outputs.end(), is_real);
  std::string out = "-";
  for (const Node& node : graph.nodes) {
    if (std::none_of(node.inputs.begin(), node.inputs.end(), is_real)) continue;
    if (ends_real && std::any_of(node.outputs.begin(), node.outputs.end(), is_real)) {
      if (node.op->differentiate == nullptr) return "no";
      out = "yes";
    } else if (out == "-") {
      out = "no";
    }
  }
  return out;
}

bool has_cpu_kernels(const Graph& graph) {
  return std::all_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    return (node.op->flags & kView) != 0 || has_cpu_kernel(node.op->name);
  });
}

/// Running statistics are updated outside the graph (and there with the unbiased variance), so that
/// where an output is one, ONNX's formula is applied to the moments that the node computes.
struct Blend {
  std::size_t output;
  ValueId moment;
  double momentum;
};

std::vector<Blend> find_blends(const TrainingGraph& graph) {
  std::vector<Blend> out;
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    for (const RunningStatistic& statistic : graph.statistics) {
      if (graph.outputs[i] == statistic.state_mean) {
        out.push_back({i, statistic.batch_mean, statistic.momentum});
      } else if (graph.outputs[i] == statistic.state_variance) {
        out.push_back({i, statistic.batch_variance, statistic.momentum});
      }
    }
  }
  return out;
}

HostTensor blended(const HostTensor& running, const HostTensor& moment, double momentum) {
  HostTensor out(running.type());
  for (std::size_t i = 0; i < out.span<float>().size(); ++i) {
    out.span<float>()[i] = static_cast<float>(momentum * running.span<float>()[i] +
                                              (1 - momentum) * moment.span<float>()[i]);
  }
  return out;
}

std::string check_backend(const TrainingGraph& graph, Backend backend,
                          const std::vector<HostTensor>& expected) {
  std::vector<ValueId> wanted = graph.outputs;
  const std::vector<Blend> blends = find_blends(graph);
  for (const Blend& blend : blends) wanted.push_back(blend.moment);
  std::vector<HostTensor> got = execute(graph.graph, backend, {}, wanted);
  for (std::size_t i = 0; i < blends.size(); ++i) {
    HostTensor& output = got[blends[i].output];
    output = blended(output, got[graph.outputs.size() + i], blends[i].momentum);
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::string difference = compare(got[i], expected[i]);
    if (!difference.empty()) {
      return fmt::format("{}: output {} ({}): {}", backend == Backend::kCpu ? "cpu" : "reference",
                         i, graph.output_names[i], difference);
    }
  }
  return "";
}

/// Runs one test_data_set_N of the case.
void run_data_set(OnnxModel model, const fs::path& folder, std::span<const Backend> backends,
                  Outcome& outcome) {
  const std::vector<HostTensor> inputs = read_tensors(folder, "input");
  const std::vector<HostTensor> expected = read_expected(model, folder);
  PT_CHECK(inputs.size() == model.inputs.size(), kData, "{} has {} inputs, its model {}",
           folder.string(), inputs.size(), model.inputs.size());
  try {
    const TrainingGraph graph = lower_case(model, inputs);
    if (has_random_node(graph.graph)) throw Skip{"random: the numbers of another generator"};
    if (!graph.graph.nodes.empty()) {
      outcome.gradient = has_gradient(graph.graph, graph.outputs);
      outcome.cpu = has_cpu_kernels(graph.graph) ? "yes" : "no";
    }
    for (const Backend backend : backends) {
      outcome.reason = check_backend(graph, backend, expected);
      if (!outcome.reason.empty()) {
        outcome.status = "FAIL";
        return;
      }
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kModel) throw;
    const bool by_type = error.message().find("has no kernel for") != std::string::npos ||
                         error.message().find("element type") != std::string::npos;
    throw Skip{(by_type ? "type: " : "form: ") + error.message()};
  }
}

Outcome run_case(const fs::path& folder, std::span<const Backend> backends) {
  Outcome outcome;
  outcome.status = "PASS";
  try {
    const OnnxModel model = read_model(folder / "model.onnx");
    refuse_missing_operators(model);
    bool any = false;
    for (int set = 0; outcome.status == "PASS"; ++set) {
      const fs::path data = folder / fmt::format("test_data_set_{}", set);
      if (!fs::exists(data)) break;
      any = true;
      run_data_set(model, data, backends, outcome);
    }
    if (!any) outcome = {"FAIL", "-", "-", "no test_data_set_0"};
  } catch (const Skip& skip) {
    outcome = {"SKIP", "-", "-", skip.reason};
  } catch (const std::exception& error) {
    outcome = {"FAIL", "-", "-", error.what()};
  }
  std::replace_if(
      outcome.reason.begin(), outcome.reason.end(), [](char c) { return c == '\n' || c == '\t'; },
      ' ');
  return outcome;
}

std::string line_of(const Outcome& outcome, const std::string& folder) {
  return fmt::format("{}\t{}\t{}\t{}\t{}", outcome.status, folder, outcome.gradient, outcome.cpu,
                     outcome.reason);
}

/// Runs the case in a process of its own, which may crash or hang without harm to the others.
std::string run_apart(const std::string& folder, std::span<const Backend> backends) {
  constexpr unsigned kSeconds = 300;
  int ends[2];
  if (pipe(ends) != 0) return line_of({"FAIL", "-", "-", "no pipe"}, folder);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    alarm(kSeconds);
    const std::string line = line_of(run_case(folder, backends), folder);
    const bool written = write(ends[1], line.data(), line.size()) == std::ssize(line);
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::string line;
  std::array<char, 4096> piece;
  for (ssize_t n; (n = read(ends[0], piece.data(), piece.size())) > 0;) {
    line.append(piece.data(), static_cast<std::size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    return line_of({"FAIL", "-", "-", fmt::format("ended by signal {}", WTERMSIG(status))}, folder);
  }
  if (line.empty()) return line_of({"FAIL", "-", "-", "ended without a word"}, folder);
  return line;
}

}  // namespace
}  // namespace pipetrain

int main(int argc, char** argv) {
  using pipetrain::Backend;
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments == std::vector<std::string>{"--operators"}) {
    std::vector<std::string_view> names = pipetrain::importable_operators();
    names.insert(names.end(), {"If", "Loop", "Scan"});
    for (const std::string& name : pipetrain::sequence_operators()) names.push_back(name);
    std::sort(names.begin(), names.end());
    for (const std::string_view name : names) std::cout << name << '\n';
    return 0;
  }
  std::vector<Backend> backends = {Backend::kReference, Backend::kCpu};
  if (!arguments.empty() && arguments[0] == "--cpu-only") {
    backends = {Backend::kCpu};
    arguments.erase(arguments.begin());
  }
  if (arguments.size() == 2 && arguments[0] == "--list") {
    std::ifstream list(arguments[1]);
    arguments.clear();
    for (std::string line; std::getline(list, line);) arguments.push_back(line);
  }
  bool failed = arguments.empty();
  for (const std::string& folder : arguments) {
    const std::string line = pipetrain::run_apart(folder, backends);
    failed = failed || line.starts_with("FAIL");
    std::cout << line << std::endl;
  }
  return failed ? 1 : 0;
}
