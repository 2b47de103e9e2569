// Replaces nodes of a forward graph in place, so that the order stays topological.
#pragma once

#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace pipetrain {

class Rewriter {
 public:
  explicit Rewriter(Graph& graph) : graph_(graph) {}

  /// Starts the replacement of node `index`; emit() adds to it.
  void replace(std::size_t index);
  /// Appends a node and returns its outputs, of which the first is `result` if that is given.
  std::vector<ValueId> emit(std::string_view op, std::vector<ValueId> inputs, Attributes attributes,
                            ValueId result = {});
  /// The same with a place for every output; those that are absent become new values.
  std::vector<ValueId> emit_all(std::string_view op, std::vector<ValueId> inputs,
                                Attributes attributes, std::span<const ValueId> results);
  /// A view of `x`, or `x` itself when it has the shape.
  ValueId reshape(ValueId x, const Shape& shape);
  /// The same as the last node of a replacement.
  void reshape_into(ValueId x, const Shape& shape, ValueId result);
  ValueId constant(HostTensor tensor);
  /// What `x` is a Transpose of, emitted ones included; absent when it is something else.
  ValueId transposed_input(ValueId x, const Ints& perm) const;
  bool replaced(std::size_t index) const { return replacements_.contains(index); }

  /// Applies the replacements; node indices change.
  void apply();

 private:
  Graph& graph_;
  std::map<std::size_t, std::vector<Node>> replacements_;
  std::size_t current_ = 0;
};

}  // namespace pipetrain
