// As in attention_cpu.cpp, a thread takes one key head of one sample, and one block of queries at a
// time. Scores are floats; attention weights and the gradients of scores are rounded to bfloat16
// where they enter a product.
#include "ops/attention/attention_tiles_cpu.h"

#include "graph/op.h"
#include "ops/attention/attention_rows_cpu.h"
#include "ops/kernel/element_types.h"
#include "ops/kernel/narrow_cpu.h"
#include "ops/matmul/tile_packing_cpu.h"

namespace pipetrain::attention {
namespace {

using tiles::kBlock;
using tiles::kSide;
using tiles::kTile;
using tiles::Lines;
using tiles::Order;
using Tensors = std::span<const Tensor>;
using Bits = std::uint16_t;  // of a bfloat16

constexpr std::int64_t kMostRows = 128;         // queries of a block
constexpr std::int64_t kBlockFloats = 1 << 15;  // scores of a block

std::int64_t round_up(std::int64_t count, std::int64_t unit) {
  return (count + unit - 1) / unit * unit;
}

/// Panels of tiles in memory.
struct Packed {
  Bits* data;
  std::int64_t tiles;  // along k

  tiles::Panels panels(std::int64_t first = 0, std::int64_t tile = 0) const {
    return {data + (first * tiles + tile) * kTile, tiles * kTile};
  }
};

std::int64_t floats_of(std::int64_t lines, std::int64_t depth) {
  return round_up(lines, kSide) / kSide * tiles::tiles_along(depth) * kTile / 2;
}

/// `lines` lines of `depth` elements.
template <Order kOrder, class Element>
Packed pack(const Lines<Element>& source, std::int64_t lines, std::int64_t depth, float* to) {
  const Packed out{reinterpret_cast<Bits*>(to), tiles::tiles_along(depth)};
  source.template pack<kOrder>(0, lines, 0, depth, out.data);
  return out;
}

/// Keys or values as the columns of scores, of which products read whole blocks: those behind the
/// last key are zeros.
std::int64_t floats_of_keys(std::int64_t keys, std::int64_t width) {
  return floats_of(round_up(keys, kBlock), width);
}
Packed pack_keys(const Lines<Bits>& source, std::int64_t keys, std::int64_t width, float* to) {
  const Packed out = pack<Order::kPairs>(source, keys, width, to);
  const std::int64_t panels = round_up(keys, kSide) / kSide;
  std::fill_n(out.data + panels * out.tiles * kTile,
              (round_up(keys, kBlock) / kSide - panels) * out.tiles * kTile, Bits{});
  return out;
}

struct Plan {
  explicit Plan(const Geometry& geometry)
      : g(geometry),
        row_stride(round_up(g.keys, kBlock)),
        rows(std::min(
            std::clamp(kBlockFloats / std::max<std::int64_t>(1, row_stride) / kBlock * kBlock,
                       kBlock, kMostRows),
            round_up(g.queries, kBlock))),
        group(g.heads / g.key_heads) {}

  Geometry g;
  std::int64_t row_stride;  // of a block of scores
  std::int64_t rows;        // queries of a block
  std::int64_t group;       // query heads of a key head
};

/// A block of queries, and the keys, in whole tiles, that any of them sees.
struct Queries {
  std::int64_t sample, head, first, count;
  std::int64_t first_key = 0, keys = 0;
  const std::int64_t* lengths;

  ScoreRow row(std::int64_t i) const { return {sample, head, first + i, first_key, keys, lengths}; }
};

Queries queries_of(const Plan& plan, std::int64_t sample, std::int64_t head, std::int64_t first,
                   const std::int64_t* lengths) {
  Queries out{sample, head, first, std::min(plan.rows, plan.g.queries - first), 0, 0, lengths};
  std::int64_t begin = plan.g.keys, end = 0;
  for (std::int64_t i = 0; i < out.count; ++i) {
    const Geometry::Range range = plan.g.visible(sample, first + i, lengths);
    if (range.begin == range.end) continue;
    begin = std::min(begin, range.begin);
    end = std::max(end, range.end);
  }
  if (begin >= end) return out;
  out.first_key = begin / kBlock * kBlock;
  out.keys = round_up(end, kBlock) - out.first_key;
  return out;
}

/// One head's products.
class Head {
 public:
  Head(const tiles::Instructions& instructions, const Plan& plan)
      : instructions_(instructions), plan_(plan) {}

  /// scores (queries × keys) = vectors times packed keys.
  void multiply_keys(const Queries& block, const Packed& vectors, const Packed& keys,
                     float* scores) const {
    tiles::multiply_panels(instructions_, block.count, block.keys, keys.tiles, vectors.panels(),
                           keys.panels(block.first_key / kSide), /*add=*/false, scores,
                           plan_.row_stride);
  }

