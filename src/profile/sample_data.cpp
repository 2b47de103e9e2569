#include "profile/sample_data.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/random.h"
#include "graph/op.h"

namespace pipetrain {
namespace {

constexpr std::uint64_t kSeed = 20;
// Long enough that no cache line or vector sees a pattern, and prime, so that rows do not repeat.
constexpr std::int64_t kPeriod = 65521;

// Fills a tensor with `draw()` for one period and repeats that.
template <class T, class Draw>
void fill(const HostTensor& tensor, const Draw& draw) {
  const std::span<T> out = tensor.span<T>();
  const auto period = std::min<std::size_t>(out.size(), kPeriod);
  for (std::size_t i = 0; i < period; ++i) out[i] = static_cast<T>(draw());
  for (std::size_t i = period; i < out.size(); i += period) {
    std::memcpy(&out[i], &out[0], std::min(period, out.size() - i) * sizeof(T));
  }
}

HostTensor floats(const TensorType& type) {
  HostTensor out(type);
  RandomStream random(kSeed, 0);
  const auto draw = [&] { return 2 * random.uniform() - 1; };
  switch (type.dtype) {
    case DType::kFloat32:
      fill<float>(out, draw);
      break;
    case DType::kFloat64:
      fill<double>(out, draw);
      break;
    case DType::kFloat16:
      fill<std::uint16_t>(out, [&] { return float_to_half(draw()); });
      break;
    case DType::kBFloat16:
      fill<std::uint16_t>(out, [&] { return float_to_bfloat16(draw()); });
      break;
    default:
      PT_FAIL(kInternal, "no sample data of type {}", name_of(type.dtype));
  }
  return out;
}

HostTensor integers_below(const TensorType& type, std::int64_t bound) {
  HostTensor out(type);
  RandomStream random(kSeed, 1);
  // Types of one byte cannot hold more than 127.
  const std::int64_t most = size_of(type.dtype) == 1 ? 127 : INT32_MAX;
  const auto below = static_cast<std::uint32_t>(std::clamp<std::int64_t>(bound, 1, most));
  const auto draw = [&] { return random.below(below); };
  switch (size_of(type.dtype)) {
    case 1:
      fill<std::uint8_t>(out, draw);
      break;
    case 2:
      fill<std::uint16_t>(out, draw);
      break;
    case 4:
      fill<std::uint32_t>(out, draw);
      break;
    default:
      fill<std::uint64_t>(out, draw);
      break;
  }
  return out;
}

std::int64_t bound_of(const TrainingGraph& training, ValueId id) {
  for (const GraphInput& input : training.inputs) {
    if (input.value == id && input.upper_bound > 0) return input.upper_bound;
  }
  if (id == training.loss.label && training.loss.classes > 0) return training.loss.classes;
  return training.graph[id].type.dtype == DType::kBool ? 2 : 1;
}

/// The graph's input that integers come from, through nodes that hand on what they are given.
ValueId origin_of(const TrainingGraph& training, ValueId id) {
  const Graph& graph = training.graph;
  while (graph[id].producer) {
    const Node& node = graph[graph[id].producer];
    const bool hands_on = (node.op->flags & kView) || node.op->name == "Cast" ||
                          node.op->name == "Transpose" || node.op->name == "Slice";
    if (!hands_on || node.inputs.empty() || !node.inputs[0] ||
        is_float(graph[node.inputs[0]].type.dtype))
      return {};
    id = node.inputs[0];
  }
  return id;
}

}  // namespace

HostTensor sample_of(const TrainingGraph& training, ValueId id) {
  const Value& value = training.graph[id];
  const bool numbers = is_float(value.type.dtype);
  constexpr std::size_t kSmall = std::size_t{1} << 20;
  if (value.data && (!numbers || value.type.bytes() <= kSmall)) return value.data;
  TensorType type{value.type.dtype, Shape{std::min(value.type.count(), kPeriod)}};
  if (numbers) return floats(type);
  const ValueId origin = origin_of(training, id);
  if (origin && training.graph[origin].data) return HostTensor(value.type);
  return integers_below(type, origin ? bound_of(training, origin) : 1);
}

SampleData::SampleData(const TrainingGraph& training) : contents_(training.graph.values.size()) {
  std::vector<bool> is_read(contents_.size(), false);
  for (const Node& node : training.graph.nodes) {
    for (const ValueId id : node.inputs) {
      if (id) is_read[static_cast<std::size_t>(id.index)] = true;
    }
  }
  for (std::size_t v = 0; v < contents_.size(); ++v) {
    const ValueId id{static_cast<int>(v)};
    const Value& value = training.graph[id];
    if (value.producer || !is_read[v]) continue;
    if (value.data) {
      contents_[v] = value.data;
    } else if (is_float(value.type.dtype)) {
      contents_[v] = floats(value.type);
    } else {
      contents_[v] = integers_below(value.type, bound_of(training, id));
    }
  }
}

}  // namespace pipetrain
