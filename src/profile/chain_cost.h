// The costs of the chain of forward nodes for the planner, independent of graph and device.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace pipetrain {

/// An element shares memory with an earlier element (a tied weight, an activation that two
/// gradients read). It is counted again only if a cut separates the two.
struct Reuse {
  int previous = 0;  // the last element before this one that needs it
  std::size_t parameter_bytes = 0;
  std::size_t more_gradient_bytes = 0;
  std::size_t fixed_bytes = 0;
  std::size_t constant_bytes = 0;
  std::size_t saved_bytes = 0;
};

/// One forward node with the gradient nodes that belong to it. Times and bytes are of one
/// micro-batch.
struct ChainCost {
  std::string name;
  double forward_seconds = 0;
  double input_gradient_seconds = 0;
  double weight_gradient_seconds = 0;
  /// Once per optimizer step: preparing weights, finishing gradients, updating parameters.
  double step_seconds = 0;
  /// What no earlier element needs already: trained parameters; the same without gradient
  /// (parameters that nothing depends on, prepared forms of weights); on devices, constants such as
  /// frozen weights, one copy for all weight versions; activations kept from forward to backward.
  std::size_t parameter_bytes = 0;
  std::size_t fixed_bytes = 0;
  std::size_t constant_bytes = 0;
  std::size_t saved_bytes = 0;
  /// Gradients of further uses of these parameters: each stage that holds one sums up all.
  std::size_t more_gradient_bytes = 0;
  /// Alive while one of its kernels runs: outputs that are not kept, gradients, workspace.
  std::size_t transient_bytes = 0;
  std::vector<Reuse> reuses;
};

/// The gradient of one use of a trained parameter that several elements need. Once per optimizer
/// step it goes to all stages that have one of them.
struct TiedGradient {
  int element = 0;  // where the use is
  std::size_t bytes = 0;
  std::vector<int> needed_by;  // elements, in order
};

struct ChainCosts {
  std::vector<ChainCost> elements;
  /// forward_bytes[i], backward_bytes[i]: bytes of activations, and of gradients, of one
  /// micro-batch that cross a cut before element i; elements.size() + 1 long.
  std::vector<std::size_t> forward_bytes, backward_bytes;
  std::vector<TiedGradient> tied = {};
};

}  // namespace pipetrain
