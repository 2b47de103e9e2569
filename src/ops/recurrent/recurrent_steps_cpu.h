// What the CPU's kernels of recurrent layers share: the steps over time, the plan of a workspace,
// and how numbers are stored.
//
// The recurrent weights are packed once per run. A step is one product, computed in tiles of 16
// hidden units; the gates of a tile are computed while its product is in the first-level cache, and
// copied to where the next step's product reads them (OperandRows). Threads share out the hidden
// units and wait for each other once a step.
//
// Include it from *_cpu.cpp files only: those are compiled for a vector unit.
#pragma once

#include <omp.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "ops/kernel/element_types.h"
#include "ops/kernel/narrow_cpu.h"
#include "ops/kernel/workspace_plan.h"
#include "ops/matmul/packed_pairs_cpu.h"
#include "ops/matmul/packed_product_cpu.h"
#include "ops/recurrent/recurrent.h"

namespace pipetrain::recurrent {

using packed::kColumns;

constexpr std::int64_t kRows = 48;  // samples whose tile is computed at a time
constexpr std::int64_t kParallelProducts = 1 << 14;

/// The samples and hidden units that a tile belongs to.
struct Tile {
  std::int64_t first_sample;
  std::int64_t samples;
  std::int64_t first_unit;
  std::int64_t units;

  /// Where unit 0 of row `sample` of the tile stands in a tensor of `width` columns per sample.
  std::int64_t at(std::int64_t sample, std::int64_t width) const {
    return (first_sample + sample) * width + first_unit;
  }
};

/// Calls visit(tile) for all samples of the block `block` of 16 hidden units.
template <class Visit>
void for_each_tile(const Geometry& g, std::int64_t block, Visit visit) {
  const std::int64_t first = block * kColumns;
  for (std::int64_t sample = 0; sample < g.samples; sample += kRows) {
    visit(Tile{sample, std::min(kRows, g.samples - sample), first,
               std::min(kColumns, g.hidden - first)});
  }
}

/// Brings a tile's numbers of a tensor with `parts` parts of `width` / parts columns into the cache
/// while the product of the tile is computed: hardware prefetchers do not detect rows so far apart.
template <class Number>
void prefetch(const Tile& tile, std::int64_t width, std::int64_t parts, const Number* tensor) {
  for (std::int64_t n = 0; n < tile.samples; ++n) {
    for (std::int64_t i = 0; i < parts; ++i) {
      __builtin_prefetch(tensor + tile.at(n, width) + i * (width / parts), 0, 2);
    }
  }
}

/// States and gradients of gates are stored and multiplied as float, or as bfloat16 with the
/// processor's instructions for it (`Stored`). Everything else is float.
using BFloat16 = std::uint16_t;
/// How many numbers a float of a panel holds.
template <class Stored>
constexpr std::int64_t kNumbersPerFloat = std::is_same_v<Stored, float> ? 1 : 2;

inline float widened(float value) { return value; }
inline float widened(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}
inline void store(float value, float& to) { to = value; }
/// As round_to_bfloat16().
inline void store(float value, BFloat16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40U;
  to = static_cast<BFloat16>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
}

/// c = a times a panel of pack_transposed() or pack().
inline void multiply(std::int64_t rows, std::int64_t depth, const float* a, std::int64_t a_stride,
                     const float* panel, float* c) {
  packed::multiply(rows, depth, a, a_stride, panel, c);
}
inline void multiply(std::int64_t rows, std::int64_t depth, const BFloat16* a,
                     std::int64_t a_stride, const float* panel, float* c) {
  packed::multiply_pairs(rows, depth, a, a_stride, panel, c);
}
inline void pack_transposed(const float* r, std::int64_t hidden, std::int64_t first, float* panel) {
  packed::pack_transposed(r, hidden, hidden, hidden, first, panel);
}
inline void pack_transposed(const BFloat16* r, std::int64_t hidden, std::int64_t first,
                            float* panel) {
  packed::pack_pairs({r, 1, hidden}, hidden, hidden, first, panel);
}
inline void pack(const float* r, std::int64_t hidden, std::int64_t depth, std::int64_t first,
                 float* panel) {
  packed::pack(r, hidden, hidden, depth, first, panel);
}
inline void pack(const BFloat16* r, std::int64_t hidden, std::int64_t depth, std::int64_t first,
                 float* panel) {
  packed::pack_pairs({r, hidden, 1}, hidden, depth, first, panel);
}

/// What the product of a step reads, written by the step before: one row of `width` numbers per
/// sample, packed::row_stride() apart, for two steps in turn.
template <class Stored>
class OperandRows {
 public:
  OperandRows(std::int64_t samples, std::int64_t width, WorkspacePlan& plan)
      : samples_(samples),
        width_(width),
        stride_(packed::row_stride<Stored>(width)),
        rows_(plan.reserve<Stored>(2 * samples * stride_)) {}