  /// out (vectors `stride` apart) = scores times packed rows, each row times its factor.
  void multiply_rows(const Queries& block, const float* scores, const Packed& rows,
                     std::int64_t width, const float* factors, float* packed, float* sums,
                     Bits* out, std::int64_t stride) const {
    const std::int64_t sums_stride = round_up(width, kSide);
    if (block.keys == 0) std::fill_n(sums, block.count * sums_stride, 0.0F);
    const Packed left = pack<Order::kLines>(Lines<float>{scores, plan_.row_stride, 1}, block.count,
                                            block.keys, packed);
    if (block.keys > 0) {
      tiles::multiply_panels(instructions_, block.count, width, left.tiles, left.panels(),
                             rows.panels(0, block.first_key / tiles::kStep), /*add=*/false, sums,
                             sums_stride);
    }
    for (std::int64_t i = 0; i < block.count; ++i) {
      float* __restrict line = sums + i * sums_stride;
      if (factors) {
        const float factor = factors[i];
        for (std::int64_t e = 0; e < width; ++e) line[e] *= factor;
      }
      round_to_bfloat16(line, out + i * stride, width);
    }
  }

  /// sums (keys × padded width) += scores' times the block's vectors.
  void add_transposed(const Queries& block, const float* scores, const Packed& vectors,
                      std::int64_t width, float* packed, float* sums) const {
    const Packed left = pack<Order::kLines>(Lines<float>{scores, 1, plan_.row_stride}, block.keys,
                                            block.count, packed);
    const std::int64_t stride = round_up(width, kSide);
    tiles::multiply_panels(instructions_, block.keys, width, left.tiles, left.panels(),
                           vectors.panels(), /*add=*/true, sums + block.first_key * stride, stride);
  }

