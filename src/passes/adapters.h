// Low-rank adapters: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
// The weight W of a layer stays as it is, and x W becomes x W + scale (x Aᵀ) Bᵀ. Only A (rank ×
// inputs) and B (outputs × rank) are trained.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "onnx_io/model.h"
#include "passes/parameters.h"

namespace pipetrain {

struct AdapterOptions {
  std::int64_t rank = 0;             // 0: no adapters
  double alpha = 0;                  // scale × rank; 0: the rank, for a scale of 1
  // Globs over weights, or names of modules or the last part of them, as PEFT takes them.
  std::vector<std::string> targets;        // layers with adapters; empty: all that can have one
  std::vector<std::string> trained_whole;  // tensors that are trained themselves
};

/// The adapter of one weight.
struct Adapter {
  std::string module;  // PyTorch's name of the layer, where the file tells: "blocks.0.q_proj"
  std::string weight;  // its initializer
  std::string a, b;    // those of the adapter: (rank, inputs) and (outputs, rank), as PEFT has them
  double scale = 1;
  bool outputs_first = false;  // the weight is (outputs, inputs, …), not (inputs, outputs)
};

/// Adds adapters to the trained weights of MatMul, Gemm and 1×1 Conv nodes that nothing else reads,
/// and freezes all other tensors. New A are uniform within 1 / sqrt(inputs), as PEFT's, by the seed
/// and the name; B are 0. Error (kUsage) for a pattern without a match or a model without such
/// layers.
std::vector<Adapter> add_adapters(OnnxModel& model, std::map<std::string, TensorRule>& rules,
                                  const AdapterOptions& options, std::uint64_t seed);

/// W + scale B A in the shape of `weight` (float32), which stays as it is.
HostTensor merged_weight(const Adapter& adapter, const HostTensor& weight, const HostTensor& a,
                         const HostTensor& b);

}  // namespace pipetrain
