#include "passes/pad_rows.h"

#include <algorithm>
#include <set>

#include "graph/op.h"
#include "ops/matmul/matmul.h"

namespace pipetrain {
namespace {

class RowPadder {
 public:
  explicit RowPadder(TrainingGraph& training)
      : graph_(training.graph), readers_(graph_.values.size()) {
    for (const Node& node : graph_.nodes) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i]) readers_[at(node.inputs[i])].push_back({&node, i});
      }
    }
    for (const Accumulation& use : training.accumulations) outside_.insert(use.contribution);
  }

  int pad_logits() {
    int padded = 0;
    for (const Node& node : graph_.nodes) {
      if (node.op->name == "SoftmaxCrossEntropyGrad") padded += pad(node);
    }
    return padded;
  }

  int pad_weights() {
    int padded = 0;
    for (const Node& node : graph_.nodes) {
      if (node.op->name != "Cast" || graph_[node.inputs[0]].producer) continue;
      const ValueId rounded = node.outputs[0];
      const std::vector<Reader>& readers = readers_[at(rounded)];
      const bool for_products =
          !readers.empty() && std::all_of(readers.begin(), readers.end(), [&](const Reader& one) {
            return one.slot < 2 && multiplies(*one.node);
          });
      const Shape& shape = graph_[rounded].type.shape;
      const bool is_even =
          shape.rank() != 2 || (shape[0] % kRowMultiple == 0 && shape[1] % kRowMultiple == 0);
      if (!for_products || is_even || outside_.contains(rounded) ||
          !is_float(graph_[rounded].type.dtype) ||
          graph_[node.inputs[0]].type.dtype != DType::kFloat32 ||
          graph_[rounded].type.layout != Layout::kRowMajor)
        continue;
      graph_[rounded].type.layout = Layout::kPaddedRows;
      ++padded;
    }
    return padded;
  }

 private:
  struct Reader {
    const Node* node;
    std::size_t slot;
  };

  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id.index); }
  std::int64_t columns(ValueId id) const {
    const Shape& shape = graph_[id].type.shape;
    return shape.rank() < 2 ? 0 : shape[shape.rank() - 1];
  }
  /// A view with the same rows.
  bool keeps_rows(const Node& node) const {
    return node.op->name == "Reshape" && columns(node.inputs[0]) == columns(node.outputs[0]);
  }

  bool pad(const Node& gradient) {
    const ValueId dlogits = gradient.outputs[0];
    ValueId logits = gradient.inputs[0];
    if (columns(dlogits) % kRowMultiple == 0 || !graph_[logits].producer) return false;
    while (keeps_rows(graph_[graph_[logits].producer])) {
      logits = graph_[graph_[logits].producer].inputs[0];
      if (!graph_[logits].producer) return false;
    }
    const Node& product = graph_[graph_[logits].producer];
    if (!multiplies(product) || product.outputs[0] != logits) return false;
    std::vector<ValueId> found;
    if (!collect(logits, found) || !collect(dlogits, found)) return false;
    for (const ValueId id : found) graph_[id].type.layout = Layout::kPaddedRows;
    return true;
  }

  /// Adds a value and all views of its rows; false when somebody else reads one.
  bool collect(ValueId id, std::vector<ValueId>& found) const {
    if (graph_[id].type.layout != Layout::kRowMajor || outside_.contains(id)) return false;
    found.push_back(id);
    return std::all_of(readers_[at(id)].begin(), readers_[at(id)].end(), [&](const Reader& reader) {
      const std::string_view op = reader.node->op->name;
      if (op == "SoftmaxCrossEntropy" || op == "SoftmaxCrossEntropyGrad") return reader.slot == 0;
      if (keeps_rows(*reader.node)) return collect(reader.node->outputs[0], found);
      return reader.slot < 2 && multiplies(*reader.node);
    });
  }

  bool multiplies(const Node& node) const {
    KernelRequest request{node, {}, graph_.output_types(node)};
    for (const ValueId id : node.inputs)
      request.inputs.push_back(id ? graph_[id].type : TensorType{});
    return takes_padded_rows(request);
  }

  Graph& graph_;
  std::vector<std::vector<Reader>> readers_;
  std::set<ValueId> outside_;  // read by more than nodes
};

}  // namespace

int pad_logits(TrainingGraph& training) { return RowPadder(training).pad_logits(); }
int pad_weights(TrainingGraph& training) { return RowPadder(training).pad_weights(); }

}  // namespace pipetrain
