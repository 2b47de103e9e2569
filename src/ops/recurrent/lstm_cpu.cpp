// Lstm and LstmGrad in float and in bfloat16, with the usual activations and without peepholes or
// lengths.
#include "ops/kernel/vector_math_cpu.h"
#include "ops/recurrent/kernels_cpu.h"
#include "ops/recurrent/recurrent_steps_cpu.h"

namespace pipetrain::recurrent {
namespace {

/// Each points to the first unit of the tile in one sample; null where it is absent or not wanted.
template <class Stored>
struct LstmRow {
  const Stored* gates;
  const float* products;  // its first gate; the others follow after kRows rows each
  const float* c_before;
  float* c;
  Stored* h;
  Stored* activated;
};

template <bool kKeep, class Stored>
void lstm_row(const LstmRow<Stored>& row, std::int64_t hidden, std::int64_t units) {
  constexpr std::int64_t kGate = kRows * kColumns;
  const Stored* __restrict x = row.gates;
  const float* __restrict p = row.products;
  Stored* __restrict a = row.activated;
  Stored* __restrict h = row.h;
  float* c = row.c;
  const float* before = row.c_before;
#pragma omp simd
  for (std::int64_t j = 0; j < units; ++j) {
    const float input = vector_math::sigmoid(widened(x[j]) + p[j]);
    const float output = vector_math::sigmoid(widened(x[hidden + j]) + p[kGate + j]);
    const float forget = vector_math::sigmoid(widened(x[2 * hidden + j]) + p[2 * kGate + j]);
    const float candidate = vector_math::tanh(widened(x[3 * hidden + j]) + p[3 * kGate + j]);
    const float cell = forget * before[j] + input * candidate;
    c[j] = cell;
    store(output * vector_math::tanh(cell), h[j]);
    if constexpr (kKeep) {
      store(input, a[j]);
      store(output, a[hidden + j]);
      store(forget, a[2 * hidden + j]);
      store(candidate, a[3 * hidden + j]);
    }
  }
}

template <class Stored>
std::unique_ptr<Kernel> make_lstm_of(const KernelRequest& request) {
  const Geometry g = geometry_of(request.node.attributes, request.inputs[0].shape, 4);
  const std::int64_t state = g.state();
  WorkspacePlan plan;
  const ForwardSteps<4, Stored> steps(g, plan);
  const auto zeros = plan.reserve<float>(state);
  const auto stored_h0 = plan.reserve<Stored>(state);
  const auto last_two_h = plan.reserve<Stored>(2 * state);
  const auto last_two_c = plan.reserve<float>(2 * state);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        if (state == 0) return;
        if (g.steps == 0) {
          copy_if(data_or_null<float>(in, 2), state, data_or_null<float>(out, 1));
          copy_if(data_or_null<float>(in, 3), state, data_or_null<float>(out, 2));
          return;
        }
        float* zero = zeros.in(context);
        std::fill_n(zero, state, 0.0f);
        const Stored* gates = in[0].as<Stored>();
        const Stored* h0 = stored_state(data_or_null<float>(in, 2), state, stored_h0.in(context));
        const float* c0 = data_or_null<float>(in, 3);
        if (!c0) c0 = zero;
        Stored* activated = data_or_null<Stored>(out, 3);
        const Sequence<Stored> h{g, g.hidden, out[0].as<Stored>(), last_two_h.in(context)};
        const Sequence<> c{g, g.hidden, data_or_null<float>(out, 4), last_two_c.in(context)};
        const std::int64_t width = 4 * g.hidden;
        steps.run(
            context, in[1].as<Stored>(),
            [&](std::int64_t order) { return order < 0 ? h0 : h[order]; },
            [&](std::int64_t order, const Tile& tile) {
              const std::int64_t offset = g.step(order) * g.samples * width;
              prefetch(tile, width, 4, gates + offset);
              if (activated) prefetch(tile, width, 4, activated + offset);
            },
            [&](std::int64_t order, const Tile& tile, const float* products) {
              const std::int64_t offset = g.step(order) * g.samples * width;
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const LstmRow<Stored> row{
                    gates + offset + tile.at(n, width),
                    products + n * kColumns,
                    (order > 0 ? c[order - 1] : c0) + unit,
                    c[order] + unit,
                    h[order] + unit,
                    activated ? activated + offset + tile.at(n, width) : nullptr};
                if (activated) {
                  lstm_row<true>(row, g.hidden, tile.units);
                } else {
                  lstm_row<false>(row, g.hidden, tile.units);
                }
              }
            });
        copy_if(h[g.steps - 1], state, data_or_null<float>(out, 1));
        copy_if(c[g.steps - 1], state, data_or_null<float>(out, 2));
      },
      plan.bytes());
}

}  // namespace

std::unique_ptr<Kernel> make_lstm(const KernelRequest& request) {
  if (takes_bfloat16(request)) return make_lstm_of<BFloat16>(request);
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32 ||
      !is_usual_lstm(request.node.attributes) || !is_absent(request, 4) || !is_absent(request, 5)) {
    return nullptr;
  }
  return make_lstm_of<float>(request);
}

