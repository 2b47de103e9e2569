// Gru and GruGrad in float, with the usual activations, linear_before_reset and no lengths.
#include "ops/kernel/vector_math_cpu.h"
#include "ops/recurrent/kernels_cpu.h"
#include "ops/recurrent/recurrent_steps_cpu.h"

namespace pipetrain::recurrent {
namespace {

/// Each points to the first unit of the tile in one sample.
struct GruRow {
  const float* gates;
  const float* products;
  const float* bias;  // of the hidden part
  const float* before;
  float* h;
  float* activated;  // null: not wanted, nor is hidden
  float* hidden_part;
};

template <bool kKeep>
void gru_row(const GruRow& row, std::int64_t hidden, std::int64_t units) {
  constexpr std::int64_t kGate = kRows * kColumns;
  const float* __restrict x = row.gates;
  const float* __restrict p = row.products;
  const float* __restrict bias = row.bias;
  const float* __restrict before = row.before;
  float* __restrict h = row.h;
  float* __restrict a = row.activated;
  float* __restrict part_out = row.hidden_part;
#pragma omp simd
  for (std::int64_t j = 0; j < units; ++j) {
    const float update = vector_math::sigmoid(x[j] + p[j]);
    const float reset = vector_math::sigmoid(x[hidden + j] + p[kGate + j]);
    const float part = p[2 * kGate + j] + bias[j];
    const float candidate = vector_math::tanh(x[2 * hidden + j] + reset * part);
    h[j] = candidate + update * (before[j] - candidate);
    if constexpr (kKeep) {
      a[j] = update;
      a[hidden + j] = reset;
      a[2 * hidden + j] = candidate;
      part_out[j] = part;
    }
  }
}

}  // namespace

std::unique_ptr<Kernel> make_gru(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32 ||
      !is_usual_gru(request.node.attributes) || !is_absent(request, 4)) {
    return nullptr;
  }
  const Geometry g = geometry_of(request.node.attributes, request.inputs[0].shape, 3);
  const std::int64_t state = g.state();
  WorkspacePlan plan;
  const ForwardSteps<3> steps(g, plan);
  const auto zeros = plan.reserve<float>(state);
  const auto last_two_h = plan.reserve<float>(2 * state);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        if (state == 0) return;
        if (g.steps == 0)
          return copy_if(data_or_null<float>(in, 3), state, data_or_null<float>(out, 1));
        float* zero = zeros.in(context);
        std::fill_n(zero, state, 0.0f);
        const float* gates = in[0].as<float>();
        const float* bias = data_or_null<float>(in, 2);
        const float* h0 = data_or_null<float>(in, 3);
        const Sequence<> h{g, g.hidden, out[0].as<float>(), last_two_h.in(context)};
        float* activated = data_or_null<float>(out, 2);
        float* parts = data_or_null<float>(out, 3);
        const bool keep = activated && parts;
        const std::int64_t width = 3 * g.hidden;
        steps.run(
            context, in[1].as<float>(),
            [&](std::int64_t order) { return order < 0 ? h0 : h[order]; },
            [&](std::int64_t order, const Tile& tile) {
              const std::int64_t step = g.step(order) * state;
              prefetch(tile, width, 3, gates + 3 * step);
              if (!keep) return;
              prefetch(tile, width, 3, activated + 3 * step);
              prefetch(tile, g.hidden, 1, parts + step);
            },
            [&](std::int64_t order, const Tile& tile, const float* products) {
              const std::int64_t step = g.step(order) * state;
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const float* before = order > 0 ? h[order - 1] : h0 ? h0 : zero;
                const GruRow row{gates + 3 * step + tile.at(n, width),
                                 products + n * kColumns,
                                 bias ? bias + tile.first_unit : zero,
                                 before + unit,
                                 h[order] + unit,
                                 keep ? activated + 3 * step + tile.at(n, width) : nullptr,
                                 keep ? parts + step + unit : nullptr};
                if (keep) {
                  gru_row<true>(row, g.hidden, tile.units);
                } else {
                  gru_row<false>(row, g.hidden, tile.units);
                }
              }
            });
        copy_if(h[g.steps - 1], state, data_or_null<float>(out, 1));
      },
      plan.bytes());
}

