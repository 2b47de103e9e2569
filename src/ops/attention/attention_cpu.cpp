// Float Attention. A thread takes one key head of one sample: keys and values are packed once, then
// scores, softmax and weighted sum are computed for one block of queries at a time while it is in
// the cache. No T × T matrix is stored, keys that are masked for a whole block are skipped, and the
// backward pass recomputes the attention weights. The order of every sum depends on shapes only.
#include <algorithm>

#include "ops/attention/attention_rows_cpu.h"
#include "ops/attention/attention_tiles_cpu.h"
#include "ops/kernel/element_types.h"
#include "ops/matmul/packed_product_cpu.h"

namespace pipetrain::attention {
namespace {

using packed::kColumns;
using packed::Left;
using Tensors = std::span<const Tensor>;

constexpr std::int64_t kMostRows = 48;  // queries of a block
constexpr std::int64_t kFewestRows = 12;
constexpr std::int64_t kBlockFloats = 1 << 16;  // scores of a block: half of an L2 cache

std::int64_t padded(std::int64_t count) { return packed::panels(count) * kColumns; }

/// Block and buffer sizes; they depend on the geometry only.
struct Plan {
  explicit Plan(const Geometry& geometry)
      : g(geometry),
        row_stride(packed::row_stride(g.keys)),
        rows(std::clamp(kBlockFloats / std::max<std::int64_t>(1, row_stride) / 6 * 6, kFewestRows,
                        kMostRows)),
        group(g.heads / g.key_heads) {}

  Geometry g;
  std::int64_t row_stride;  // of a block of scores
  std::int64_t rows;        // queries of a block
  std::int64_t group;       // query heads of a key head
};

/// A block of queries and the panels of keys that are visible to any of them.
struct Block {
  std::int64_t b, h;
  std::int64_t first, rows;              // queries
  std::int64_t first_panel, last_panel;  // keys, in panels of 16
  const std::int64_t* lengths;

