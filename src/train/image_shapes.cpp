#include "train/image_shapes.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "data/rows/image_column.h"
#include "data/rows/readers.h"
#include "train/network.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kLongestAxis = 1 << 20;

bool has_no_size(const OnnxDim& dim) { return dim.value < 0; }

bool is_image_shape(const nlohmann::json& dims) {
  if (!dims.is_array() || dims.size() != 3) return false;
  for (const nlohmann::json& dim : dims) {
    const std::int64_t size = dim.is_number_integer() ? dim.get<std::int64_t>() : 0;
    if (size < 1 || size > kLongestAxis) return false;
  }
  return true;
}

}  // namespace

std::map<std::string, Shape> open_image_shapes(const Network& network) {
  std::map<std::string, Shape> out;
  const TrainingGraph& training = network.graph();
  const auto rank_of = [&](ValueId value) { return training.graph[value].type.shape.rank(); };
  // A model that computes its loss itself takes the labels of pixels as an input.
  const ValueId label = training.loss.label;
  const auto labels_pixels = [&](const GraphInput& input) {
    const std::size_t rank = rank_of(input.value);
    return rank == 3 || (rank == 4 && role_of_name(input.name) == ColumnRole::kLabel);
  };
  if (label ? rank_of(label) > 2 : std::ranges::any_of(training.inputs, labels_pixels)) return out;
  for (const GraphInput& input : training.inputs) {
    const std::vector<OnnxValue>& all = network.model().model.inputs;
    const auto in_file = std::ranges::find(all, input.name, &OnnxValue::name);
    if (in_file == all.end() || in_file->dims.size() != 4 ||
        std::none_of(in_file->dims.begin() + 1, in_file->dims.end(), has_no_size))
      continue;
    const std::vector<std::int64_t> dims = training.graph[input.value].type.shape.dims();
    const Shape sample(std::vector<std::int64_t>(dims.begin() + 1, dims.end()));
    if (image_shape_of(sample)) out[input.name] = sample;
  }
  return out;
}

std::string text_of_image_shapes(const std::map<std::string, Shape>& shapes) {
  if (shapes.empty()) return {};
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [input, shape] : shapes) json[input] = shape.dims();
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::map<std::string, Shape> parse_image_shapes(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  bool is_good = json.is_object();
  std::map<std::string, Shape> out;
  for (auto entry = json.begin(); is_good && entry != json.end(); ++entry) {
    is_good = is_image_shape(*entry);
    if (is_good) out[entry.key()] = Shape(entry->get<std::vector<std::int64_t>>());
  }
  PT_CHECK(is_good, kModel, "\"{}\" are no shapes of images", printable(text));
  return out;
}

}  // namespace pipetrain
