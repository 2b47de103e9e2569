// Recurrences on GPUs, every form of them.
#include <limits>

#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/recurrent/recurrent.h"
#include "ops/recurrent/recurrent_launch_cuda.h"

namespace pipetrain::recurrent {
namespace {

using Made = std::unique_ptr<Kernel>;
using Tensors = std::span<const Tensor>;

/// Of the numbers that kernels know activations by.
static_assert(static_cast<int>(ActivationKind::kSigmoid) == 0 &&
              static_cast<int>(ActivationKind::kRelu) == 2 &&
              static_cast<int>(ActivationKind::kScaledTanh) == 6 &&
              static_cast<int>(ActivationKind::kSoftplus) == 10);

std::vector<GpuFunction> functions_of(const Attributes& attributes) {
  const double clip = attributes.real("clip", 0);
  std::vector<GpuFunction> out;
  for (const Activation& a : activations_of(attributes))
    out.push_back({static_cast<int>(a.kind), static_cast<float>(a.alpha),
                   static_cast<float>(a.beta),
                   clip > 0 ? static_cast<float>(clip) : std::numeric_limits<float>::infinity()});
  return out;
}

/// Whether all but lengths are floats that kernels know.
bool floats(const KernelRequest& request) {
  for (const auto* types : {&request.inputs, &request.outputs}) {
    for (const TensorType& type : *types) {
      if (type.dtype != DType::kUndefined && type.dtype != DType::kInt32 &&
          !is_stored_float(type.dtype))
        return false;
    }
  }
  return takes_types(request);
}

Layer layer_of(const KernelRequest& request, const Shape& gates, std::int64_t gate_count) {
  const Geometry g = geometry_of(request.node.attributes, gates, gate_count);
  return {g.steps, g.samples, g.hidden, g.reverse, nullptr};
}

const std::int32_t* lengths_at(Tensors in, std::size_t index) {
  return index < in.size() ? in[index].as<std::int32_t>() : nullptr;
}
float* floats_in(const RunContext& context) { return reinterpret_cast<float*>(context.workspace); }
std::size_t state_bytes(const Layer& layer, std::size_t states) {
  return states * static_cast<std::size_t>(layer.samples * layer.hidden) * sizeof(float);
}

Made make_lstm(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const std::vector<GpuFunction> f = functions_of(request.node.attributes);
  LstmForward work{};
  work.layer = layer_of(request, request.inputs[0].shape, 4);
  work.gate = f.at(0), work.cell = f.at(1), work.output = f.at(2);
  work.coupled = request.node.attributes.flag("input_forget");
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        LstmForward w = work;
        w.layer.lengths = lengths_at(in, 5);
        w.gates = numbers_at(in, 0), w.r = numbers_at(in, 1), w.h0 = numbers_at(in, 2);
        w.c0 = numbers_at(in, 3), w.peepholes = numbers_at(in, 4);
        w.y = places_at(out, 0), w.last_h = places_at(out, 1), w.last_c = places_at(out, 2);
        w.activated = places_at(out, 3), w.cells = places_at(out, 4);
        w.workspace = floats_in(context);
        launch_lstm(w, queue);
      },
      state_bytes(work.layer, 3));
}

Made make_lstm_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const std::vector<GpuFunction> f = functions_of(request.node.attributes);
  LstmBackward work{};
  work.layer = layer_of(request, request.inputs[4].shape, 4);
  work.gate = f.at(0), work.cell = f.at(1), work.output = f.at(2);
  work.coupled = request.node.attributes.flag("input_forget");
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        LstmBackward w = work;
        w.layer.lengths = lengths_at(in, 8);
        w.dy = numbers_at(in, 0), w.dlast_h = numbers_at(in, 1), w.dlast_c = numbers_at(in, 2);
        w.r = numbers_at(in, 3), w.activated = numbers_at(in, 4), w.cells = numbers_at(in, 5);
        w.c0 = numbers_at(in, 6), w.peepholes = numbers_at(in, 7);
        w.dgates = places_at(out, 0), w.dh0 = places_at(out, 1), w.dc0 = places_at(out, 2);
        w.workspace = floats_in(context);
        launch_lstm_gradient(w, queue);
      },
      state_bytes(work.layer, 10));
}

Made make_peephole_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const Layer layer = layer_of(request, request.inputs[0].shape, 4);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    Layer with_lengths = layer;
    with_lengths.lengths = lengths_at(in, 3);
    launch_peephole_gradient(with_lengths, numbers_at(in, 0), numbers_at(in, 1), numbers_at(in, 2),
                             places_at(out, 0), queue);
  });
}

