// The training graph: SSA values with static types, nodes in topological order. After lowering it
// holds canonical operators only (src/ops), whatever opset the file used; after differentiation it
// holds the backward pass as well.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/attributes.h"
#include "tensor/tensor.h"

namespace pipetrain {

struct OpDef;

/// Strong indices into Graph::values and Graph::nodes; -1 means absent.
struct ValueId {
  int index = -1;
  explicit operator bool() const { return index >= 0; }
  friend auto operator<=>(const ValueId&, const ValueId&) = default;
};
struct NodeId {
  int index = -1;
  explicit operator bool() const { return index >= 0; }
  friend auto operator<=>(const NodeId&, const NodeId&) = default;
};

enum class Role : std::uint8_t {
  kInput,       // a data tensor of the model, one slice per micro-batch
  kLabel,       // the target of the loss, one slice per micro-batch
  kParameter,   // trainable
  kState,       // running statistics: updated, not trained
  kConstant,    // known before training
  kLossScale,   // scalar: 1 / (samples or tokens of the mini-batch), given by the runtime each step
  kActivation,  // computed by the forward pass
  kGradient,    // computed by the backward pass
  kAccumulator,  // sum of a weight-gradient contribution over the micro-batches of a step, in their
                 // order
  kBatched,      // one value of several micro-batches, concatenated (batched weight gradients)
};

/// When a node runs.
enum class Part : std::uint8_t {
  kPrepare,         // depends on parameters and constants only: once per weight version
  kForward,         // F: once per micro-batch
  kInputGradient,   // I: an activation gradient depends on it
  kWeightGradient,  // W: only parameter gradients depend on it
  kBatchGradient,   // W of several micro-batches at once, from their concatenated values
  kFinish,          // once per step, from the accumulators to the parameters' gradients
};

struct Value {
  std::string name;
  TensorType type;
  Role role = Role::kActivation;
  NodeId producer;
  HostTensor data;  // the constant, or the initial content of a parameter or state
};

struct Node {
  const OpDef* op = nullptr;
  Attributes attributes;
  std::vector<ValueId> inputs;  // an absent optional input has index -1
  std::vector<ValueId> outputs;
  std::string name;  // of the ONNX node that it was imported from
  Part part = Part::kForward;
  NodeId gradient_of;  // the forward node whose gradient it computes
};

struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;

  Value& operator[](ValueId id) { return values[static_cast<std::size_t>(id.index)]; }
  const Value& operator[](ValueId id) const { return values[static_cast<std::size_t>(id.index)]; }
  Node& operator[](NodeId id) { return nodes[static_cast<std::size_t>(id.index)]; }
  const Node& operator[](NodeId id) const { return nodes[static_cast<std::size_t>(id.index)]; }

  /// Types of a node's inputs (kUndefined if absent) and outputs.
  std::vector<TensorType> input_types(const Node& node) const;
  std::vector<TensorType> output_types(const Node& node) const;
  /// One line per node, for people and for golden tests.
  std::string to_text() const;
  /// Checks the invariants that hold after every pass, Error (kInternal) if one is violated: values
  /// are defined before use, producers are consistent, types are known.
  void verify() const;
};

}  // namespace pipetrain