  std::int64_t stride() const { return stride_; }

  /// Those that step `order` writes; the initial state's order is -1.
  Stored* of(const RunContext& context, std::int64_t order) const {
    return rows_.in(context) + (order & 1) * samples_ * stride_;
  }

  /// Copies all rows, or those numbers of `parts` parts of a row that belong to a tile.
  void copy(const Stored* from, Stored* to) const {
    for (std::int64_t n = 0; n < samples_; ++n) {
      std::copy_n(from + n * width_, width_, to + n * stride_);
    }
  }
  void copy(const Tile& tile, std::int64_t parts, const Stored* from, Stored* to) const {
    const std::int64_t part = width_ / parts;
    for (std::int64_t n = 0; n < tile.samples; ++n) {
      for (std::int64_t i = 0; i < parts; ++i) {
        std::copy_n(from + tile.at(n, width_) + i * part, tile.units,
                    to + tile.at(n, stride_) + i * part);
      }
    }
  }

 private:
  std::int64_t samples_, width_, stride_;
  WorkspacePart<Stored> rows_;
};

/// The forward steps of a layer with kGates gates. state(order) points to h after step `order`;
/// state(-1) to the initial state, null for zeros. gates(order, tile, products) computes the new
/// state from the products (kGates, kRows, 16); prefetch_step(order, tile) prefetches what it
/// needs.
template <int kGates, class Stored = float>
class ForwardSteps {
 public:
  ForwardSteps(const Geometry& geometry, WorkspacePlan& plan)
      : g_(geometry),
        panels_(plan.reserve<float>(packed::panels(g_.hidden) * kGates * g_.hidden * kColumns /
                                    kNumbersPerFloat<Stored>)),
        operand_(g_.samples, g_.hidden, plan) {}

  template <class State, class Prefetch, class Gates>
  void run(const RunContext& context, const Stored* r, State state, Prefetch prefetch_step,
           Gates gates) const {
    const std::int64_t blocks = packed::panels(g_.hidden);
    const std::int64_t panel = g_.hidden * kColumns / kNumbersPerFloat<Stored>;
    float* panels = panels_.in(context);
    if (state(-1)) operand_.copy(state(-1), operand_.of(context, -1));
#pragma omp parallel if (g_.state() * g_.hidden > kParallelProducts)
    {
#pragma omp for schedule(static)
      for (std::int64_t index = 0; index < blocks * kGates; ++index) {
        pack_transposed(r + index % kGates * g_.hidden * g_.hidden, g_.hidden,
                        index / kGates * kColumns, panels + index * panel);
      }
      alignas(64) float products[kGates * kRows * kColumns];
      for (std::int64_t order = 0; order < g_.steps; ++order) {
        const bool multiplies = state(order - 1) != nullptr;
        const Stored* before = operand_.of(context, order - 1);
#pragma omp for schedule(static)
        for (std::int64_t block = 0; block < blocks; ++block) {
          for_each_tile(g_, block, [&](const Tile& tile) {
            prefetch_step(order, tile);
            for (std::int64_t gate = 0; gate < kGates; ++gate) {
              float* c = products + gate * kRows * kColumns;
              if (multiplies) {
                multiply(tile.samples, g_.hidden, before + tile.first_sample * operand_.stride(),
                         operand_.stride(), panels + (block * kGates + gate) * panel, c);
              } else {
                std::fill_n(c, tile.samples * kColumns, 0.0f);
              }
            }
            gates(order, tile, products);
            operand_.copy(tile, 1, state(order), operand_.of(context, order));
          });
        }
      }
    }
  }

