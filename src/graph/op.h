// OpDef, the device-free description of a canonical operator, and the contexts its functions work
// in.
//
// Gradient contract: a gradient rule ADDS NODES to the graph and says which value is the gradient
// of each input. Rules never sum over consumers and never accumulate over micro-batches:
// differentiate() inserts an n-ary Sum where a value fans out, and the runtime adds contributions
// to parameters in micro-batch order. The gradient of an input has exactly the input's shape (use
// `SumTo` after broadcasting).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/op_traits.h"

namespace pipetrain {

class GraphBuilder;

struct Cost {
  double flops = 0;
};

struct InferContext {
  const Attributes& attributes;
  std::span<const TensorType> inputs;  // kUndefined if absent
  std::vector<TensorType> outputs;     // to be filled in; its size is the number of outputs
};

class GradientContext {
 public:
  GradientContext(GraphBuilder& builder, NodeId node, std::span<const ValueId> output_gradients,
                  std::span<const bool> wanted);

  GraphBuilder& builder() { return builder_; }
  const Attributes& attributes() const;
  std::size_t input_count() const;
  /// Whether this input depends on a trainable parameter. Otherwise its gradient need not be built.
  bool wants(std::size_t input) const { return wanted_[input]; }
  ValueId input(std::size_t index) const;  // index -1 if absent
  ValueId output(std::size_t index) const;
  const TensorType& input_type(std::size_t index) const;
  const TensorType& output_type(std::size_t index) const;
  /// The gradient of output `index`; absent (index -1) when nothing depends on it.
  ValueId output_gradient(std::size_t index = 0) const { return output_gradients_[index]; }
  void set_input_gradient(std::size_t input, ValueId gradient) {
    input_gradients_[input] = gradient;
  }
  std::span<const ValueId> input_gradients() const { return input_gradients_; }

 private:
  GraphBuilder& builder_;
  NodeId node_;
  std::vector<ValueId> output_gradients_;
  std::vector<bool> wanted_;
  std::vector<ValueId> input_gradients_;
};

enum OpFlags : unsigned {
  kPlain = 0,
  kView = 1,         // output 0 is input 0's memory under another shape; no kernel is needed
  kElementwise = 2,  // output has the input's shape and layout; inputs of the output's shape may be
                     // of any equal layout
  kRandom = 4,       // depends on seed, step and sample index
};

struct OpDef {
  std::string_view name;
  unsigned flags = kPlain;
  /// Every operator must set each of them (tests/ops/registry/op_traits_test.cpp).
  OpTraits traits = {};
  /// Infers the output types; Error (kModel) for invalid attributes or shapes.
  void (*infer)(InferContext&) = nullptr;
  /// Null: the operator has no gradient (integer, boolean or piecewise constant results).
  void (*differentiate)(GradientContext&) = nullptr;
  /// Null: negligible arithmetic.
  Cost (*cost)(const Attributes&, std::span<const TensorType> inputs,
               std::span<const TensorType> outputs) = nullptr;
};

/// Options of the import of an ONNX file.
enum class BatchNormMode : std::uint8_t { kTrain, kAsFile, kFrozen };
struct ImportMode {
  bool training = true;  // false: the evaluation graph (no dropout, running statistics)
  BatchNormMode batch_norm = BatchNormMode::kTrain;
  bool dropout = true;
};

/// The import of one ONNX node. Inputs are values of the canonical graph.
class ImportContext {
 public:
  ImportContext(GraphBuilder& builder, std::string_view op_type, std::int64_t opset,
                const Attributes& attributes, std::vector<ValueId> inputs, std::size_t output_count,
                const ImportMode& mode);

  GraphBuilder& builder() { return builder_; }
  std::string_view op_type() const { return op_type_; }
  std::int64_t opset() const { return opset_; }
  const Attributes& attributes() const { return attributes_; }
  const ImportMode& mode() const { return mode_; }
  std::size_t input_count() const { return inputs_.size(); }
  std::size_t output_count() const { return outputs_.size(); }
  bool has_input(std::size_t index) const;
  /// The input; an Error (kModel) when it is absent.
  ValueId input(std::size_t index) const;
  const TensorType& type(std::size_t index) const;
  /// The input's content if it is constant, otherwise an empty tensor.
  HostTensor constant_or_empty(std::size_t index) const;
  /// The input's content; Error (kModel) naming `what` when it is not constant.
  HostTensor constant(std::size_t index, std::string_view what) const;
  /// The same for one number; Error (kModel) when the input has more elements, or none.
  std::int64_t scalar(std::size_t index, std::string_view what) const;
  double real_scalar(std::size_t index, std::string_view what) const;
  /// Error (kModel) when the node lists more outputs than the operator has.
  void expect_outputs(std::size_t most) const;
  void set_output(std::size_t index, ValueId value);
  std::span<const ValueId> outputs() const { return outputs_; }

 private:
  GraphBuilder& builder_;
  std::string_view op_type_;
  std::int64_t opset_;
  const Attributes& attributes_;
  std::vector<ValueId> inputs_;
  std::vector<ValueId> outputs_;
  const ImportMode& mode_;
};

/// The rule for one ONNX operator (domain ""): adds canonical nodes and sets every named output.
struct ImportRule {
  std::string_view op_type;
  void (*import)(ImportContext&) = nullptr;
};

}  // namespace pipetrain
