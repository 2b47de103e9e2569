// Finds the tensors of a model by name, for more than a few of them.
#pragma once

#include <string_view>

#include "base/name_table.h"
#include "onnx_io/model.h"

namespace pipetrain {

/// The tensors of a model, which must outlive it.
class TensorsByName {
 public:
  explicit TensorsByName(const OnnxModel& model) {
    initializers_.reserve(model.initializers.size());
    for (const OnnxInitializer& initializer : model.initializers)
      initializers_.add(initializer.name, &initializer);
    for (const OnnxNode& node : model.nodes) {
      if (node.op_type == "Constant" && node.has_output(0)) constants_.add(node.outputs[0], &node);
    }
  }

  /// Null where there is none.
  const OnnxInitializer* initializer(std::string_view name) const {
    const auto* found = initializers_.find(name);
    return found ? *found : nullptr;
  }
  /// The Constant node with this output.
  const OnnxNode* constant(std::string_view name) const {
    const auto* found = constants_.find(name);
    return found ? *found : nullptr;
  }

 private:
  NameTable<const OnnxInitializer*> initializers_;
  NameTable<const OnnxNode*> constants_;
};

}  // namespace pipetrain