namespace {

/// As GruRow.
struct GruGradientRow {
  const float* dh;  // from later steps
  const float* dy;
  const float* activated;
  const float* hidden_part;
  const float* before;
  float* direct;
  float* d;       // of what the previous state is multiplied with
  float* dgates;  // null: not wanted
};

void gru_gradient_row(const GruGradientRow& row, std::int64_t hidden, std::int64_t units) {
  const float* __restrict a = row.activated;
  const float* __restrict later = row.dh;
  const float* __restrict dy = row.dy;
  const float* __restrict part = row.hidden_part;
  const float* __restrict h = row.before;
  float* __restrict direct = row.direct;
  float* __restrict d = row.d;
  float dcandidate_row[kColumns];
#pragma omp simd
  for (std::int64_t j = 0; j < units; ++j) {
    const float update = a[j];
    const float reset = a[hidden + j];
    const float candidate = a[2 * hidden + j];
    const float total = later[j] + dy[j];
    const float dcandidate = total * (1.0f - update) * (1.0f - candidate * candidate);
    d[j] = total * (h[j] - candidate) * update * (1.0f - update);
    d[hidden + j] = dcandidate * part[j] * reset * (1.0f - reset);
    d[2 * hidden + j] = dcandidate * reset;
    dcandidate_row[j] = dcandidate;
    direct[j] = total * update;
  }
  if (!row.dgates) return;
  std::copy_n(d, units, row.dgates);
  std::copy_n(d + hidden, units, row.dgates + hidden);
  std::copy_n(dcandidate_row, units, row.dgates + 2 * hidden);
}

}  // namespace

// dy, dlast_h, r, activated, hidden, y, h0, lengths -> dgates, drecurrent, dh0
std::unique_ptr<Kernel> make_gru_gradient(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[2].dtype != DType::kFloat32 ||
      !is_usual_gru(request.node.attributes) || !is_absent(request, 7)) {
    return nullptr;
  }
  const Geometry g = geometry_of(request.node.attributes, request.inputs[3].shape, 3);
  const std::int64_t state = g.state();
  const std::int64_t width = 3 * g.hidden;
  WorkspacePlan plan;
  const BackwardSteps<3> steps(g, plan);
  const auto zeros = plan.reserve<float>(state);
  const auto direct_dh = plan.reserve<float>(state);  // through update * previous h
  const auto last_two_d = plan.reserve<float>(2 * g.samples * width);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        if (state == 0) return;
        float* zero = zeros.in(context);
        float* direct = direct_dh.in(context);
        std::fill_n(zero, state, 0.0f);
        const Sequence<> d{g, width, data_or_null<float>(out, 1), last_two_d.in(context)};
        float* dgates = data_or_null<float>(out, 0);
        const float* dy = data_or_null<float>(in, 0);
        const float* activated = in[3].as<float>();
        const float* parts = in[4].as<float>();
        const float* y = in[5].as<float>();
        const float* h0 = data_or_null<float>(in, 6);
        if (!h0) h0 = zero;
        steps.run(
            context, in[2].as<float>(), data_or_null<float>(in, 1), data_or_null<float>(out, 2),
            [&](std::int64_t order) { return d[order]; },
            [&](const Tile& tile, float* dh) {
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const float* from = direct + tile.at(n, g.hidden);
                for (std::int64_t j = 0; j < tile.units; ++j) dh[n * kColumns + j] += from[j];
              }
            },
            [&](std::int64_t order, const Tile& tile) {
              const std::int64_t step = g.step(order) * state;
              prefetch(tile, width, 3, activated + 3 * step);
              prefetch(tile, g.hidden, 1, parts + step);
              prefetch(tile, width, 3, d[order]);
              if (dgates) prefetch(tile, width, 3, dgates + 3 * step);
              if (dy) prefetch(tile, g.hidden, 1, dy + step);
            },
            [&](std::int64_t order, const Tile& tile, const float* dh) {
              const std::int64_t step = g.step(order) * state;
              const float* before = order > 0 ? y + g.step(order - 1) * state : h0;
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const std::int64_t gate = tile.at(n, width);
                gru_gradient_row(
                    {dh + n * kColumns, dy ? dy + step + unit : zero, activated + 3 * step + gate,
                     parts + step + unit, before + unit, direct + unit, d[order] + gate,
                     dgates ? dgates + 3 * step + gate : nullptr},
                    g.hidden, tile.units);
              }
            });
      },
      plan.bytes());
}

}  // namespace pipetrain::recurrent
