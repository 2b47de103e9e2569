// Winograd's loops over tiles for vectors of 8 floats and, where there is AVX-512, of 16. Include
// it from winograd_passes_cpu.h only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "ops/conv/winograd_transforms_cpu.h"
#include "ops/matmul/blocked_product_cpu.h"

namespace pipetrain::winograd {

/// Input channels of a partial sum: adding up partial sums rounds less than one long sum does.
constexpr std::int64_t kInputsOfSum = 64;

/// Products of one point: m (tile, outputs) = v (tile, inputs) u (inputs, outputs).
struct PointProduct {
  const float* v;        // blocks of input channels
  std::int64_t v_block;  // apart
  std::int64_t inputs;
  const float* u;        // panels of 16 output channels, (input channel, 16) each
  std::int64_t u_panel;  // apart
  std::int64_t panels;   // at most kMostPanels
  std::int64_t tiles;    // of all slices
  float* m;              // blocks of output channels
  std::int64_t m_block;  // apart
  bool overwrite;        // m, instead of adding to it
};

/// The products for weight gradients, which sum over tiles: u (inputs, outputs) = v' z.
struct GradientProduct {
  const float* v;        // blocks of input channels
  std::int64_t v_block;  // apart
  std::int64_t inputs;   // a multiple of 16
  const float* z;        // blocks of output channels
  std::int64_t z_block;  // apart
  std::int64_t tiles;    // of all slices
  std::int64_t panels;   // of 16 output channels, at most kMostPanels
  float* u;              // panels, (input channel, 16) each
  std::int64_t u_panel;  // apart
  bool overwrite;        // u, instead of adding to it
};

struct Narrow {
  static constexpr std::int64_t kLanes = 8;
  static constexpr std::int64_t kMostPanels = 1;
  using Vector = Vector8;
  template <class Element>
  static Vector load(const Element* from) {
    return load8(from);
  }
  template <class Element>
  static void store(Element* to, Vector value) {
    store8(to, value);
  }
#define PIPETRAIN_WINOGRAD_TARGET
#include "ops/conv/winograd_loops_cpu.h"
#undef PIPETRAIN_WINOGRAD_TARGET

  static void multiply(const PointProduct& p) {
    for (std::int64_t c = 0; c < p.inputs; c += kInputsOfSum) {
      blocked::multiply(p.tiles, p.v + c / kLanes * p.v_block, p.v_block, p.u + c * kPanel, kPanel,
                        std::min(kInputsOfSum, p.inputs - c) / kLanes, p.overwrite && c == 0, p.m,
                        p.m_block);
    }
  }
  static void multiply(const GradientProduct& p) {
    const blocked::OperandPair pair{0, 0};
    for (std::int64_t c = 0; c < p.inputs; c += blocked::channels_together()) {
      blocked::multiply_transposed(p.inputs - c, p.v, p.v_block, c, p.z, p.z_block, p.tiles,
                                   {&pair, 1}, p.overwrite, p.u + c * kPanel, kPanel);
    }
  }
};

struct Wide {
  static constexpr std::int64_t kLanes = 16;
  static constexpr std::int64_t kMostPanels = 2;
  static constexpr int kMostTiles = 12;  // with two panels they fill the registers
  static constexpr int kInputs = 8;      // of one inner loop of the gradients' products
  using Vector = Vector16;
  [[gnu::always_inline]] PIPETRAIN_AVX512 static Vector load(const float* from) {
    return load16(from);
  }
  [[gnu::always_inline]] PIPETRAIN_AVX512 static Vector load(const BFloat16* from) {
    return load16(from);
  }
  [[gnu::always_inline]] PIPETRAIN_AVX512 static void store(float* to, const Vector& value) {
    store16(to, value);
  }
  [[gnu::always_inline]] PIPETRAIN_AVX512 static void store(BFloat16* to, const Vector& value) {
    store16(to, value);
  }
#define PIPETRAIN_WINOGRAD_TARGET PIPETRAIN_AVX512
#include "ops/conv/winograd_loops_cpu.h"
#undef PIPETRAIN_WINOGRAD_TARGET

