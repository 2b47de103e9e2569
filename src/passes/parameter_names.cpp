#include "passes/parameter_names.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <regex>
#include <string_view>

#include "passes/exporter_traces.h"

namespace pipetrain {
namespace {

/// A buffer of a loss, though it is called a weight.
constexpr std::string_view kLossWeights = "pos_weight";

/// Exporters prepend the path of the module to what they name by an operator.
std::string without_path(const std::string& name) {
  return name.substr(name.find_last_of('/') + 1);
}

/// "conv.weight_v" → "weight_v".
std::string last_part(const std::string& name) { return name.substr(name.find_last_of("./") + 1); }

/// Whether the name is that of an operator's result in torch.export, with or without a number:
/// "mul", "linalg_vector_norm_2", "val_17", "lifted_tensor_0".
bool names_a_result(const std::string& name) {
  static const std::regex pattern(
      "_*(val|tmp|c|const|lifted_tensor|tensor_constant|add|sub|mul|div|neg|pow|exp|log|sqrt|rsqrt|"
      "abs|square|reciprocal|t|transpose|permute|view|reshape|flatten|slice|select|squeeze|"
      "unsqueeze|expand|expand_as|repeat|tile|cat|concat|stack|split|chunk|getitem|index|"
      "index_select|gather|embedding|clone|contiguous|to|to_copy|cast|type_as|alias|detach|"
      "detach_copy|arange|linspace|full|full_like|ones|ones_like|zeros|zeros_like|eye|tril|triu|"
      "scalar_tensor|where|masked_fill|clamp|clip|minimum|maximum|cos|sin|tan|tanh|sigmoid|"
      "softplus|"
      "relu|gelu|silu|softmax|log_softmax|matmul|mm|bmm|linear|addmm|einsum|outer|ger|mean|var|"
      "var_mean|std|sum|prod|cumsum|norm|linalg_vector_norm|flip|roll|meshgrid|floor|ceil|round|"
      "remainder|floor_divide|eq|ne|lt|le|gt|ge|logical_not|logical_and|logical_or|bitwise_not)"
      "(_[0-9]+)*");
  return std::regex_match(name, pattern);
}

bool all_equal(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [&](double v) { return v == values.front(); });
}

/// The first numbers of a tensor: enough to see what they are, whatever its size.
std::vector<double> leading_values(const HostTensor& value) {
  constexpr std::int64_t kSample = 1 << 16;
  const std::int64_t count = value.shape().count();
  if (count <= kSample) return value.to_doubles();
  HostTensor sample(TensorType{value.dtype(), Shape({kSample})});
  std::memcpy(sample.view().data, value.view().data, sample.type().bytes());
  return sample.to_doubles();
}

bool is_wide_float(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat64; }

}  // namespace

bool has_parameter_name(const std::string& name) {
  static const std::regex pattern(
      "(weight|bias|gamma|beta|scale|(^|[._])gain|lora_|embed|token|(^|[._])pos(_|\\b|ition))",
      std::regex::icase);
  const std::string last = without_path(name);
  return last.find("Constant") == std::string::npos && std::regex_search(last, pattern);
}

bool is_gain(const std::string& name) {
  return name.ends_with(".gain") ||
         (name.find('.') != std::string::npos && name.ends_with("_gain"));
}

bool has_buffer_name(const std::string& name, const Shape& shape) {
  static const std::regex pattern(
      "(.*_)?(masks?|ids|index|indices|coords?|coordinates|coords_table|coords_log|mean|std|var|"
      "tracked|pe|"
      "filt|blur|window|mel|dct|freqs?|frequencies|slopes|cos|sin|cached|anchors?|grid|"
      "buffer|pos_weight)",
      std::regex::icase);
  return name.ends_with("mask") || std::regex_match(last_part(name), pattern) ||
         (shape.rank() == 1 && (name.ends_with("_u") || name.ends_with("_v")));
}

bool is_buffer_of_module(const std::string& name) {
  return !has_parameter_name(last_part(name)) || last_part(name) == kLossWeights;
}

bool belongs_to_module(const std::string& name) {
  const std::string last = without_path(name);
  return last.find('.') != std::string::npos && last.find("::") == std::string::npos;
}

FoldedSources folded_sources(const std::string& list) {
  // std::regex recurses for each character; names that the reader accepts are not longer than this.
  constexpr std::size_t kLongest = 4096;
  constexpr std::array<std::string_view, 5> kRecurrent = {"weight_ih_l", "weight_hh_l",
                                                          "weight_hr_l", "bias_ih_l", "bias_hh_l"};
  FoldedSources sources;
  for (const std::string& name : strings_in(list)) {
    if (name.size() > kLongest) continue;
    const std::string last = last_part(name);
    // Of recurrent layers: rnn.weight_ih_l0, rnn.bias_hh_l1_reverse.
    const bool recurrent =
        std::any_of(kRecurrent.begin(), kRecurrent.end(),
                    [&](std::string_view head) { return last.starts_with(head); });
    sources.is_normalized = sources.is_normalized ||
                            name.find("vector_norm") != std::string::npos ||
                            name.find("weight_norm") != std::string::npos;
    const bool is_parameter = name.ends_with("weight") || name.ends_with("bias") || recurrent;
    if (is_parameter && last != kLossWeights) {
      sources.parameters.push_back(name);
    } else if (!has_buffer_name(name, {})) {
      if (belongs_to_module(name)) sources.parameters.push_back(name);
      sources.unknown = sources.unknown || !names_a_result(name);
    }
  }
  return sources;
}

bool is_uniform(const HostTensor& value) {
  return value && all_equal(leading_values(value)) && all_equal(value.to_doubles());
}

bool has_pattern(const HostTensor& value) {
  if (!value || is_uniform(value)) return false;
  std::vector<double> values = leading_values(value);
  // Eight random numbers are sorted once in twenty thousand times.
  if (values.size() >= 8 && (std::is_sorted(values.begin(), values.end()) ||
                             std::is_sorted(values.rbegin(), values.rend())))
    return true;
  std::erase(values, 0.0);
  for (double& v : values) v = std::abs(v);
  std::sort(values.begin(), values.end());
  const std::size_t count = values.size();
  values.erase(std::unique(values.begin(), values.end()), values.end());
  // Rounding to half precision leaves few magnitudes, too.
  const std::size_t few =
      is_wide_float(value.dtype()) ? count / 2 : std::min<std::size_t>(count / 2, 8);
  return values.size() <= few;
}

}  // namespace pipetrain
