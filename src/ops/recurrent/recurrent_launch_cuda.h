// Recurrences, a launch or two for each time step (C++17: nvcc compiles this file). Tensors as
// ops/recurrent/recurrent.h has them; null ones are absent.
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain::recurrent {

/// An activation after its clip; `kind` is the number of an ActivationKind.
struct GpuFunction {
  int kind;
  float alpha, beta;
  float clip;  // infinity: none
};

struct Layer {
  std::int64_t steps, samples, hidden;
  bool reverse;
  const std::int32_t* lengths;
};

struct LstmForward {
  Layer layer;
  GpuFunction gate, cell, output;
  bool coupled;  // the forget gate is 1 - the input gate
  ConstFloatView gates, r, h0, c0, peepholes;
  FloatView y, last_h, last_c, activated, cells;
  float* workspace;  // 3 states (samples, hidden)
};
void launch_lstm(const LstmForward& work, const CudaQueue& queue);

struct LstmBackward {
  Layer layer;
  GpuFunction gate, cell, output;
  bool coupled;
  ConstFloatView dy, dlast_h, dlast_c, r, activated, cells, c0, peepholes;
  FloatView dgates, dh0, dc0;
  float* workspace;  // 10 states
};
void launch_lstm_gradient(const LstmBackward& work, const CudaQueue& queue);
void launch_peephole_gradient(const Layer& layer, const ConstFloatView& dgates,
                              const ConstFloatView& cells, const ConstFloatView& c0,
                              const FloatView& dpeepholes, const CudaQueue& queue);

struct GruForward {
  Layer layer;
  GpuFunction gate, candidate;
  bool after;  // linear before reset
  ConstFloatView gates, r, bias, h0;
  FloatView y, last_h, activated, parts;
  float* workspace;  // 4 states
};
void launch_gru(const GruForward& work, const CudaQueue& queue);

struct GruBackward {
  Layer layer;
  GpuFunction gate, candidate;
  bool after;
  ConstFloatView dy, dlast_h, r, activated, parts, y, h0;
  FloatView dgates, drecurrent, dh0;
  float* workspace;  // 7 states
};
void launch_gru_gradient(const GruBackward& work, const CudaQueue& queue);

struct RnnForward {
  Layer layer;
  GpuFunction function;
  ConstFloatView gates, r, h0;
  FloatView y, last_h;
  float* workspace;  // 2 states
};
void launch_rnn(const RnnForward& work, const CudaQueue& queue);

struct RnnBackward {
  Layer layer;
  GpuFunction function;
  ConstFloatView dy, dlast_h, r, y;
  FloatView dgates, dh0;
  float* workspace;  // 3 states
};
void launch_rnn_gradient(const RnnBackward& work, const CudaQueue& queue);

/// The state before each step, (steps, samples, hidden), 0 where a sample has ended.
void launch_states_before(const Layer& layer, const ConstFloatView& y, const ConstFloatView& h0,
                          const FloatView& before, const CudaQueue& queue);
/// dr of `gates` gates, from these; of the last gate from `parts` where they are there.
void launch_recurrent_weight_gradient(const Layer& layer, std::int64_t gates,
                                      const ConstFloatView& dgates, const ConstFloatView& before,
                                      const ConstFloatView& parts, const FloatView& dr,
                                      const CudaQueue& queue);

}  // namespace pipetrain::recurrent
