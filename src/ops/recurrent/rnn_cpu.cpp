// Rnn and RnnGrad in float, with Tanh or Relu and without lengths.
#include "ops/kernel/vector_math_cpu.h"
#include "ops/recurrent/kernels_cpu.h"
#include "ops/recurrent/recurrent_steps_cpu.h"

namespace pipetrain::recurrent {
namespace {

bool is_usual_rnn(const Attributes& attributes, ActivationKind kind) {
  return attributes.real("clip", 0) == 0 && activations_of(attributes)[0].kind == kind;
}

template <bool kTanh>
std::unique_ptr<Kernel> make_rnn_of(const KernelRequest& request) {
  const Geometry g = geometry_of(request.node.attributes, request.inputs[0].shape, 1);
  const std::int64_t state = g.state();
  WorkspacePlan plan;
  const ForwardSteps<1> steps(g, plan);
  const auto last_two_h = plan.reserve<float>(2 * state);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        if (state == 0) return;
        if (g.steps == 0)
          return copy_if(data_or_null<float>(in, 2), state, data_or_null<float>(out, 1));
        const float* gates = in[0].as<float>();
        const float* h0 = data_or_null<float>(in, 2);
        const Sequence<> h{g, g.hidden, out[0].as<float>(), last_two_h.in(context)};
        steps.run(
            context, in[1].as<float>(),
            [&](std::int64_t order) { return order < 0 ? h0 : h[order]; },
            [&](std::int64_t order, const Tile& tile) {
              prefetch(tile, g.hidden, 1, gates + g.step(order) * state);
            },
            [&](std::int64_t order, const Tile& tile, const float* products) {
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const float* __restrict x = gates + g.step(order) * state + unit;
                const float* __restrict p = products + n * kColumns;
                float* __restrict to = h[order] + unit;
#pragma omp simd
                for (std::int64_t j = 0; j < tile.units; ++j) {
                  const float z = x[j] + p[j];
                  to[j] = kTanh ? vector_math::tanh(z) : (z < 0.0f ? 0.0f : z);
                }
              }
            });
        copy_if(h[g.steps - 1], state, data_or_null<float>(out, 1));
      },
      plan.bytes());
}

}  // namespace

std::unique_ptr<Kernel> make_rnn(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32 ||
      !is_absent(request, 3)) {
    return nullptr;
  }
  const Attributes& attributes = request.node.attributes;
  if (is_usual_rnn(attributes, ActivationKind::kTanh)) return make_rnn_of<true>(request);
  if (is_usual_rnn(attributes, ActivationKind::kRelu)) return make_rnn_of<false>(request);
  return nullptr;
}

namespace {

// dy, dlast_h, r, y, lengths -> dgates, dh0
template <bool kTanh>
std::unique_ptr<Kernel> make_rnn_gradient_of(const KernelRequest& request) {
  const Geometry g = geometry_of(request.node.attributes, request.inputs[3].shape, 1);
  const std::int64_t state = g.state();
  WorkspacePlan plan;
  const BackwardSteps<1> steps(g, plan);
  const auto zeros = plan.reserve<float>(kColumns);
  const auto last_two_d = plan.reserve<float>(2 * state);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        if (state == 0) return;
        float* zero = zeros.in(context);
        std::fill_n(zero, kColumns, 0.0f);
        const Sequence<> d{g, g.hidden, out[0].as<float>(), last_two_d.in(context)};
        const float* dy = data_or_null<float>(in, 0);
        const float* y = in[3].as<float>();
        steps.run(
            context, in[2].as<float>(), data_or_null<float>(in, 1), data_or_null<float>(out, 1),
            [&](std::int64_t order) { return d[order]; }, [](const Tile&, float*) {},
            [&](std::int64_t order, const Tile& tile) {
              prefetch(tile, g.hidden, 1, y + g.step(order) * state);
              if (dy) prefetch(tile, g.hidden, 1, dy + g.step(order) * state);
            },
            [&](std::int64_t order, const Tile& tile, const float* dh) {
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const std::int64_t at = g.step(order) * state + unit;
                const float* __restrict later = dh + n * kColumns;
                const float* __restrict dy_row = dy ? dy + at : zero;
                const float* __restrict h = y + at;
                float* __restrict to = d[order] + unit;
#pragma omp simd
                for (std::int64_t j = 0; j < tile.units; ++j) {
                  const float total = later[j] + dy_row[j];
                  to[j] = kTanh ? total * (1.0f - h[j] * h[j]) : (h[j] > 0.0f ? total : 0.0f);
                }
              }
            });
      },
      plan.bytes());
}

}  // namespace

std::unique_ptr<Kernel> make_rnn_gradient(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[2].dtype != DType::kFloat32 ||
      !is_absent(request, 4)) {
    return nullptr;
  }
  const Attributes& attributes = request.node.attributes;
  if (is_usual_rnn(attributes, ActivationKind::kTanh)) return make_rnn_gradient_of<true>(request);
  if (is_usual_rnn(attributes, ActivationKind::kRelu)) return make_rnn_gradient_of<false>(request);
  return nullptr;
}

}  // namespace pipetrain::recurrent
