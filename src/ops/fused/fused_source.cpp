#include "ops/fused/fused_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <string_view>
#include <type_traits>

#include "ops/elementwise/device_math_cuda.h"
#include "ops/elementwise/elementwise_functors.h"
#include "ops/kernel/broadcast_plan.h"

namespace pipetrain {
namespace {

using namespace elementwise;

constexpr std::int64_t kWide = 8;  // of ops/cuda/stored_access_cuda.h
// Tensors in groups of eight take eight registers each.
constexpr std::size_t kMostWideTensors = 10;
constexpr std::size_t kMostResults = 4, kMostDropouts = 4;  // of ops/fused/fused_operands_cuda.h

/// The name of a type within namespace pipetrain::elementwise.
template <class F>
std::string type_text() {
  std::string_view text = __PRETTY_FUNCTION__;
  text.remove_prefix(text.find("F = ") + 4);
  std::string out(text.substr(0, text.find_first_of(";]")));
  constexpr std::string_view kNamespace = "pipetrain::elementwise::";
  for (std::size_t at; (at = out.find(kNamespace)) != std::string::npos;)
    out.erase(at, kNamespace.size());
  return out;
}

std::string literal(float value) {
  if (std::isfinite(value)) return fmt::format("{:a}f", value);
  return fmt::format("number({:#x}u)", std::bit_cast<std::uint32_t>(value));
}

/// A function object with its parameters.
template <class F>
std::string object_text(const F& function) {
  std::string parameters;
  if constexpr (!std::is_empty_v<F>) {
    for (const float value : std::bit_cast<std::array<float, sizeof(F) / sizeof(float)>>(function))
      parameters += (parameters.empty() ? "" : ", ") + literal(value);
  }
  return type_text<F>() + "{" + parameters + "}";
}

/// Empty when there is none with this number of operands.
std::string function_of(const FusedStep& step) {
  std::string out;
  const auto take = [&](const auto& function) {
    using F = std::decay_t<decltype(function)>;
    if constexpr (!std::is_same_v<F, LibraryFunction<float>>) out = object_text(function);
  };
  if (step.operands.size() == 1) {
    visit_unary<float, DeviceMath>(step.op, step.attributes, take);
  } else if (step.operands.size() == 2) {
    if (!visit_gradient<float, DeviceMath>(step.op, step.attributes, take))
      visit_arithmetic<float>(step.op, step.attributes, take);
  }
  return out;
}

std::string_view stored_text(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "Stored::kFloat";
    case DType::kBFloat16:
      return "Stored::kBFloat16";
    case DType::kFloat16:
      return "Stored::kFloat16";
    default:
      return {};
  }
}

/// How an input is broadcast to the elements of a result.
struct SourceOperand {
  enum class Kind : std::uint8_t { kWhole, kScalar, kRepeated } kind = Kind::kWhole;
  std::string at;      // the index expression of its element, in terms of i
  bool wide = true;    // eight adjacent results read eight adjacent elements, or one
  bool along = false;  // … eight adjacent elements
};

SourceOperand operand_of(const TensorType& type, const TensorType& result) {
  if (type.shape == result.shape) return {SourceOperand::Kind::kWhole, "i", true, true};
  if (type.count() == 1) return {SourceOperand::Kind::kScalar, "0", true, false};
  const BroadcastPlan plan = plan_broadcast(result, std::span(&type, 1));
  const std::vector<std::int64_t>& strides = plan.strides[0];
  const std::size_t last = plan.dims.size() - 1;
  SourceOperand out{SourceOperand::Kind::kRepeated, "", plan.dims[last] % kWide == 0,
                    strides[last] != 0};
  std::int64_t inner = 1;
  for (std::size_t d = plan.dims.size(); d-- > 0; inner *= plan.dims[d]) {
    if (strides[d] == 0) continue;
    std::string index = inner == 1 ? "i" : fmt::format("i / {}", inner);
    if (d > 0) index += fmt::format(" % {}", plan.dims[d]);
    if (strides[d] != 1) index += fmt::format(" * {}", strides[d]);
    out.at = out.at.empty() ? index : index + " + " + out.at;
    const bool in_steps = d == last ? strides[d] == 1 : strides[d] % kWide == 0;
    if (out.along && !in_steps) out.wide = false;
  }
  return out;
}

class Writer {
 public:
  Writer(const FusedProgram& program, const std::vector<TensorType>& inputs,
         const std::vector<TensorType>& outputs)
      : program_(program), inputs_(inputs), outputs_(outputs) {}