  std::int64_t first_key() const { return first_panel * kColumns; }
  std::int64_t keys(const Geometry& g) const {
    return std::min(g.keys, last_panel * kColumns) - first_key();
  }
  ScoreRow row(std::int64_t i) const {
    return {b, h, first + i, first_key(), (last_panel - first_panel) * kColumns, lengths};
  }
};

Block block_of(const Plan& plan, std::int64_t b, std::int64_t h, std::int64_t first,
               const std::int64_t* lengths) {
  Block out{b, h, first, std::min(plan.rows, plan.g.queries - first), 0, 0, lengths};
  std::int64_t begin = plan.g.keys, end = 0;
  for (std::int64_t i = first; i < first + out.rows; ++i) {
    const Geometry::Range range = plan.g.visible(b, i, lengths);
    if (range.begin == range.end) continue;
    begin = std::min(begin, range.begin);
    end = std::max(end, range.end);
  }
  if (begin >= end) return out;
  out.first_panel = begin / kColumns;
  out.last_panel = packed::panels(end);
  return out;
}

/// Panels (width, 16) of the keys as columns, and the same of the values.
void pack_columns(const float* rows, std::int64_t stride, std::int64_t keys, std::int64_t width,
                  float* panels) {
  for (std::int64_t key = 0; key < keys; key += kColumns) {
    packed::pack_transposed(rows, stride, keys, width, key, panels + key * width);
  }
}

/// Panels (keys, 16) of the columns of a matrix (keys × width).
void pack_rows(const float* rows, std::int64_t stride, std::int64_t keys, std::int64_t width,
               float* panels) {
  for (std::int64_t column = 0; column < width; column += kColumns) {
    packed::pack(rows, stride, width, keys, column, panels + column * keys);
  }
}

/// scores (rows × padded keys) = a block of vectors times packed columns. The vectors are copied to
/// `dense` first: those of a head are often 4 KiB apart and would share sets of the first-level
/// cache.
void multiply_columns(const Plan& plan, const Block& block, const float* vectors,
                      std::int64_t stride, std::int64_t width, float* dense, const float* columns,
                      float* scores) {
  const std::int64_t dense_stride = packed::row_stride(width);
  for (std::int64_t i = 0; i < block.rows; ++i) {
    std::copy_n(vectors + i * stride, width, dense + i * dense_stride);
  }
  for (std::int64_t panel = block.first_panel; panel < block.last_panel; ++panel) {
    packed::multiply(block.rows, width, dense, dense_stride, columns + panel * kColumns * width,
                     scores + (panel - block.first_panel) * kColumns, plan.row_stride);
  }
}

/// out (rows × width, vectors `stride` apart) = scores times packed rows, each row scaled by its
/// factor.
void multiply_rows(const Plan& plan, const Block& block, const float* scores, const float* rows,
                   std::int64_t width, const float* factors, float* tile, float* out,
                   std::int64_t stride) {
  const std::int64_t keys = block.keys(plan.g);
  for (std::int64_t column = 0; column < width; column += kColumns) {
    if (keys > 0) {
      packed::multiply(block.rows, keys, scores, plan.row_stride,
                       rows + column * plan.g.keys + block.first_key() * kColumns, tile);
    } else {
      std::fill_n(tile, block.rows * kColumns, 0.0f);
    }
    const std::int64_t count = std::min(kColumns, width - column);
    for (std::int64_t i = 0; i < block.rows; ++i) {
      const float factor = factors ? factors[i] : 1.0f;
      float* to = out + i * stride + column;
      for (std::int64_t e = 0; e < count; ++e) to[e] = tile[i * kColumns + e] * factor;
    }
  }
}

/// sums (keys × padded width) += scores' times the block's packed vectors.
void add_transposed(const Plan& plan, const Block& block, const float* scores, const float* vectors,
                    std::int64_t width, float* sums) {
  const std::int64_t keys = block.keys(plan.g);
  const std::int64_t stride = padded(width);
  for (std::int64_t column = 0; column < width; column += kColumns) {
    packed::multiply<Left::kTransposed>(keys, block.rows, scores, plan.row_stride,
                                        vectors + column * block.rows,
                                        sums + block.first_key() * stride + column, stride,
                                        /*add=*/true);
  }
}

// --- q, k, v, mask, lengths -> y, lse ---

std::int64_t forward_floats(const Plan& plan) {
  const Geometry& g = plan.g;
  return padded(g.keys) * g.width + g.keys * padded(g.value_width) + plan.rows * plan.row_stride +
         plan.rows * (packed::row_stride(g.width) + kColumns) + padded(plan.rows) + 6 * kColumns;
}

void forward(const Plan& plan, const Lanes& lanes, Tensors in, Tensors out, float* memory) {
  const Geometry& g = plan.g;
  const float* q = in[0].as<float>();
  const float* k = in[1].as<float>();
  const float* v = in[2].as<float>();
  const Tensor mask = at_or_empty(in, 3);
  const std::int64_t* lengths = data_or_null<std::int64_t>(in, 4);
  float* y = out[0].as<float>();
  float* lse = data_or_null<float>(out, 1);
  for_each_key_head(g, lanes, memory, [&](float* lane, std::int64_t b, std::int64_t kv) {
    WorkspaceSlices slices(lane);
    float* columns = slices.take(padded(g.keys) * g.width);
    float* values = slices.take(g.keys * padded(g.value_width));
    float* scores = slices.take(plan.rows * plan.row_stride);
    float* dense = slices.take(plan.rows * packed::row_stride(g.width));
    float* tile = slices.take(plan.rows * kColumns);
    float* factors = slices.take(plan.rows);
    pack_columns(k + g.k.at(b, kv, 0), g.k.step, g.keys, g.width, columns);
    pack_rows(v + g.v.at(b, kv, 0), g.v.step, g.keys, g.value_width, values);
    for (std::int64_t h = kv * plan.group; h < (kv + 1) * plan.group; ++h) {
      for (std::int64_t first = 0; first < g.queries; first += plan.rows) {
        const Block block = block_of(plan, b, h, first, lengths);
        multiply_columns(plan, block, q + g.q.at(b, h, first), g.q.step, g.width, dense, columns,
                         scores);
        const std::int64_t width = (block.last_panel - block.first_panel) * kColumns;
        for (std::int64_t i = 0; i < block.rows; ++i) {
          float* row = scores + i * plan.row_stride;
          const float maximum = finish_scores(g, block.row(i), mask, row, nullptr);
          const float sum = exponentiate(width, maximum, row);
          factors[i] = factor_of(sum);
          if (lse) {
            lse[(b * g.heads + h) * g.queries + first + i] = log_sum(maximum, sum);
          }
        }
        if (!y) continue;
        multiply_rows(plan, block, scores, values, g.value_width, factors, tile,
                      y + g.y.at(b, h, first), g.y.step);
      }
    }
  });
}

// --- dy, q, k, v, mask, lengths, y, lse -> dq, dk, dv, dmask ---

std::int64_t gradient_floats(const Plan& plan) {
  const Geometry& g = plan.g;
  return padded(g.keys) * (g.width + g.value_width) + 2 * g.keys * padded(g.width) +
         g.keys * padded(g.value_width) + 3 * plan.rows * plan.row_stride +
         plan.rows * (packed::row_stride(g.width) + packed::row_stride(g.value_width) + kColumns) +
         9 * kColumns;
}

void copy_sums(const float* sums, std::int64_t keys, std::int64_t width, float* to,
               std::int64_t stride) {
  for (std::int64_t key = 0; key < keys; ++key) {
    std::copy_n(sums + key * padded(width), width, to + key * stride);
  }
}

void gradient(const Plan& plan, const Lanes& lanes, Tensors in, Tensors out, float* memory) {
  const Geometry& g = plan.g;
  const float* dy = in[0].as<float>();
  const float* q = in[1].as<float>();
  const float* k = in[2].as<float>();
  const float* v = in[3].as<float>();
  const std::int64_t* lengths = data_or_null<std::int64_t>(in, 5);
  const float* y = in[6].as<float>();
  const float* lse = in[7].as<float>();
  float* dq = data_or_null<float>(out, 0);
  float* dk = data_or_null<float>(out, 1);
  float* dv = data_or_null<float>(out, 2);
  float* dmask = data_or_null<float>(out, 3);
  if (dmask) std::fill_n(dmask, out[3].count(), 0.0f);
  const auto scale = static_cast<float>(g.scale);
  for_each_key_head(g, lanes, memory, [&](float* lane, std::int64_t b, std::int64_t kv) {
    WorkspaceSlices slices(lane);
    float* key_columns = slices.take(padded(g.keys) * g.width);
    float* key_rows = slices.take(g.keys * padded(g.width));
    float* value_columns = slices.take(padded(g.keys) * g.value_width);
    float* key_sums = slices.take(g.keys * padded(g.width));
    float* value_sums = slices.take(g.keys * padded(g.value_width));
    float* shares = slices.take(plan.rows * plan.row_stride);
    float* dscores = slices.take(plan.rows * plan.row_stride);
    float* ratios = slices.take(plan.rows * plan.row_stride);
    // Dense rows first, panels later.
    float* query_panels = slices.take(plan.rows * packed::row_stride(g.width));
    float* dy_panels = slices.take(plan.rows * packed::row_stride(g.value_width));
    float* tile = slices.take(plan.rows * kColumns);
    if (g.softcap <= 0) ratios = nullptr;
    pack_columns(k + g.k.at(b, kv, 0), g.k.step, g.keys, g.width, key_columns);
    pack_rows(k + g.k.at(b, kv, 0), g.k.step, g.keys, g.width, key_rows);
    pack_columns(v + g.v.at(b, kv, 0), g.v.step, g.keys, g.value_width, value_columns);
    std::fill_n(key_sums, g.keys * padded(g.width), 0.0f);
    std::fill_n(value_sums, g.keys * padded(g.value_width), 0.0f);
    for (std::int64_t h = kv * plan.group; h < (kv + 1) * plan.group; ++h) {
      for (std::int64_t first = 0; first < g.queries; first += plan.rows) {
        const Block block = block_of(plan, b, h, first, lengths);
        const float* queries = q + g.q.at(b, h, first);
        const float* dys = dy + g.y.at(b, h, first);
        multiply_columns(plan, block, queries, g.q.step, g.width, query_panels, key_columns,
                         shares);
        multiply_columns(plan, block, dys, g.y.step, g.value_width, dy_panels, value_columns,
                         dscores);
        const std::int64_t width = (block.last_panel - block.first_panel) * kColumns;
        for (std::int64_t i = 0; i < block.rows; ++i) {
          const std::int64_t at = i * plan.row_stride;
          const std::int64_t row = (b * g.heads + h) * g.queries + first + i;
          float* ratio_row = ratios ? ratios + at : nullptr;
          const float maximum = finish_scores(g, block.row(i), in[4], shares + at, ratio_row);
          recompute_weights(width, lse[row], maximum, shares + at);
          const float* dy_row = dys + i * g.y.step;
          const float* y_row = y + g.y.at(b, h, first + i);
          float delta = 0;
#pragma omp simd reduction(+ : delta)
          for (std::int64_t e = 0; e < g.value_width; ++e) delta += dy_row[e] * y_row[e];
          score_gradient_row(width, delta, scale, shares + at, ratio_row, dscores + at,
                             dmask ? dmask + row * g.keys + block.first_key() : nullptr,
                             block.keys(g));
        }
        if (dq) {
          multiply_rows(plan, block, dscores, key_rows, g.width, nullptr, tile,
                        dq + g.q.at(b, h, first), g.q.step);
        }
        if (dk) {
          pack_rows(queries, g.q.step, block.rows, g.width, query_panels);
          add_transposed(plan, block, dscores, query_panels, g.width, key_sums);
        }
        if (dv) {
          pack_rows(dys, g.y.step, block.rows, g.value_width, dy_panels);
          add_transposed(plan, block, shares, dy_panels, g.value_width, value_sums);
        }
      }
    }
    if (dk) copy_sums(key_sums, g.keys, g.width, dk + g.k.at(b, kv, 0), g.k.step);
    if (dv) copy_sums(value_sums, g.keys, g.value_width, dv + g.v.at(b, kv, 0), g.v.step);
  });
}

bool is_float_request(const KernelRequest& request, std::size_t first) {
  return is_row_major(request) && request.inputs[first].dtype == DType::kFloat32;
}

std::unique_ptr<Kernel> make_forward(const KernelRequest& request) {
  if (multiplies_bfloat16(request)) return make_on_tiles(request, tiles::fastest());
  if (!is_float_request(request, 0)) return nullptr;
  const Plan plan(geometry_of(request, 0));
  const Lanes lanes = lanes_for(plan.g, forward_floats(plan));
  return make_kernel(
      [plan, lanes](Tensors in, Tensors out, const RunContext& context) {
        forward(plan, lanes, in, out, reinterpret_cast<float*>(context.workspace));
      },
      lanes.bytes());
}

std::unique_ptr<Kernel> make_gradient(const KernelRequest& request) {
  if (multiplies_bfloat16(request)) return make_on_tiles(request, tiles::fastest());
  if (!is_float_request(request, 1)) return nullptr;
  const Plan plan(geometry_of(request, 1));
  const Lanes lanes = lanes_for(plan.g, gradient_floats(plan));
  return make_kernel(
      [plan, lanes](Tensors in, Tensors out, const RunContext& context) {
        gradient(plan, lanes, in, out, reinterpret_cast<float*>(context.workspace));
      },
      lanes.bytes());
}

constexpr KernelEntry kKernels[] = {
    {"Attention", make_forward},
    {"AttentionGrad", make_gradient},
};

}  // namespace

bool multiplies_bfloat16(const KernelRequest& request) {
  return has_fast_bfloat16_products() && fits_tiles(request);
}

std::span<const KernelEntry> cpu_kernels() { return kKernels; }

}  // namespace pipetrain::attention