 private:
  Geometry g_;
  WorkspacePart<float> panels_;
  OperandRows<Stored> operand_;
};

/// The backward steps. gates(order, tile, dh) computes the gradient of the gates of one step, to
/// which gradients(order) points, from the gradient of h that comes from the later steps, (kRows,
/// 16). carried(tile, dh) adds to that what does not come through the weights; prefetch_step(order,
/// tile) prefetches what gates() needs.
template <int kGates, class Stored = float>
class BackwardSteps {
 public:
  BackwardSteps(const Geometry& geometry, WorkspacePlan& plan)
      : g_(geometry),
        panels_(plan.reserve<float>(packed::panels(g_.hidden) * kGates * g_.hidden * kColumns /
                                    kNumbersPerFloat<Stored>)),
        operand_(g_.samples, kGates * g_.hidden, plan) {}

  /// dlast_h and dh0 may be null.
  template <class Gradients, class Carried, class Prefetch, class Gates>
  void run(const RunContext& context, const Stored* r, const float* dlast_h, float* dh0,
           Gradients gradients, Carried carried, Prefetch prefetch_step, Gates gates) const {
    const std::int64_t blocks = packed::panels(g_.hidden);
    const std::int64_t depth = kGates * g_.hidden;
    const std::int64_t panel = depth * kColumns / kNumbersPerFloat<Stored>;
    float* panels = panels_.in(context);
#pragma omp parallel if (g_.state() * g_.hidden > kParallelProducts)
    {
#pragma omp for schedule(static)
      for (std::int64_t block = 0; block < blocks; ++block) {
        pack(r, g_.hidden, depth, block * kColumns, panels + block * panel);
      }
      alignas(64) float dh[kRows * kColumns];
      // Order -1 stands for the initial state.
      for (std::int64_t order = g_.steps - 1; order >= (dh0 ? -1 : 0); --order) {
        const bool multiplies = order + 1 < g_.steps;
        const Stored* later = operand_.of(context, order + 1);
#pragma omp for schedule(static)
        for (std::int64_t block = 0; block < blocks; ++block) {
          for_each_tile(g_, block, [&](const Tile& tile) {
            if (order >= 0) prefetch_step(order, tile);
            if (multiplies) {
              multiply(tile.samples, depth, later + tile.first_sample * operand_.stride(),
                       operand_.stride(), panels + block * panel, dh);
              carried(tile, dh);
            } else {
              std::fill_n(dh, tile.samples * kColumns, 0.0f);
              for (std::int64_t n = 0; dlast_h && n < tile.samples; ++n) {
                std::copy_n(dlast_h + tile.at(n, g_.hidden), tile.units, dh + n * kColumns);
              }
            }
            if (order >= 0) {
              gates(order, tile, dh);
              operand_.copy(tile, kGates, gradients(order), operand_.of(context, order));
              return;
            }
            for (std::int64_t n = 0; n < tile.samples; ++n) {
              std::copy_n(dh + n * kColumns, tile.units, dh0 + tile.at(n, g_.hidden));
            }
          });
        }
      }
    }
  }

 private:
  Geometry g_;
  WorkspacePart<float> panels_;
  OperandRows<Stored> operand_;
};

/// States or gradients of all steps, or of the last two where the others are not kept.
template <class Stored = float>
struct Sequence {
  Geometry g;
  std::int64_t width;  // columns of a sample
  Stored* all;         // null: only the last two are kept
  Stored* last_two;

  Stored* operator[](std::int64_t order) const {
    const std::int64_t size = g.samples * width;
    return all ? all + g.step(order) * size : last_two + (order & 1) * size;
  }
};

/// An initial state in the type in which states are stored, converted into `to`; null stays null.
inline const float* stored_state(const float* from, std::int64_t, float*) { return from; }
inline const BFloat16* stored_state(const float* from, std::int64_t count, BFloat16* to) {
  if (from) round_to_bfloat16(from, to, count);
  return from ? to : nullptr;
}

/// Copies a state to an output that somebody reads; an absent state is zeros.
inline void copy_if(const BFloat16* from, std::int64_t count, float* to) {
  if (to && from) widen_bfloat16(from, to, count);
}
inline void copy_if(const float* from, std::int64_t count, float* to) {
  if (to && from) std::copy_n(from, count, to);
  if (to && !from) std::fill_n(to, count, 0.0f);
}

}  // namespace pipetrain::recurrent