 private:
  const tiles::Instructions& instructions_;
  const Plan& plan_;
};

// --- q, k, v, mask, lengths -> y, lse ---

std::int64_t forward_floats(const Plan& plan) {
  const Geometry& g = plan.g;
  return floats_of_keys(g.keys, g.width) + floats_of(g.value_width, g.keys) +
         floats_of(plan.rows, g.width) + plan.rows * plan.row_stride +
         floats_of(plan.rows, plan.row_stride) + plan.rows * round_up(g.value_width, kSide) +
         plan.rows;
}

void forward(const tiles::Instructions& instructions, const Plan& plan, const Lanes& lanes,
             Tensors in, Tensors out, float* memory) {
  const Geometry& g = plan.g;
  const Bits *q = in[0].as<Bits>(), *k = in[1].as<Bits>(), *v = in[2].as<Bits>();
  const Tensor mask = at_or_empty(in, 3);
  const std::int64_t* lengths = data_or_null<std::int64_t>(in, 4);
  Bits* y = out[0].as<Bits>();
  float* lse = data_or_null<float>(out, 1);
  const Head work(instructions, plan);
  const auto head = [&](float* lane, std::int64_t b, std::int64_t kv) {
    WorkspaceSlices slices(lane);
    float* const key_memory = slices.take(floats_of_keys(g.keys, g.width));
    float* const value_memory = slices.take(floats_of(g.value_width, g.keys));
    float* const query_memory = slices.take(floats_of(plan.rows, g.width));
    float* const scores = slices.take(plan.rows * plan.row_stride);
    float* const shares = slices.take(floats_of(plan.rows, plan.row_stride));
    float* const sums = slices.take(plan.rows * round_up(g.value_width, kSide));
    float* const factors = slices.take(plan.rows);
    instructions.begin();
    const Packed keys =
        pack_keys(Lines<Bits>{k + g.k.at(b, kv, 0), g.k.step, 1}, g.keys, g.width, key_memory);
    const Packed values = pack<Order::kPairs>(Lines<Bits>{v + g.v.at(b, kv, 0), 1, g.v.step},
                                              g.value_width, g.keys, value_memory);
    for (std::int64_t h = kv * plan.group; h < (kv + 1) * plan.group; ++h) {
      for (std::int64_t first = 0; first < g.queries; first += plan.rows) {
        const Queries block = queries_of(plan, b, h, first, lengths);
        const Packed queries = pack<Order::kLines>(
            Lines<Bits>{q + g.q.at(b, h, first), g.q.step, 1}, block.count, g.width, query_memory);
        work.multiply_keys(block, queries, keys, scores);
        for (std::int64_t i = 0; i < block.count; ++i) {
          float* const row = scores + i * plan.row_stride;
          const float maximum = finish_scores(g, block.row(i), mask, row, nullptr);
          const float sum = exponentiate(block.keys, maximum, row);
          factors[i] = factor_of(sum);
          if (lse) {
            lse[(b * g.heads + h) * g.queries + first + i] = log_sum(maximum, sum);
          }
        }
        if (!y) continue;
        work.multiply_rows(block, scores, values, g.value_width, factors, shares, sums,
                           y + g.y.at(b, h, first), g.y.step);
      }
    }
    instructions.end();
  };
  for_each_key_head(g, lanes, memory, head);
}

// --- dy, q, k, v, mask, lengths, y, lse -> dq, dk, dv, dmask ---

std::int64_t gradient_floats(const Plan& plan) {
  const Geometry& g = plan.g;
  const std::int64_t widest = round_up(std::max(g.width, g.value_width), kSide);
  return floats_of_keys(g.keys, g.width) + floats_of_keys(g.keys, g.value_width) +
         floats_of(g.width, g.keys) +
         round_up(g.keys, kBlock) * (round_up(g.width, kSide) + round_up(g.value_width, kSide)) +
         3 * plan.rows * plan.row_stride + floats_of(plan.row_stride, plan.rows) +
         floats_of(plan.rows, widest) + floats_of(widest, plan.rows) + plan.rows * widest;
}

float dot(const Bits* a, const Bits* b, std::int64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i)
    sum += to_float(static_cast<BFloat16>(a[i])) * to_float(static_cast<BFloat16>(b[i]));
  return sum;
}

void round_sums(const float* sums, std::int64_t keys, std::int64_t width, Bits* to,
                std::int64_t stride) {
  for (std::int64_t key = 0; key < keys; ++key)
    round_to_bfloat16(sums + key * round_up(width, kSide), to + key * stride, width);
}

/// Of a block of queries, in rows of plan.row_stride floats.
struct ScoreGradients {
  float* shares;   // scores, then attention weights
  float* dscores;  // gradients of attention weights, then of scores
  float* ratios;
};

/// `slope`: dy of the block's first query.
void score_gradients(const Plan& plan, const Queries& block, Tensors in, const Bits* slope,
                     float* dmask, const ScoreGradients& rows) {
  const Geometry& g = plan.g;
  const Bits* y = in[6].as<Bits>() + g.y.at(block.sample, block.head, block.first);
  const float* lse = in[7].as<float>();
  for (std::int64_t i = 0; i < block.count; ++i) {
    const std::int64_t at = i * plan.row_stride;
    const std::int64_t row = (block.sample * g.heads + block.head) * g.queries + block.first + i;
    float* const ratios = g.softcap > 0 ? rows.ratios + at : nullptr;
    const float maximum = finish_scores(g, block.row(i), in[4], rows.shares + at, ratios);
    recompute_weights(block.keys, lse[row], maximum, rows.shares + at);
    const float delta = dot(slope + i * g.y.step, y + i * g.y.step, g.value_width);
    score_gradient_row(block.keys, delta, static_cast<float>(g.scale), rows.shares + at, ratios,
                       rows.dscores + at, dmask ? dmask + row * g.keys + block.first_key : nullptr,
                       std::min(g.keys - block.first_key, block.keys));
  }
}

void gradient(const tiles::Instructions& instructions, const Plan& plan, const Lanes& lanes,
              Tensors in, Tensors out, float* memory) {
  const Geometry& g = plan.g;
  const Bits *dy = in[0].as<Bits>(), *q = in[1].as<Bits>();
  const Bits *k = in[2].as<Bits>(), *v = in[3].as<Bits>();
  const std::int64_t* lengths = data_or_null<std::int64_t>(in, 5);
  Bits *dq = data_or_null<Bits>(out, 0), *dk = data_or_null<Bits>(out, 1);
  Bits* dv = data_or_null<Bits>(out, 2);
  float* dmask = data_or_null<float>(out, 3);
  if (dmask) std::fill_n(dmask, out[3].count(), 0.0F);
  const std::int64_t widest = round_up(std::max(g.width, g.value_width), kSide);
  const Head work(instructions, plan);
  const auto head = [&](float* lane, std::int64_t b, std::int64_t kv) {
    WorkspaceSlices slices(lane);
    float* const key_memory = slices.take(floats_of_keys(g.keys, g.width));
    float* const value_memory = slices.take(floats_of_keys(g.keys, g.value_width));
    float* const row_memory = slices.take(floats_of(g.width, g.keys));
    float* const key_sums = slices.take(round_up(g.keys, kBlock) * round_up(g.width, kSide));
    float* const value_sums =
        slices.take(round_up(g.keys, kBlock) * round_up(g.value_width, kSide));
    float* const shares = slices.take(plan.rows * plan.row_stride);
    float* const dscores = slices.take(plan.rows * plan.row_stride);
    float* const ratios = slices.take(plan.rows * plan.row_stride);
    float* const packed = slices.take(floats_of(plan.row_stride, plan.rows));
    float* const vectors = slices.take(floats_of(plan.rows, widest));
    float* const columns = slices.take(floats_of(widest, plan.rows));
    float* const sums = slices.take(plan.rows * widest);
    instructions.begin();
    const Bits *key = k + g.k.at(b, kv, 0), *value = v + g.v.at(b, kv, 0);
    const Packed keys = pack_keys(Lines<Bits>{key, g.k.step, 1}, g.keys, g.width, key_memory);
    const Packed key_rows =
        pack<Order::kPairs>(Lines<Bits>{key, 1, g.k.step}, g.width, g.keys, row_memory);
    const Packed values =
        pack_keys(Lines<Bits>{value, g.v.step, 1}, g.keys, g.value_width, value_memory);
    std::fill_n(key_sums, round_up(g.keys, kBlock) * round_up(g.width, kSide), 0.0F);
    std::fill_n(value_sums, round_up(g.keys, kBlock) * round_up(g.value_width, kSide), 0.0F);
    for (std::int64_t h = kv * plan.group; h < (kv + 1) * plan.group; ++h) {
      for (std::int64_t first = 0; first < g.queries; first += plan.rows) {
        const Queries block = queries_of(plan, b, h, first, lengths);
        const Bits *query = q + g.q.at(b, h, first), *slope = dy + g.y.at(b, h, first);
        const auto multiply = [&](const Bits* from, std::int64_t stride, std::int64_t width,
                                  const Packed& by, float* to) {
          const Packed left =
              pack<Order::kLines>(Lines<Bits>{from, stride, 1}, block.count, width, vectors);
          work.multiply_keys(block, left, by, to);
        };
        multiply(query, g.q.step, g.width, keys, shares);
        multiply(slope, g.y.step, g.value_width, values, dscores);
        score_gradients(plan, block, in, slope, dmask, {shares, dscores, ratios});
        if (dq) {
          work.multiply_rows(block, dscores, key_rows, g.width, nullptr, packed, sums,
                             dq + g.q.at(b, h, first), g.q.step);
        }
        const auto add = [&](const Bits* from, std::int64_t stride, std::int64_t width,
                             const float* scores, float* to) {
          const Packed right =
              pack<Order::kPairs>(Lines<Bits>{from, 1, stride}, width, block.count, columns);
          work.add_transposed(block, scores, right, width, packed, to);
        };
        if (dk) add(query, g.q.step, g.width, dscores, key_sums);
        if (dv) add(slope, g.y.step, g.value_width, shares, value_sums);
      }
    }
    instructions.end();
    if (dk) round_sums(key_sums, g.keys, g.width, dk + g.k.at(b, kv, 0), g.k.step);
    if (dv) round_sums(value_sums, g.keys, g.value_width, dv + g.v.at(b, kv, 0), g.v.step);
  };
  for_each_key_head(g, lanes, memory, head);
}

bool is_gradient(const KernelRequest& request) { return request.node.op->name == "AttentionGrad"; }

}  // namespace

