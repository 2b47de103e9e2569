#include "ops/registry/narrow_chunks.h"

#include <omp.h>

#include <algorithm>

#include "graph/op.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kSmallChunk = 8192;     // elements of an operand: a chunk fits the L2
constexpr std::int64_t kLargeChunk = 1 << 20;  // elements of all operands: it fits the L3

bool present(const TensorType& type) { return type.dtype != DType::kUndefined; }

/// Splits the first axis, or the first `leading` axes; a unit is one index of them.
Share by_rows(const TensorType& type, std::size_t leading) {
  Share out;
  out.whole = false;
  std::vector<std::int64_t> dims = {1};
  dims.insert(dims.end(), type.shape.begin() + static_cast<std::ptrdiff_t>(leading),
              type.shape.end());
  out.unit_shape = Shape(std::move(dims));
  out.step = out.unit_shape.count();
  return out;
}

/// An operand that is read whole by all chunks.
Share all_of(const TensorType& type, std::size_t left_out = 0) {
  Share out;
  out.unit_shape = Shape(std::vector<std::int64_t>(
      type.shape.begin() + static_cast<std::ptrdiff_t>(left_out), type.shape.end()));
  return out;
}

/// Blocks of channels of (N, C, ...) or (C).
Share by_channels(const TensorType& type, std::int64_t block) {
  Share out;
  out.whole = false;
  out.unit_shape = type.shape;
  if (type.shape.rank() == 1) {
    out.unit_shape[0] = block;
    out.step = block;
    return out;
  }
  out.axis = 1;
  out.unit_shape[1] = block;
  out.outer = type.shape[0];
  out.stride = type.shape.count(1, type.shape.rank());
  out.step = block * type.shape.count(2, type.shape.rank());
  return out;
}

/// Whether the first `leading` axes of an operand are those of the result: 1; absent or 1: 0;
/// neither: -1.
int follows(const Shape& operand, const Shape& result, std::size_t leading) {
  const std::size_t missing = result.rank() - std::min(operand.rank(), result.rank());
  bool same = true, broadcast = true;
  for (std::size_t axis = 0; axis < leading; ++axis) {
    const std::int64_t dim = axis < missing ? 1 : operand[axis - missing];
    same = same && axis >= missing && dim == result[axis];
    broadcast = broadcast && dim == 1;
  }
  return same ? 1 : broadcast ? 0 : -1;
}

/// Element-wise operators: split flat if all operands have one layout, else along the most leading
/// axes that every operand has or is broadcast along.
Chunks elementwise_chunks(const KernelRequest& request) {
  Chunks out;
  const TensorType& result = request.outputs[0];
  for (const TensorType& type : request.outputs) {
    if (present(type) && (type.shape != result.shape || type.layout != result.layout)) return out;
  }
  const auto alike = [&](const TensorType& type) {
    return !present(type) || type.count() == 1 ||
           (type.shape == result.shape && type.layout == result.layout);
  };
  std::size_t leading = result.shape.rank();
  if (!std::all_of(request.inputs.begin(), request.inputs.end(), alike)) {
    // The first axis is the outermost in every layout.
    const bool plain =
        std::all_of(request.inputs.begin(), request.inputs.end(),
                    [](const TensorType& type) { return type.layout == Layout::kRowMajor; });
    if (!plain || result.layout != Layout::kRowMajor) leading = std::min<std::size_t>(leading, 1);
    const auto fits = [&](const TensorType& type) {
      return !present(type) || follows(type.shape, result.shape, leading) >= 0;
    };
    while (leading > 0 && !std::all_of(request.inputs.begin(), request.inputs.end(), fits))
      --leading;
  }
  if (leading == 0 || result.count() == 0) return out;
  out.units = result.shape.count(0, leading);
  out.units_per_chunk = std::max<std::int64_t>(
      1, kSmallChunk / std::max<std::int64_t>(1, result.count() / out.units));
  out.side_by_side = true;
  for (const TensorType& type : request.inputs) {
    const bool shared =
        present(type) && type.count() > 1 && follows(type.shape, result.shape, leading) == 1;
    const std::size_t missing =
        result.shape.rank() - std::min(type.shape.rank(), result.shape.rank());
    const std::size_t broadcast =
        type.count() == 1 ? type.shape.rank() : leading - std::min(leading, missing);
    out.inputs.push_back(shared ? by_rows(type, leading) : all_of(type, broadcast));
  }
  for (const TensorType& type : request.outputs) out.outputs.push_back(by_rows(type, leading));
  return out;
}

