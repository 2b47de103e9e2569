// Lowering resolves sequences and optionals: a name refers to a list of values or an optional one,
// and operators on it are evaluated at lowering.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/builder.h"
#include "onnx_io/model.h"

namespace pipetrain {

/// The meaning of a name of the file that is no tensor.
struct ValueList {
  bool is_sequence = true;      // else an optional of a tensor, with one value or none
  bool is_there = true;         // false: an optional without an element
  std::vector<ValueId> values;  // of a sequence in its order
};

/// What a name of the file stands for: a tensor, a list, or nothing.
struct TensorOrList {
  TensorOrList() = default;
  TensorOrList(ValueId value) : tensor(value) {}             // NOLINT: one of the two
  TensorOrList(ValueList value) : list(std::move(value)) {}  // NOLINT
  explicit operator bool() const { return tensor || list.has_value(); }

  ValueId tensor;
  std::optional<ValueList> list;
};

/// By name.
using ValueLists = std::map<std::string, ValueList>;

/// Gives a list its name. The memory that it takes is charged to the file that is read.
void keep_list(ValueLists& lists, const std::string& name, ValueList list);

/// Operators on sequences or optionals.
const std::set<std::string>& sequence_operators();
bool is_sequence_operator(const OnnxNode& node);

/// Evaluates such a node, or an Identity of a list. `inputs` are its tensors, absent where the name
/// is in `lists`; resulting lists are added to `lists`, resulting tensors are returned by output.
/// Error (kModel) with a hint where a place or length depends on data.
std::vector<ValueId> expand_sequence(const OnnxNode& node, const std::vector<ValueId>& inputs,
                                     ValueLists& lists, GraphBuilder& builder);

}  // namespace pipetrain
