// Adds nodes to a Graph: infers types, evaluates what is constant, keeps the order topological.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/op.h"

namespace pipetrain {

constexpr double kMostBytesOfValue = 1099511627776.0;  // 1 TiB
constexpr std::size_t kMostAxesOfValue = 64;           // of results; files have fewer

class GraphBuilder {
 public:
  using FindOp = std::function<const OpDef*(std::string_view)>;
  /// Evaluates one node with constant inputs; returns an empty list if it cannot.
  using Evaluate = std::function<std::vector<HostTensor>(
      const Node&, std::span<const HostTensor> inputs, std::span<const TensorType> outputs)>;

  GraphBuilder(Graph& graph, FindOp find_op, Evaluate evaluate);

  Graph& graph() { return graph_; }
  const TensorType& type(ValueId id) const { return graph_[id].type; }
  const Shape& shape(ValueId id) const { return graph_[id].type.shape; }
  std::string name(ValueId id) const { return graph_[id].name; }

  /// Adds a node and returns its outputs. Folds it into constants when every input is a constant
  /// (and it is not random). Errors of inference get the frame "while adding OP for NODE".
  std::vector<ValueId> add_all(std::string_view op, std::vector<ValueId> inputs,
                               Attributes attributes = {});
  /// The same, returning the first output only.
  ValueId add(std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {});

  ValueId add_value(Value value);
  ValueId constant(HostTensor tensor, std::string name = "");
  /// A scalar constant: float64 and integers of their type, other floats as float32. Error (kModel)
  /// for a number that is none of the type's integers.
  ValueId scalar(double value, DType dtype = DType::kFloat32);

  /// Shorthands for frequent operators.
  ValueId reshape(ValueId x,
                  const Shape& shape);  // returns x if the shape is already right
  ValueId sum_to(
      ValueId x,
      const Shape& shape);  // reduces broadcast axes; returns x if the shape is already right

  /// Sets the origin of the nodes added from now on.
  void set_origin(std::string name, Part part, NodeId gradient_of = {});
  void rename(ValueId id, std::string name) { graph_[id].name = std::move(name); }

 private:
  Graph& graph_;
  FindOp find_op_;
  Evaluate evaluate_;
  std::string origin_name_;
  Part origin_part_ = Part::kForward;
  NodeId origin_gradient_of_;
};

}  // namespace pipetrain
