#include "passes/fuse_matmul_epilogues.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "graph/op.h"
#include "ops/registry/registry.h"
#include "passes/fuse.h"
#include "passes/value_readers.h"

namespace pipetrain {
namespace {

class ProductFuser {
 public:
  explicit ProductFuser(TrainingGraph& training)
      : training_(training),
        graph_(training.graph),
        readers_(readers_of_values(graph_)),
        outside_(values_read_outside(training)),
        heir_(graph_.nodes.size()) {}

  int fold_biases() {
    int folded = 0;
    for (int n = 0; n < count(); ++n) folded += fold_bias({n});
    finish(folded);
    return folded;
  }

  FusedMatMulEpilogues fuse() {
    FusedMatMulEpilogues out;
    for (int n = 0; n < count(); ++n) {
      out.activations += fuse_activation({n});
      out.sums += fuse_sum({n});
    }
    finish(out.activations + out.sums);
    return out;
  }

 private:
  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id.index); }
  int count() const { return static_cast<int>(graph_.nodes.size()); }
  bool is_gone(NodeId id) const {
    return static_cast<bool>(heir_[static_cast<std::size_t>(id.index)]);
  }
  void finish(int changes) {
    if (changes > 0) remove_nodes(training_, heir_);
  }

  bool is_view(NodeId id) const { return id && graph_[id].op->name == "Reshape"; }
  /// The value that `id` is a reshaped view of, or itself.
  ValueId root(ValueId id) const {
    while (is_view(graph_[id].producer)) id = graph_[graph_[id].producer].inputs[0];
    return id;
  }
  /// The forward matmul whose result, maybe reshaped, is `id`, without other readers.
  NodeId product_of(ValueId id) const {
    NodeId producer = graph_[id].producer;
    while (is_view(producer)) {
      const ValueId from = graph_[producer].inputs[0];
      if (readers_[at(from)].size() != 1 || outside_.contains(from)) return {};
      producer = graph_[from].producer;
    }
    const bool is_product = producer && !is_gone(producer) &&
                            graph_[producer].op->name == "MatMul" &&
                            graph_[producer].part == Part::kForward;
    return is_product ? producer : NodeId{};
  }

  bool fold_bias(NodeId id) {
    const Node& add = graph_[id];
    if (add.op->name != "Add" || add.part != Part::kForward) return false;
    for (const std::size_t slot : {0, 1}) {
      const ValueId z = add.inputs[slot], bias = add.inputs[1 - slot], y = add.outputs[0];
      const NodeId product = product_of(z);
      if (!product || readers_[at(z)].size() != 1 || outside_.contains(z)) continue;
      if (graph_[product].inputs.size() > 2 && graph_[product].inputs[2]) continue;
      const TensorType& type = graph_[graph_[product].outputs[0]].type;
      const Shape row{type.shape[type.shape.rank() - 1]};
      const NodeId made = graph_[bias].producer;
      if (graph_[bias].type.shape != row || graph_[z].type != graph_[y].type) continue;
      if (made && made.index >= product.index) continue;
      graph_[product].inputs.resize(2);
      graph_[product].inputs.push_back(bias);
      // The result of the matmul, or its view, now includes the bias.
      const NodeId last = graph_[z].producer;
      graph_[last].outputs[0] = y;
      graph_[y].producer = last;
      heir_[static_cast<std::size_t>(id.index)] = product;
      readers_[at(bias)].push_back(product);
      return true;
    }
    return false;
  }

  bool fuse_activation(NodeId id) {
    const Node& activation = graph_[id];
    if (activation.part != Part::kForward) return false;
    const bool relu = activation.op->name == "Relu";
    const bool gelu = activation.op->name == "Gelu" &&
                      activation.attributes.text("approximate", "none") == "tanh";
    if (!relu && !gelu) return false;
    const ValueId z = activation.inputs[0], y = activation.outputs[0];
    const NodeId product = product_of(z);
    if (!product || graph_[z].type != graph_[y].type || outside_.contains(z)) return false;
    const bool kept = readers_[at(z)].size() > 1;
    if (relu && kept) return false;
    Node& node = graph_[product];
    node.attributes.set("activation", std::string(activation.op->name));
    if (gelu) node.attributes.set("approximate", std::string("tanh"));
    node.op = find_op("MatMulActivation");
    const ValueId plain = node.outputs[0];
    if (plain == z) {
      node.outputs = {y};
      if (kept) node.outputs.push_back(z);
      graph_[y].producer = product;
      heir_[static_cast<std::size_t>(id.index)] = product;
    } else {
      reshape_behind(id, product, plain, kept);
    }
    return true;
  }