bool fits_tiles(const KernelRequest& request) {
  const auto has = [](const std::vector<TensorType>& types, std::size_t index, DType dtype,
                      bool optional = false) {
    const DType there = index < types.size() ? types[index].dtype : DType::kUndefined;
    return there == dtype || (optional && there == DType::kUndefined);
  };
  const auto narrow = [&](std::size_t index) {
    return has(request.inputs, index, DType::kBFloat16);
  };
  const std::size_t mask = is_gradient(request) ? 4 : 3;
  const bool masked = has(request.inputs, mask, DType::kBool) ||
                      has(request.inputs, mask, DType::kFloat32, /*optional=*/true);
  if (!is_row_major(request) || !masked || !narrow(0) || !narrow(1) || !narrow(2)) return false;
  if (!is_gradient(request)) {
    return has(request.outputs, 0, DType::kBFloat16, true) &&
           has(request.outputs, 1, DType::kFloat32, true);
  }
  return narrow(3) && narrow(6) && has(request.inputs, 7, DType::kFloat32) &&
         has(request.outputs, 0, DType::kBFloat16, true) &&
         has(request.outputs, 1, DType::kBFloat16, true) &&
         has(request.outputs, 2, DType::kBFloat16, true) &&
         has(request.outputs, 3, DType::kFloat32, true);
}

std::unique_ptr<Kernel> make_on_tiles(const KernelRequest& request,
                                      const tiles::Instructions& instructions) {
  const bool backward = is_gradient(request);
  const Plan plan(geometry_of(request, backward ? 1 : 0));
  const Lanes lanes = lanes_for(plan.g, backward ? gradient_floats(plan) : forward_floats(plan));
  return make_kernel(
      [plan, lanes, backward, &instructions](Tensors in, Tensors out, const RunContext& context) {
        auto* const memory = reinterpret_cast<float*>(context.workspace);
        (backward ? gradient : forward)(instructions, plan, lanes, in, out, memory);
      },
      lanes.bytes());
}

}  // namespace pipetrain::attention