  FusedSource run() {
    if (!is_possible()) return {};
    for (const TensorType& type : inputs_) operands_.push_back(operand_of(type, outputs_[0]));
    add("#include \"ops/fused/fused_access_cuda.h\"\n\nnamespace pipetrain::elementwise {{\n\n");
    write_element();
    write_kernel();
    add("}}  // namespace pipetrain::elementwise\n");
    return {impossible_ ? std::string() : std::move(text_), std::move(dropouts_), is_wide()};
  }

 private:
  template <class... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
  }

  bool is_possible() const {
    const TensorType& first = outputs_[0];
    if (first.layout != Layout::kRowMajor && first.layout != Layout::kChannelsLast) return false;
    const auto stored = [&](const TensorType& type) {
      const bool whole = type.shape == first.shape;
      return !stored_text(type.dtype).empty() &&
             type.layout == (whole ? first.layout : Layout::kRowMajor);
    };
    const auto dropouts = std::count_if(program_.steps.begin(), program_.steps.end(),
                                        [](const FusedStep& step) { return step.op == "Dropout"; });
    return outputs_.size() <= kMostResults && dropouts <= static_cast<int>(kMostDropouts) &&
           std::all_of(inputs_.begin(), inputs_.end(), stored) &&
           std::all_of(outputs_.begin(), outputs_.end(), stored);
  }

  bool is_wide() const {
    std::size_t tensors = outputs_.size();
    for (const SourceOperand& operand : operands_) {
      if (!operand.wide) return false;
      tensors += operand.along;
    }
    return tensors <= kMostWideTensors;
  }

  bool is_scalar(std::size_t input) const {
    return operands_[input].kind == SourceOperand::Kind::kScalar;
  }

  /// The steps, from the operands of one element to its results.
  void write_element() {
    add("__device__ __forceinline__ void element([[maybe_unused]] const FusedOperands& operands,\n"
        "                                        [[maybe_unused]] std::int64_t i");
    for (std::size_t k = 0; k < inputs_.size(); ++k) add(", float v{}", k);
    for (std::size_t r = 0; r < outputs_.size(); ++r) add(", float& r{}", r);
    add(") {{\n");
    for (std::size_t k = 0; k < program_.steps.size(); ++k) {
      const DType dtype = program_.stored(static_cast<int>(k), inputs_);
      const std::string_view stored = stored_text(dtype);
      const std::string value = value_of(k);
      if (value.empty() || stored.empty()) impossible_ = true;
      const std::size_t number = inputs_.size() + k;
      if (dtype == DType::kFloat32) {
        add("  const float v{} = {};\n", number, value);
      } else {
        add("  const float v{} = restored({}, {});\n", number, value, stored);
      }
    }
    for (std::size_t r = 0; r < outputs_.size(); ++r) {
      add("  r{} = v{};\n", r, inputs_.size() + static_cast<std::size_t>(program_.results[r]));
    }
    add("}}\n\n");
  }

  std::string value_of(std::size_t k) {
    const FusedStep& step = program_.steps[k];
    const auto operand = [&](std::size_t o) { return fmt::format("v{}", step.operands[o]); };
    if (step.op == "Cast") return operand(0);
    if (step.op == "Dropout") {
      dropouts_.push_back(k);
      return fmt::format("drop_out(operands.masks[{}], {}, i)", dropouts_.size() - 1, operand(0));
    }
    if (step.op == "Sum") {
      std::string sum;
      for (std::size_t o = 0; o < step.operands.size(); ++o) sum += (o ? " + " : "") + operand(o);
      return sum;
    }
    const std::string function = function_of(step);
    if (function.empty()) return {};
    std::string list;
    for (std::size_t o = 0; o < step.operands.size(); ++o) list += (o ? ", " : "") + operand(o);
    return fmt::format("{}({})", function, list);
  }