  /// The activation node becomes a view of the matmul's new result.
  void reshape_behind(NodeId id, NodeId product, ValueId plain, bool kept) {
    Value result;
    result.name = graph_[graph_[id].outputs[0]].name + " rows";
    result.type = graph_[plain].type;
    result.role = graph_[plain].role;
    result.producer = product;
    const ValueId rows{static_cast<int>(graph_.values.size())};
    graph_.values.push_back(std::move(result));
    readers_.emplace_back();
    Node& node = graph_[product];
    node.outputs = {rows};
    if (kept) {
      node.outputs.push_back(plain);
    } else {
      // Views of removed values.
      for (NodeId view = graph_[graph_[id].inputs[0]].producer; view != product;
           view = graph_[graph_[view].inputs[0]].producer)
        heir_[static_cast<std::size_t>(view.index)] = product;
    }
    Node& view = graph_[id];
    view.op = find_op("Reshape");
    view.attributes = {{"shape", graph_[view.outputs[0]].type.shape.dims()}};
    view.inputs = {rows};
    for (Node& other : graph_.nodes) {
      if (other.gradient_of == id) other.gradient_of = product;
    }
  }

  /// Whether a node sums its input over all axes but the last.
  bool sums_rows(const Node& node) const {
    const Shape& from = graph_[node.inputs[0]].type.shape;
    if (graph_[node.outputs[0]].type.shape != Shape{from[from.rank() - 1]}) return false;
    if (node.op->name == "SumTo") return from.rank() > 1;
    if (node.op->name != "ReduceSum") return false;
    Ints axes(from.rank() - 1);
    std::iota(axes.begin(), axes.end(), 0);
    return node.attributes.ints("axes", {}) == axes;
  }

  /// The weight's gradient that reads what `sum` sums, and by which operand.
  NodeId product_beside(const Node& sum, std::int64_t* operand) const {
    const ValueId summed = root(sum.inputs[0]);
    for (int n = 0; n < count(); ++n) {
      const Node& node = graph_.nodes[static_cast<std::size_t>(n)];
      if (node.op->name != "MatMul" || node.part != Part::kWeightGradient || is_gone({n})) continue;
      if (node.gradient_of != sum.gradient_of || node.inputs.size() > 2) continue;
      if (graph_[node.outputs[0]].type.dtype != graph_[sum.outputs[0]].type.dtype) continue;
      for (const std::int64_t slot : {0, 1}) {
        const ValueId one = node.inputs[static_cast<std::size_t>(slot)];
        const ValueId other = node.inputs[static_cast<std::size_t>(1 - slot)];
        if (root(one) != summed || graph_[one].type.shape.rank() != 2 ||
            graph_[other].type.shape.rank() != 2)
          continue;
        if (Shape{graph_[one].type.shape[1]} != graph_[sum.outputs[0]].type.shape) continue;
        if (node.attributes.flag(slot == 0 ? "trans_a" : "trans_b") != (slot == 0)) continue;
        *operand = slot;
        return {n};
      }
    }
    return {};
  }

  bool fuse_sum(NodeId id) {
    const Node& sum = graph_[id];
    if (sum.part != Part::kWeightGradient || is_gone(id)) return false;
    if (sum.op->name != "ReduceSum" && sum.op->name != "SumTo") return false;
    if (!sum.gradient_of || !sums_rows(sum)) return false;
    std::int64_t operand = 0;
    const NodeId product = product_beside(sum, &operand);
    if (!product) return false;
    const NodeId first = std::min(id, product), last = std::max(id, product);
    for (const NodeId reader : readers_[at(graph_[first].outputs[0])]) {
      if (reader < last) return false;
    }
    Node node = graph_[product];
    node.op = find_op("MatMulSums");
    node.attributes.set("summed", operand);
    node.outputs = {graph_[product].outputs[0], sum.outputs[0]};
    heir_[static_cast<std::size_t>(first.index)] = last;
    graph_[last] = std::move(node);
    return true;
  }

  TrainingGraph& training_;
  Graph& graph_;
  std::vector<std::vector<NodeId>> readers_;
  std::set<ValueId> outside_;  // read by more than nodes
  std::vector<NodeId> heir_;
};

}  // namespace

int fold_biases(TrainingGraph& training) {
  const int folded = ProductFuser(training).fold_biases();
  training.graph.verify();
  return folded;
}

FusedMatMulEpilogues fuse_matmul_epilogues(TrainingGraph& training) {
  const FusedMatMulEpilogues fused = ProductFuser(training).fuse();
  training.graph.verify();
  return fused;
}

}  // namespace pipetrain
