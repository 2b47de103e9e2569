// The CPU's kernels of recurrent layers, and which of them take bfloat16 numbers as they are.
#include <algorithm>

#include "base/vectors.h"
#include "ops/kernel/element_types.h"
#include "ops/recurrent/kernels_cpu.h"

namespace pipetrain::recurrent {
namespace {

constexpr KernelEntry kKernels[] = {
    {"Gru", make_gru},
    {"GruGrad", make_gru_gradient},
    {"Lstm", make_lstm},
    {"LstmGrad", make_lstm_gradient},
    {"RecurrentWeightGrad", make_weight_gradient},
    {"Rnn", make_rnn},
    {"RnnGrad", make_rnn_gradient},
};

}  // namespace

bool takes_bfloat16(const KernelRequest& request) {
  if (!has_fast_bfloat16_products() || !is_row_major(request)) return false;
  const std::string_view op = request.node.op->name;
  const auto input = [&](std::size_t i) {
    return i < request.inputs.size() ? request.inputs[i].dtype : DType::kUndefined;
  };
  const auto are = [](DType wanted, std::initializer_list<DType> types) {
    return std::all_of(types.begin(), types.end(),
                       [&](DType type) { return type == DType::kUndefined || type == wanted; });
  };
  const auto output = [&](std::size_t i) {
    return i < request.outputs.size() ? request.outputs[i].dtype : DType::kUndefined;
  };
  constexpr DType kNarrow = DType::kBFloat16, kFloat = DType::kFloat32, kNone = DType::kUndefined;
  if (op == "RecurrentWeightGrad") {
    const Shape& gates = request.inputs[0].shape;
    return input(0) == kNarrow && input(1) == kNarrow && output(0) == kFloat &&
           are(kNone, {input(2), input(3), input(4)}) && gates[0] > 1 &&
           request.outputs[0].shape.count() > 0 && gates[1] > 0;
  }
  if (op != "Lstm" && op != "LstmGrad") return false;
  const bool forward = op == "Lstm";
  const Shape& gates = request.inputs[forward ? 0 : 4].shape;
  if (!is_usual_lstm(request.node.attributes) || gates[2] % 8 != 0) return false;
  if (forward) {
    return input(0) == kNarrow && input(1) == kNarrow && output(0) == kNarrow &&
           are(kNarrow, {output(3)}) &&
           are(kFloat, {input(2), input(3), output(1), output(2), output(4)}) &&
           are(kNone, {input(4), input(5)});
  }
  return input(3) == kNarrow && input(4) == kNarrow && output(0) == kNarrow &&
         are(kNarrow, {input(0)}) &&
         are(kFloat, {input(1), input(2), input(5), input(6), output(1), output(2)}) &&
         are(kNone, {input(7), input(8)});
}

std::span<const KernelEntry> cpu_kernels() { return kKernels; }

}  // namespace pipetrain::recurrent