/// Operators that process each sample separately.
Chunks samples(const KernelRequest& request, const ChunkRule& rule) {
  Chunks out;
  const Shape& samples = (rule.summed ? request.inputs : request.outputs)[0].shape;
  if (samples.rank() < 2 || samples[0] < 2) return out;
  // Sums that are stored narrow are rounded once: nothing is added to what is rounded.
  const bool rounds =
      std::any_of(request.outputs.begin(), request.outputs.end(), [](const TensorType& type) {
        return type.dtype == DType::kBFloat16 || type.dtype == DType::kFloat16;
      });
  if (rule.summed && rounds) return out;
  if (rule.axis) {
    const std::int64_t axis = request.node.attributes.integer("axis", -1);
    if (axis == 0 || axis == -static_cast<std::int64_t>(samples.rank())) return out;
  }
  const std::int64_t count = samples[0];
  std::int64_t elements = 0;
  const auto share = [&](const TensorType& type, bool is_whole) {
    if (is_whole || !present(type) || type.shape.rank() == 0 || type.shape[0] != count)
      return all_of(type);
    elements += type.count() / count;
    return by_rows(type, 1);
  };
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    // A mask with fewer than four axes has no sample axis.
    const bool is_mask = static_cast<int>(i) == rule.mask && request.inputs[i].shape.rank() < 4;
    out.inputs.push_back(share(request.inputs[i], is_mask || rule.shared.contains(i)));
  }
  for (const TensorType& type : request.outputs) {
    out.outputs.push_back(share(type, rule.summed));
    out.outputs.back().summed = rule.summed;
  }
  out.units = count;
  // Several threads have more cache, and every chunk costs a few thread wake-ups.
  const std::int64_t most = omp_get_max_threads() > 1 ? 4 * kLargeChunk : kLargeChunk;
  out.units_per_chunk =
      std::clamp<std::int64_t>(most / std::max<std::int64_t>(1, elements), 1, count);
  return out;
}

Chunks channels(const KernelRequest& request) {
  Chunks out;
  const TensorType& map = request.outputs[0];
  const std::int64_t block = map.layout == Layout::kBlocked16  ? 16
                             : map.layout == Layout::kBlocked8 ? 8
                                                               : 1;
  // Splitting by single channels pays off only with many positions.
  const std::int64_t positions = map.shape.count(2, map.shape.rank());
  if (block == 1 && positions < 64) return out;
  for (const TensorType& type : request.inputs)
    out.inputs.push_back(present(type) ? by_channels(type, block) : all_of(type));
  for (const TensorType& type : request.outputs)
    out.outputs.push_back(present(type) ? by_channels(type, block) : all_of(type));
  out.units = map.shape[1] / block;
  out.side_by_side = true;
  return out;
}

/// By the operator's ChunkRule; a single unit if it has none, or not for these types.
Chunks several_chunks(const KernelRequest& request) {
  const ChunkRule& rule = request.node.op->traits.chunks;
  switch (rule.kind) {
    case ChunkRule::kElements:
      return elementwise_chunks(request);
    case ChunkRule::kChannels:
      return channels(request);
    case ChunkRule::kSamples:
      return samples(request, rule);
    case ChunkRule::kUnstated:
    case ChunkRule::kWhole:
    case ChunkRule::kCopies:
      break;
  }
  return {};
}

}  // namespace

Chunks chunks_of(const KernelRequest& request) {
  if (!request.outputs.empty() && present(request.outputs[0])) {
    const Chunks out = several_chunks(request);
    if (out.units > 1) return out;
  }
  Chunks one;
  for (const TensorType& type : request.inputs) one.inputs.push_back(all_of(type));
  for (const TensorType& type : request.outputs) one.outputs.push_back(all_of(type));
  return one;
}

}  // namespace pipetrain
