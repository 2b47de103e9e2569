// The fused programs of the networks that the program brings, as GPUs get them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_io/reader.h"
#include "ops/fused/fused_source.h"
#include "passes/build.h"
#include "passes/fuse_elementwise.h"
#include "passes/fuse_matmul_epilogues.h"
#include "passes/parameters.h"
#include "support/fused_chains.h"
#include "support/small_networks.h"
#include "zoo/zoo.h"

namespace pipetrain::test {

/// Of chains with one source, one.
inline void add_by_source(std::vector<FusedChain> chains, std::map<std::string, FusedChain>& out) {
  for (FusedChain& chain : chains) {
    const FusedProgram program =
        fused_program(chain.node.attributes, static_cast<int>(chain.inputs.size()));
    out.emplace(fused_source(program, chain.inputs, chain.outputs).text, std::move(chain));
  }
}

/// Of all networks of the zoo at the defaults of their shapes, and of those that tests bring, over
/// float32 and in mixed precision.
inline std::vector<TrainingGraph> graphs_for_gpus(std::int64_t samples) {
  std::vector<TrainingGraph> out;
  std::vector<OnnxModel> models;
  for (const ZooNetwork& network : zoo_networks()) {
    ZooOptions few;  // of what changes no chain
    if (network.defaults.vocab > 0) few.vocab = 64;
    if (network.defaults.vocab > 0 && network.defaults.depth > 0) few.depth = 1;
    const std::string bytes = build_zoo_network(network, few).onnx.bytes();
    models.push_back(read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {}));
  }
  models.push_back(difficult_network(/*tied=*/true));
  models.push_back(wide_network());
  for (const OnnxModel& model : models) {
    for (const DType precision : {DType::kFloat32, DType::kBFloat16})
      out.push_back(std::move(*graph_for_gpus(model, samples, precision)));
  }
  return out;
}

/// Their chains by source.
inline std::map<std::string, FusedChain> chains_of(const std::vector<TrainingGraph>& graphs) {
  std::map<std::string, FusedChain> out;
  for (const TrainingGraph& training : graphs) add_by_source(fused_chains(training.graph), out);
  return out;
}
inline std::map<std::string, FusedChain> all_chains(std::int64_t samples) {
  return chains_of(graphs_for_gpus(samples));
}

}  // namespace pipetrain::test