  void write_kernel() {
    add("extern \"C\" __global__ void __launch_bounds__(kBlock)\n"
        "    fused(PT_LARGE(FusedOperands) operands) {{\n");
    for (std::size_t k = 0; k < inputs_.size(); ++k)
      add("  const ConstFloatView x{}(operands.in[{}], {});\n", k, k,
          stored_text(inputs_[k].dtype));
    for (std::size_t r = 0; r < outputs_.size(); ++r)
      add("  const FloatView y{}(operands.out[{}], {});\n", r, r, stored_text(outputs_[r].dtype));
    for (std::size_t k = 0; k < inputs_.size(); ++k) {
      if (is_scalar(k)) add("  const float v{} = x{}[0];\n", k, k);
    }
    if (is_wide()) write_groups();
    add("  for (std::int64_t i = {}first_of_thread(); i < operands.count; i += step_of_thread()) "
        "{{\n    float {};\n    element(operands, i",
        is_wide() ? "kWide * operands.groups + " : "", list_of_results(""));
    for (std::size_t k = 0; k < inputs_.size(); ++k) {
      if (is_scalar(k)) {
        add(", v{}", k);
      } else {
        add(", x{}[{}]", k, operands_[k].at);
      }
    }
    add(", {});\n", list_of_results(""));
    for (std::size_t r = 0; r < outputs_.size(); ++r) add("    if (y{}) y{}[i] = r{};\n", r, r, r);
    add("  }}\n}}\n\n");
  }

  void write_groups() {
    add("  for (std::int64_t g = first_of_thread(); g < operands.groups; g += step_of_thread()) "
        "{{\n    const std::int64_t i = kWide * g;\n");
    for (std::size_t k = 0; k < inputs_.size(); ++k) {
      const SourceOperand& operand = operands_[k];
      if (operand.kind == SourceOperand::Kind::kWhole) {
        add("    const WideFloats w{} = load_wide(x{}, g);\n", k, k);
      } else if (operand.along) {
        add("    const WideFloats w{} = load_wide(x{}, ({}) / kWide);\n", k, k, operand.at);
      } else if (!is_scalar(k)) {
        add("    const float v{} = x{}[{}];\n", k, k, operand.at);
      }
    }
    add("    WideFloats {};\n#pragma unroll\n    for (int e = 0; e < kWide; ++e)\n"
        "      element(operands, i + e",
        list_of_results(""));
    for (std::size_t k = 0; k < inputs_.size(); ++k) {
      if (operands_[k].along) {
        add(", w{}.values[e]", k);
      } else {
        add(", v{}", k);
      }
    }
    add(", {});\n", list_of_results(".values[e]"));
    for (std::size_t r = 0; r < outputs_.size(); ++r)
      add("    if (y{}) store_wide(y{}, g, r{});\n", r, r, r);
    add("  }}\n");
  }

  std::string list_of_results(std::string_view behind) const {
    std::string out;
    for (std::size_t r = 0; r < outputs_.size(); ++r)
      out += fmt::format("{}r{}{}", r ? ", " : "", r, behind);
    return out;
  }

  const FusedProgram& program_;
  const std::vector<TensorType>& inputs_;
  const std::vector<TensorType>& outputs_;
  std::vector<SourceOperand> operands_;
  std::vector<std::size_t> dropouts_;
  bool impossible_ = false;
  std::string text_;
};

}  // namespace

FusedSource fused_source(const FusedProgram& program, const std::vector<TensorType>& inputs,
                         const std::vector<TensorType>& outputs) {
  return Writer(program, inputs, outputs).run();
}

}  // namespace pipetrain
