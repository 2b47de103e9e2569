#include "train/given_shapes.h"

#include <algorithm>
#include <set>

#include "base/setting.h"

namespace pipetrain {
namespace {

/// Whether an axis of an input is that of the samples, whose size no option for dimensions sets.
bool is_sample_axis(const OnnxValue& input, std::size_t axis) {
  return axis == 0 ||
         (!input.dims[axis].symbol.empty() && input.dims[axis].symbol == input.dims[0].symbol);
}

void check_dim(const OnnxModel& model, const std::string& name, std::int64_t size) {
  std::set<std::string> free;
  bool counts_samples = false;
  for (const OnnxValue& input : model.inputs) {
    for (std::size_t axis = 0; axis < input.dims.size(); ++axis) {
      const std::string& symbol = input.dims[axis].symbol;
      if (symbol.empty()) continue;
      if (!is_sample_axis(input, axis)) free.insert(printable(symbol));
      counts_samples |= is_sample_axis(input, axis) && symbol == name;
    }
  }
  if (free.contains(printable(name))) return;
  PT_CHECK(!counts_samples, kUsage,
           "{} {}={}: that is the axis of the samples, which {} sets; leave it out", setting("dim"),
           printable(name), size, setting("batch-size"));
  PT_FAIL(kUsage, "{} {}={}: no input of {} has a free dimension of that name; it has {}",
          setting("dim"), printable(name), size, printable(model.path.filename().string()),
          free.empty() ? "none" : fmt::format("{}", fmt::join(free, ", ")));
}

void check_shape(const ModelConfig& config, const OnnxModel& model, const std::string& name,
                 const Shape& shape) {
  const auto input = std::ranges::find(model.inputs, name, &OnnxValue::name);
  PT_CHECK(input != model.inputs.end(), kUsage, "{}: the model has no input \"{}\"",
           setting("shape"), printable(name));
  PT_CHECK(shape.rank() >= 1, kUsage, "{} {}: give at least the sample axis", setting("shape"),
           printable(name));
  if (!input->has_shape) return;
  PT_CHECK(shape.rank() == input->dims.size(), kUsage,
           "{} {} has {} axes, but the input has {} in {}", setting("shape"), printable(name),
           shape.rank(), input->dims.size(), printable(model.path.filename().string()));
  for (std::size_t axis = 1; axis < shape.rank(); ++axis) {
    if (is_sample_axis(*input, axis)) continue;
    const OnnxDim& dim = input->dims[axis];
    PT_CHECK(dim.value < 0 || dim.value == shape[axis], kUsage,
             "{} {}: axis {} is {}, but {} in {}, which fixes it; leave out {}", setting("shape"),
             printable(name), axis, shape[axis], dim.value,
             printable(model.path.filename().string()), setting("shape"));
    const auto given = config.dims.find(dim.symbol);
    PT_CHECK(given == config.dims.end() || given->second == shape[axis], kUsage,
             "{} {}: axis {} is {}, but {} {}={}; leave out one of them", setting("shape"),
             printable(name), axis, shape[axis], setting("dim"), printable(dim.symbol),
             given->second);
  }
}

/// The options with samples of so many tokens, where the file leaves that open.
LowerOptions with_tokens(const OnnxModel& model, LowerOptions options, std::int64_t tokens) {
  for (const OnnxValue& input : model.inputs) {
    if (is_float(input.dtype) || input.dims.size() != 2 || input.dims[1].value >= 0) continue;
    options.sample_shapes[input.name] = Shape{tokens};
    if (!input.dims[1].symbol.empty()) options.dims[input.dims[1].symbol] = tokens;
  }
  return options;
}

/// Tokens of a sample that the options choose; 0: the file does, or there are none.
std::int64_t chosen_tokens(const OnnxModel& model, const LowerOptions& options) {
  for (const OnnxValue& input : model.inputs) {
    if (is_float(input.dtype) || input.dims.size() != 2 || input.dims[1].value >= 0) continue;
    const auto dim = options.dims.find(input.dims[1].symbol);
    if (dim != options.dims.end()) return dim->second;
    const auto shape = options.sample_shapes.find(input.name);
    if (shape != options.sample_shapes.end() && shape->second.rank() == 1) return shape->second[0];
  }
  return 0;
}

}  // namespace

void check_given_shapes(const ModelConfig& config, const OnnxModel& model) {
  for (const auto& [name, size] : config.dims) check_dim(model, name, size);
  for (const auto& [name, shape] : config.shapes) check_shape(config, model, name, shape);
}

void refuse_too_many_tokens(const OnnxModel& model, const LowerOptions& options, const Error& error,
                            const std::function<bool(const LowerOptions&)>& builds) {
  constexpr std::int64_t kFew = 8;  // any model takes so many
  const std::int64_t tokens = chosen_tokens(model, options);
  if (tokens <= kFew || error.kind() != ErrorKind::kModel) return;
  if (!builds(with_tokens(model, options, kFew))) return;
  PT_FAIL(
      kModel,
      "{} tokens are too many for the model: {}; shorten the samples (those of texts by training "
      "with {} N)",
      tokens, error.message(), setting("text-length"));
}

}  // namespace pipetrain