  /// For `inputs` channels, whose first ones are at v and u.
  template <int kTiles, int kPanels>
  PIPETRAIN_AVX512 static void multiply_inputs(const PointProduct& p, const float* v,
                                               const float* u, std::int64_t inputs, float* m,
                                               bool overwrite) {
    Vector sums[kTiles][kPanels] = {};
    for (std::int64_t begin = 0; begin < inputs; begin += kLanes, v += p.v_block) {
#pragma GCC unroll 2
      for (int c = 0; c < kLanes; ++c, u += kPanel) {
        Vector columns[kPanels];
#pragma GCC unroll 2
        for (int i = 0; i < kPanels; ++i) columns[i] = load(u + i * p.u_panel);
#pragma GCC unroll 12
        for (int t = 0; t < kTiles; ++t) {
          const Vector factor = fill16(v[t * kLanes + c]);
#pragma GCC unroll 2
          for (int i = 0; i < kPanels; ++i) sums[t][i] += factor * columns[i];
        }
      }
    }
    if (!overwrite) {
#pragma GCC unroll 12
      for (int t = 0; t < kTiles; ++t) {
#pragma GCC unroll 2
        for (int i = 0; i < kPanels; ++i) sums[t][i] += load(m + i * p.m_block + t * kLanes);
      }
    }
#pragma GCC unroll 12
    for (int t = 0; t < kTiles; ++t) {
#pragma GCC unroll 2
      for (int i = 0; i < kPanels; ++i) store(m + i * p.m_block + t * kLanes, sums[t][i]);
    }
  }

  template <int kTiles, int kPanels>
  PIPETRAIN_AVX512 static void multiply_tiles(const PointProduct& p, std::int64_t tile) {
    for (std::int64_t c = 0; c < p.inputs; c += kInputsOfSum) {
      multiply_inputs<kTiles, kPanels>(p, p.v + tile * kLanes + c / kLanes * p.v_block,
                                       p.u + c * kPanel, std::min(kInputsOfSum, p.inputs - c),
                                       p.m + tile * kLanes, p.overwrite && c == 0);
    }
  }

  template <int kPanels>
  static void multiply_panels(const PointProduct& p) {
    static constexpr auto kTable = []<int... kBefore>(std::integer_sequence<int, kBefore...>) {
      return std::array{multiply_tiles<kBefore + 1, kPanels>...};
    }
    (std::make_integer_sequence<int, kMostTiles>());
    for (std::int64_t tile = 0; tile < p.tiles;) {
      const std::int64_t rest = p.tiles - tile, loops = (rest + kMostTiles - 1) / kMostTiles;
      const std::int64_t take = (rest + loops - 1) / loops;
      kTable[static_cast<std::size_t>(take - 1)](p, tile);
      tile += take;
    }
  }
  static void multiply(const PointProduct& p) {
    p.panels == 2 ? multiply_panels<2>(p) : multiply_panels<1>(p);
  }

  template <int kPanels>
  PIPETRAIN_AVX512 static void sum_tiles(const GradientProduct& p) {
    for (std::int64_t c = 0; c < p.inputs; c += kInputs) {
      Vector sums[kInputs][kPanels] = {};
      float* u = p.u + c * kPanel;
      const float *v = p.v + c / kLanes * p.v_block + c % kLanes, *z = p.z;
#pragma GCC unroll 2
      for (std::int64_t t = 0; t < p.tiles; ++t, v += kLanes, z += kLanes) {
        Vector columns[kPanels];
#pragma GCC unroll 2
        for (int k = 0; k < kPanels; ++k) columns[k] = load(z + k * p.z_block);
#pragma GCC unroll 8
        for (int i = 0; i < kInputs; ++i) {
          const Vector factor = fill16(v[i]);
#pragma GCC unroll 2
          for (int k = 0; k < kPanels; ++k) sums[i][k] += factor * columns[k];
        }
      }
      if (!p.overwrite) {
#pragma GCC unroll 8
        for (int i = 0; i < kInputs; ++i) {
#pragma GCC unroll 2
          for (int k = 0; k < kPanels; ++k) sums[i][k] += load(u + k * p.u_panel + i * kPanel);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < kInputs; ++i) {
#pragma GCC unroll 2
        for (int k = 0; k < kPanels; ++k) store(u + k * p.u_panel + i * kPanel, sums[i][k]);
      }
    }
  }
  static void multiply(const GradientProduct& p) {
    p.panels == 2 ? sum_tiles<2>(p) : sum_tiles<1>(p);
  }
};

}  // namespace pipetrain::winograd
