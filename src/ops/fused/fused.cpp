#include "ops/fused/fused.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"
#include "graph/op.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

bool is_step(const OpDef* op) {
  return op && op->traits.fusion != Fusion::kNever && op->traits.fusion != Fusion::kUnstated;
}

bool is_narrow(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

/// Whether the CPU has a loop for a step with these operand types and this result type. Loops work
/// on floats, whichever type they are stored in.
bool has_cpu_loop(const OpDef& op, std::vector<DType> in, DType out) {
  using enum DType;
  if (op.traits.fusion == Fusion::kConversion && in[0] == out) return false;
  for (DType& dtype : in) dtype = is_narrow(dtype) ? kFloat32 : dtype;
  out = is_narrow(out) ? kFloat32 : out;
  const auto all = [&](std::span<const DType> types, DType type) {
    return std::all_of(types.begin(), types.end(), [&](DType one) { return one == type; });
  };
  switch (op.traits.fusion) {
    case Fusion::kComparison:
      return out == kBool &&
             (all(in, kFloat32) || all(in, kInt64) || (op.name == "Equal" && all(in, kBool)));
    case Fusion::kLogic:
      return out == kBool && all(in, out);
    case Fusion::kTest:
      return out == kBool && all(in, kFloat32);
    case Fusion::kChoice:
      return in[0] == kBool && all(std::span(in).subspan(1), out) &&
             (out == kFloat32 || out == kInt64);
    case Fusion::kConversion:
      return in[0] == kBool || out == kBool || in[0] == kFloat32 || out == kFloat32;
    case Fusion::kFloats:
      return out == kFloat32 && all(in, out);
    case Fusion::kUnstated:
    case Fusion::kNever:
      break;
  }
  return false;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

template <class T>
bool parse(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// An integer, a float, or a string.
Attributes::Value value_of(std::string_view text) {
  std::int64_t whole = 0;
  if (parse(text, whole)) return whole;
  double real = 0;
  if (parse(text, real)) return real;
  return std::string(text);
}

constexpr std::string_view kAs = "as";

DType stored_type(std::string_view name) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kBool, DType::kInt64}) {
    if (name == name_of(dtype)) return dtype;
  }
  PT_FAIL(kModel, "a fused step cannot be stored as \"{}\"", printable(std::string(name)));
}

struct ValueText {
  std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const {
    const std::string text = fmt::format("{:.17g}", value);
    // Unless it already reads as a float: inf and nan contain an n.
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  std::string operator()(const std::string& value) const { return value; }
  template <class T>
  std::string operator()(const T&) const {
    PT_FAIL(kInternal, "an attribute of a fused step is neither a number nor a string");
  }
};

bool is_taken(DType dtype, FusedTypes types) {
  if (dtype == DType::kFloat32) return true;
  if (is_narrow(dtype)) return types != FusedTypes::kFloat32;
  return types == FusedTypes::kCpu && (dtype == DType::kBool || dtype == DType::kInt64);
}

void infer_fused(InferContext& context) {
  PT_CHECK(!context.inputs.empty(), kModel, "expected at least one input");
  const FusedProgram program =
      fused_program(context.attributes, static_cast<int>(context.inputs.size()));
  TensorType out = context.inputs[0];
  for (const TensorType& type : context.inputs) {
    PT_CHECK(is_float(type.dtype) || is_taken(type.dtype, FusedTypes::kCpu), kModel,
             "expected floats, bool or int64, got {}", type.text());
    out.shape = broadcast(out.shape, type.shape);
  }
  for (const TensorType& type : context.inputs) {
    if (type.shape == out.shape) out.layout = type.layout;
  }
  context.outputs.assign(program.results.size(), out);
  for (std::size_t k = 0; k < program.results.size(); ++k)
    context.outputs[k].dtype = program.stored(program.results[k], context.inputs);
}

Cost fused_cost(const Attributes& attributes, std::span<const TensorType> inputs,
                std::span<const TensorType> outputs) {
  double flops = 0;
  for (const FusedStep& step : fused_program(attributes, static_cast<int>(inputs.size())).steps) {
    const OpDef* op = find_op(step.op);
    const std::vector<TensorType> operands(step.operands.size(), outputs[0]);
    if (op && op->cost) flops += op->cost(step.attributes, operands, outputs.first(1)).flops;
  }
  return {flops};
}

constexpr OpTraits kFusedTraits = {KernelKind::kElementwise,
                                   {PrecisionRule::kAsLarge},
                                   LayoutRule::kFollows,
                                   {ChunkRule::kElements},
                                   Fusion::kNever};

constexpr OpDef kFusedOps[] = {
    {"Fused", kElementwise, kFusedTraits, infer_fused, nullptr, fused_cost}};

}  // namespace

