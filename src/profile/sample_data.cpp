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

// Roots, logarithms and variances: not-a-number would take other paths than training does.
bool needs_positive(std::string_view op) {
  return op == "Sqrt" || op == "Log" || op == "Pow" || op == "Mod" || op.starts_with("BatchNorm");
}

HostTensor floats(const TensorType& type, bool positive) {
  HostTensor out(type);
  RandomStream random(kSeed, 0);
  const auto draw = [&] { return positive ? 0.25F + random.uniform() : 2 * random.uniform() - 1; };
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

}  // namespace

SampleData::SampleData(const TrainingGraph& training, Backend backend)
    : training_(training), backend_(backend) {}

HostTensor SampleData::input(const Node& node, std::size_t index) {
  const ValueId id = node.inputs.at(index);
  if (!id) return {};
  const Value& value = training_.graph[id];
  if (value.data) return value.data;
  if (is_float(value.type.dtype)) return floats(value.type, needs_positive(node.op->name));
  return integers(id, 0);
}

HostTensor SampleData::integers(ValueId id, int depth) {
  const Value& value = training_.graph[id];
  if (value.data) return value.data;
  if (const auto found = made_.find(id); found != made_.end()) return found->second;
  std::int64_t bound = value.type.dtype == DType::kBool ? 2 : 1;
  if (id == training_.loss.label && training_.loss.classes > 0) bound = training_.loss.classes;
  for (const GraphInput& input : training_.inputs) {
    if (input.value == id && input.upper_bound > 0) bound = input.upper_bound;
  }
  HostTensor out;
  if (value.producer) out = computed(id, depth);
  if (!out) out = integers_below(value.type, bound);
  made_[id] = out;
  return out;
}

// Runs the producer, so that positions of maxima, masks or shifted labels are what they are in
// training. Empty when that would go too deep; then zeros do, which every index may be.
HostTensor SampleData::computed(ValueId id, int depth) {
  constexpr int kMaximumDepth = 32;
  const Graph& graph = training_.graph;
  const Node& node = graph[graph[id].producer];
  if (depth > kMaximumDepth) return {};
  std::vector<HostTensor> inputs, outputs;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const bool integer = node.inputs[i] && !is_float(graph[node.inputs[i]].type.dtype);
    inputs.push_back(integer ? integers(node.inputs[i], depth + 1) : input(node, i));
  }
  if (node.op->flags & kView) return inputs.at(0).reshaped(graph[id].type.shape);
  std::vector<Tensor> in, out;
  for (const HostTensor& tensor : inputs) in.push_back(tensor ? tensor.view() : Tensor{});
  for (const ValueId output : node.outputs) {
    outputs.emplace_back(graph[output].type);
    out.push_back(outputs.back().view());
  }
  const auto kernel =
      make_kernel(backend_, {node, graph.input_types(node), graph.output_types(node)});
  const Buffer workspace(kernel->workspace_bytes());
  RunContext context;
  context.workspace = workspace.data();
  context.samples = training_.micro_batch;
  kernel->run(in, out, context);
  const auto position = std::find(node.outputs.begin(), node.outputs.end(), id);
  return outputs[static_cast<std::size_t>(position - node.outputs.begin())];
}

}  // namespace pipetrain