namespace {

/// As LstmRow.
template <class Stored>
struct LstmGradientRow {
  const float* dh;  // from later steps
  const Stored* dy;
  const Stored* activated;
  const float* c;
  const float* c_before;
  float* dc;  // from later steps; becomes that of the step before
  Stored* dgates;
};

template <bool kGradientOfY, class Stored>
void lstm_gradient_row(const LstmGradientRow<Stored>& row, std::int64_t hidden,
                       std::int64_t units) {
  const Stored* __restrict a = row.activated;
  const float* __restrict later = row.dh;
  const Stored* __restrict dy = row.dy;
  const float* __restrict c = row.c;
  const float* __restrict before = row.c_before;
  float* __restrict dc = row.dc;
  Stored* __restrict d = row.dgates;
#pragma omp simd
  for (std::int64_t j = 0; j < units; ++j) {
    const float input = widened(a[j]);
    const float output = widened(a[hidden + j]);
    const float forget = widened(a[2 * hidden + j]);
    const float candidate = widened(a[3 * hidden + j]);
    const float tanh_c = vector_math::tanh(c[j]);
    float dh = later[j];
    if constexpr (kGradientOfY) dh += widened(dy[j]);
    const float dcell = dc[j] + dh * output * (1.0f - tanh_c * tanh_c);
    store(dcell * candidate * input * (1.0f - input), d[j]);
    store(dh * tanh_c * output * (1.0f - output), d[hidden + j]);
    store(dcell * before[j] * forget * (1.0f - forget), d[2 * hidden + j]);
    store(dcell * input * (1.0f - candidate * candidate), d[3 * hidden + j]);
    dc[j] = dcell * forget;
  }
}

// dy, dlast_h, dlast_c, r, activated, cells, c0, peepholes, lengths -> dgates, dh0, dc0
template <class Stored>
std::unique_ptr<Kernel> make_lstm_gradient_of(const KernelRequest& request) {
  const Geometry g = geometry_of(request.node.attributes, request.inputs[4].shape, 4);
  const std::int64_t state = g.state();
  const std::int64_t width = 4 * g.hidden;
  WorkspacePlan plan;
  const BackwardSteps<4, Stored> steps(g, plan);
  const auto zeros = plan.reserve<float>(state);
  const auto carried_dc = plan.reserve<float>(state);
  const auto last_two_d = plan.reserve<Stored>(2 * g.samples * width);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        if (state == 0) return;
        float* zero = zeros.in(context);
        float* dc = carried_dc.in(context);
        std::fill_n(zero, state, 0.0f);
        copy_if(data_or_null<float>(in, 2), state, dc);
        const Sequence<Stored> d{g, width, out[0].as<Stored>(), last_two_d.in(context)};
        const Stored* dy = data_or_null<Stored>(in, 0);
        const Stored* activated = in[4].as<Stored>();
        const float* cells = in[5].as<float>();
        const float* c0 = data_or_null<float>(in, 6);
        if (!c0) c0 = zero;
        steps.run(
            context, in[3].as<Stored>(), data_or_null<float>(in, 1), data_or_null<float>(out, 1),
            [&](std::int64_t order) { return d[order]; }, [](const Tile&, float*) {},
            [&](std::int64_t order, const Tile& tile) {
              const std::int64_t step = g.step(order) * state;
              prefetch(tile, width, 4, activated + 4 * step);
              prefetch(tile, width, 4, d[order]);
              prefetch(tile, g.hidden, 1, order > 0 ? cells + g.step(order - 1) * state : c0);
              if (dy) prefetch(tile, g.hidden, 1, dy + step);
            },
            [&](std::int64_t order, const Tile& tile, const float* dh) {
              const std::int64_t step = g.step(order) * state;
              const float* before = order > 0 ? cells + g.step(order - 1) * state : c0;
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const LstmGradientRow<Stored> row{dh + n * kColumns,
                                                  dy ? dy + step + unit : nullptr,
                                                  activated + 4 * step + tile.at(n, width),
                                                  cells + step + unit,
                                                  before + unit,
                                                  dc + unit,
                                                  d[order] + tile.at(n, width)};
                if (dy) {
                  lstm_gradient_row<true>(row, g.hidden, tile.units);
                } else {
                  lstm_gradient_row<false>(row, g.hidden, tile.units);
                }
              }
            });
        copy_if(dc, state, data_or_null<float>(out, 2));
      },
      plan.bytes());
}

}  // namespace

std::unique_ptr<Kernel> make_lstm_gradient(const KernelRequest& request) {
  if (takes_bfloat16(request)) return make_lstm_gradient_of<BFloat16>(request);
  if (!is_row_major(request) || request.inputs[3].dtype != DType::kFloat32 ||
      !is_usual_lstm(request.node.attributes) || !is_absent(request, 7) || !is_absent(request, 8)) {
    return nullptr;
  }
  return make_lstm_gradient_of<float>(request);
}

}  // namespace pipetrain::recurrent