std::string FusedProgram::text() const {
  std::string out;
  for (const FusedStep& step : steps) {
    out += (out.empty() ? "" : "; ") + step.op;
    for (const int operand : step.operands) out += fmt::format(" {}", operand);
    for (const auto& [name, value] : step.attributes.items())
      out += fmt::format(" {}={}", name, std::visit(ValueText{}, value));
    if (step.stored != DType::kUndefined) out += fmt::format(" {}={}", kAs, name_of(step.stored));
  }
  return out;
}

DType FusedProgram::stored(int step, std::span<const TensorType> inputs) const {
  const DType own = steps[static_cast<std::size_t>(step)].stored;
  if (own != DType::kUndefined) return own;
  for (const TensorType& type : inputs) {
    PT_CHECK(type.dtype == inputs[0].dtype, kModel,
             "a fused step over {} and {} does not state its result type", inputs[0].text(),
             type.text());
  }
  return inputs[0].dtype;
}

Attributes fused_attributes(const FusedProgram& program) {
  return {{"program", program.text()},
          {"results", Ints(program.results.begin(), program.results.end())}};
}

FusedProgram fused_program(const Attributes& attributes, int input_count) {
  FusedProgram program;
  const std::string text = attributes.text("program", "");
  for (const std::string_view line : split(text, ';')) {
    FusedStep step;
    for (const std::string_view word : split(line, ' ')) {
      int operand = 0;
      if (step.op.empty()) {
        step.op = word;
      } else if (const std::size_t equals = word.find('='); equals != std::string_view::npos) {
        const std::string_view value = word.substr(equals + 1);
        if (word.substr(0, equals) == kAs) {
          step.stored = stored_type(value);
        } else {
          step.attributes.set(std::string(word.substr(0, equals)), value_of(value));
        }
      } else {
        const int known = input_count + static_cast<int>(program.steps.size());
        PT_CHECK(parse(word, operand) && operand >= 0 && operand < known, kModel,
                 "the fused step \"{}\" has no operand {}", printable(std::string(line)),
                 printable(std::string(word)));
        step.operands.push_back(operand);
      }
    }
    PT_CHECK(is_step(find_op(step.op)) && !step.operands.empty(), kModel,
             "\"{}\" is not a fused step", printable(std::string(line)));
    program.steps.push_back(std::move(step));
  }
  for (const std::int64_t step : attributes.ints("results")) {
    PT_CHECK(step >= 0 && step < static_cast<std::int64_t>(program.steps.size()), kModel,
             "a fused program of {} steps has no result {}", program.steps.size(), step);
    program.results.push_back(static_cast<int>(step));
  }
  PT_CHECK(!program.results.empty(), kModel, "a fused program has no result");
  PT_CHECK(input_count + static_cast<int>(program.steps.size()) <= kMostFusedOperands, kModel,
           "a fused program has more than {} inputs and steps", kMostFusedOperands);
  return program;
}

bool is_fusible(const Graph& graph, const Node& node, FusedTypes types) {
  if (!is_step(node.op) || node.outputs.size() != 1) return false;
  if (node.op->traits.fusion == Fusion::kConversion && types == FusedTypes::kFloat32) return false;
  const TensorType& out = graph[node.outputs[0]].type;
  if (!is_taken(out.dtype, types) || out.count() == 0) return false;
  std::vector<DType> operands;
  for (const ValueId id : node.inputs) {
    if (!id || !is_taken(graph[id].type.dtype, types)) return false;
    if (graph[id].type.shape == out.shape && graph[id].type.layout != out.layout) return false;
    operands.push_back(graph[id].type.dtype);
  }
  if (types == FusedTypes::kCpu && !has_cpu_loop(*node.op, operands, out.dtype)) return false;
  // Random numbers are indexed by row-major element.
  if ((node.op->flags & kRandom) && out.layout != Layout::kRowMajor) return false;
  for (const auto& [name, value] : node.attributes.items()) {
    if (std::holds_alternative<Ints>(value) || std::holds_alternative<Reals>(value) ||
        std::holds_alternative<HostTensor>(value))
      return false;
  }
  return true;
}

const OpFamily& fused_family() {
  static const OpFamily family{
      "fused",
      kFusedOps,
      {},
      fused_reference_kernels(),
      fused_cpu_kernels(),
      /* the program says which steps are rounded */ [](Backend, const KernelRequest&) {
        return true;
      }};
  return family;
}

}  // namespace pipetrain