Made make_gru(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const std::vector<GpuFunction> f = functions_of(request.node.attributes);
  GruForward work{};
  work.layer = layer_of(request, request.inputs[0].shape, 3);
  work.gate = f.at(0), work.candidate = f.at(1);
  work.after = request.node.attributes.flag("linear_before_reset");
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        GruForward w = work;
        w.layer.lengths = lengths_at(in, 4);
        w.gates = numbers_at(in, 0), w.r = numbers_at(in, 1), w.bias = numbers_at(in, 2);
        w.h0 = numbers_at(in, 3);
        w.y = places_at(out, 0), w.last_h = places_at(out, 1), w.activated = places_at(out, 2);
        w.parts = places_at(out, 3);
        w.workspace = floats_in(context);
        launch_gru(w, queue);
      },
      state_bytes(work.layer, 4));
}

Made make_gru_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const std::vector<GpuFunction> f = functions_of(request.node.attributes);
  GruBackward work{};
  work.layer = layer_of(request, request.inputs[3].shape, 3);
  work.gate = f.at(0), work.candidate = f.at(1);
  work.after = request.node.attributes.flag("linear_before_reset");
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        GruBackward w = work;
        w.layer.lengths = lengths_at(in, 7);
        w.dy = numbers_at(in, 0), w.dlast_h = numbers_at(in, 1), w.r = numbers_at(in, 2);
        w.activated = numbers_at(in, 3), w.parts = numbers_at(in, 4), w.y = numbers_at(in, 5);
        w.h0 = numbers_at(in, 6);
        w.dgates = places_at(out, 0), w.drecurrent = places_at(out, 1), w.dh0 = places_at(out, 2);
        w.workspace = floats_in(context);
        launch_gru_gradient(w, queue);
      },
      state_bytes(work.layer, 7));
}

Made make_rnn(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  RnnForward work{};
  work.layer = layer_of(request, request.inputs[0].shape, 1);
  work.function = functions_of(request.node.attributes).at(0);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        RnnForward w = work;
        w.layer.lengths = lengths_at(in, 3);
        w.gates = numbers_at(in, 0), w.r = numbers_at(in, 1), w.h0 = numbers_at(in, 2);
        w.y = places_at(out, 0), w.last_h = places_at(out, 1);
        w.workspace = floats_in(context);
        launch_rnn(w, queue);
      },
      state_bytes(work.layer, 2));
}

Made make_rnn_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  RnnBackward work{};
  work.layer = layer_of(request, request.inputs[3].shape, 1);
  work.function = functions_of(request.node.attributes).at(0);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        RnnBackward w = work;
        w.layer.lengths = lengths_at(in, 4);
        w.dy = numbers_at(in, 0), w.dlast_h = numbers_at(in, 1), w.r = numbers_at(in, 2);
        w.y = numbers_at(in, 3);
        w.dgates = places_at(out, 0), w.dh0 = places_at(out, 1);
        w.workspace = floats_in(context);
        launch_rnn_gradient(w, queue);
      },
      state_bytes(work.layer, 3));
}

Made make_weight_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const std::int64_t gates = request.inputs[0].shape[2] / request.inputs[1].shape[2];
  const Layer layer = layer_of(request, request.inputs[0].shape, gates);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        Layer with_lengths = layer;
        with_lengths.lengths = lengths_at(in, 4);
        float* const before = floats_in(context);
        launch_states_before(with_lengths, numbers_at(in, 1), numbers_at(in, 2), before, queue);
        launch_recurrent_weight_gradient(with_lengths, gates, numbers_at(in, 0), before,
                                         numbers_at(in, 3), places_at(out, 0), queue);
      },
      static_cast<std::size_t>(layer.steps) * state_bytes(layer, 1));
}

constexpr CudaKernelEntry kKernels[] = {
    {"Gru", make_gru},
    {"GruGrad", make_gru_gradient},
    {"Lstm", make_lstm},
    {"LstmGrad", make_lstm_gradient},
    {"LstmPeepholeGrad", make_peephole_gradient},
    {"RecurrentWeightGrad", make_weight_gradient},
    {"Rnn", make_rnn},
    {"RnnGrad", make_rnn_gradient},
};

}  // namespace
}  // namespace pipetrain::recurrent

namespace pipetrain {
std::span<const CudaKernelEntry> recurrent_cuda_kernels() { return recurrent::kKernels; }
}  // namespace pipetrain
