// Fused programs as GPUs run them, against their steps alone.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "ops/fused/fused.h"
#include "ops/kernel/kernel.h"

namespace pipetrain::test {

struct FusedChain {
  Node node;
  std::vector<TensorType> inputs, outputs;
};

/// A program over tensors of one shape, a number, a row, and a number for each channel.
struct RandomProgram {
  FusedProgram program;
  std::vector<HostTensor> inputs;
};
RandomProgram random_program(std::uint64_t seed, const Shape& shape);

/// Of each of five shapes as many random programs, over float32 and over tensors and steps that are
/// stored in different types; and some over feature maps with channels last.
std::vector<FusedChain> random_chains(int programs);
/// The fused nodes of a graph.
std::vector<FusedChain> fused_chains(const Graph& graph);

/// Runs each under the emulator: every step by the kernel that its operator has for GPUs; the same
/// as one kernel that runs them (what there is without a compiler at run time); the generated
/// kernel, compiled by the host's compiler. All give the same bits, over inputs too, and so do
/// samples that lie where no group of eight can be moved. Returns how many different kernels were
/// generated. With PIPETRAIN_TEST_DEVICE=cuda all that is what a real GPU does.
int check_fused_chains(const std::vector<FusedChain>& chains);

}  // namespace pipetrain::test
