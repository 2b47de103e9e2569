#include "passes/pack_weights.h"

#include <fmt/core.h>

#include <map>
#include <utility>

#include "graph/op.h"
#include "ops/conv/conv.h"
#include "ops/matmul/matmul.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

class WeightPacking {
 public:
  explicit WeightPacking(TrainingGraph& training) : training_(training), graph_(training.graph) {}

  int run() {
    find_wanted();
    std::vector<Node> old = std::move(graph_.nodes);
    graph_.nodes.clear();
    new_index_.assign(old.size(), -1);
    for (std::size_t n = 0; n < old.size(); ++n) {
      Node node = std::move(old[n]);
      if (drop_unread(node)) continue;
      if (node.gradient_of) node.gradient_of = moved(node.gradient_of);
      if (is_wanted_[n]) use_packed(node);
      new_index_[n] = static_cast<int>(graph_.nodes.size());
      add(std::move(node));
    }
    for (Accumulation& accumulation : training_.accumulations)
      accumulation.consumer = moved(accumulation.consumer);
    return static_cast<int>(packed_.size());
  }

 private:
  NodeId moved(NodeId id) const { return {new_index_[static_cast<std::size_t>(id.index)]}; }

  void add(Node node) {
    for (const ValueId id : node.outputs)
      graph_[id].producer = {static_cast<int>(graph_.nodes.size())};
    graph_.nodes.push_back(std::move(node));
  }

  /// Also finds rounded copies of weights with other readers than packed matmuls, which are packed
  /// from the weights themselves.
  void find_wanted() {
    is_read_.assign(graph_.values.size(), false);
    for (const Node& node : graph_.nodes) {
      is_wanted_.push_back(is_wanted(node));
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const ValueId id = node.inputs[i];
        if (id && !(is_wanted_.back() && i == 1))
          is_read_[static_cast<std::size_t>(id.index)] = true;
      }
      if (is_rounding(node)) rounded_from_[node.outputs[0]] = node.inputs[0];
    }
  }

  bool is_rounding(const Node& node) const {
    return node.op->name == "Cast" && node.part == Part::kPrepare &&
           graph_[node.inputs[0]].type.dtype == DType::kFloat32 &&
           graph_[node.outputs[0]].type.dtype == DType::kBFloat16;
  }

  bool drop_unread(const Node& node) {
    if (!is_rounding(node) || is_read_[static_cast<std::size_t>(node.outputs[0].index)])
      return false;
    graph_[node.outputs[0]].producer = {};
    return true;
  }

  KernelRequest request_of(const Node& node) const {
    return {node, graph_.input_types(node), graph_.output_types(node)};
  }

  bool is_wanted(const Node& node) const {
    const std::string_view op = node.op->name;
    const bool convolution = op == "Conv" || op == "ConvInputGrad";
    if (op != "MatMul" && !convolution) return false;
    if (node.part != Part::kForward && node.part != Part::kInputGradient) return false;
    const Value& weight = graph_[node.inputs[1]];
    const bool stays = weight.role == Role::kParameter ||
                       (weight.producer && graph_[weight.producer].part == Part::kPrepare);
    if (!stays) return false;
    const KernelRequest request = request_of(node);
    return convolution ? convolution_packing_pays(request) : packing_pays(request);
  }

  void use_packed(Node& node) {
    const ValueId weight = node.inputs[1];
    if (node.op->name == "MatMul") {
      const bool trans_b = node.attributes.flag("trans_b");
      // The packed copy of the other direction is reused where that is as fast.
      const bool transposed = !packed_.contains({weight, trans_b}) &&
                              packed_.contains({weight, !trans_b}) &&
                              takes_packed_transpose(request_of(node));
      const bool direction = trans_b != transposed;
      node.inputs[1] = packed(weight, "PackMatrix", "trans_b", direction,
                              direction ? " packed" : " packed by columns");
      node.op = find_op("MatMulPacked");
      node.attributes = {{"n", graph_[node.outputs[0]].type.shape.dims().back()}};
      if (transposed) node.attributes.set("transposed", std::int64_t{1});
      return;
    }
    const bool input_gradient = node.op->name == "ConvInputGrad";
    node.inputs[1] = packed(weight, "PackConvolution", "input_gradient", input_gradient,
                            input_gradient ? " packed by inputs" : " packed");
    node.op = find_op(input_gradient ? "ConvInputGradPacked" : "ConvPacked");
    node.attributes.set("weight_shape", graph_[weight].type.shape.dims());
  }

  /// The packed copy of a weight for one direction, created at its first reader.
  ValueId packed(ValueId weight, std::string_view op, const char* attribute, bool direction,
                 std::string_view suffix) {
    const auto [found, added] = packed_.try_emplace({weight, direction});
    if (!added) return found->second;
    Node node;
    node.op = find_op(op);
    node.attributes = {{attribute, std::int64_t{direction}}};
    const auto rounded = rounded_from_.find(weight);
    node.inputs = {rounded == rounded_from_.end() ? weight : rounded->second};
    const DType dtype = graph_[weight].type.dtype;
    if (dtype != DType::kFloat32) node.attributes.set("to", static_cast<std::int64_t>(dtype));
    node.name = fmt::format("{}{}", graph_[weight].name, suffix);
    node.part = Part::kPrepare;
    const std::vector<TensorType> inputs = {graph_[node.inputs[0]].type};
    InferContext infer{node.attributes, inputs, std::vector<TensorType>(1)};
    node.op->infer(infer);
    Value value;
    value.name = node.name;
    value.type = infer.outputs[0];
    value.role = Role::kActivation;
    found->second = {static_cast<int>(graph_.values.size())};
    node.outputs = {found->second};
    graph_.values.push_back(std::move(value));
    add(std::move(node));
    return found->second;
  }

  TrainingGraph& training_;
  Graph& graph_;
  std::vector<bool> is_wanted_;  // by node
  std::vector<bool> is_read_;    // by value
  std::map<ValueId, ValueId> rounded_from_;
  std::vector<int> new_index_;
  std::map<std::pair<ValueId, bool>, ValueId> packed_;
};

}  // namespace

int pack_weights(TrainingGraph& training) {
  const int copies = WeightPacking(training).run();
  training.graph.verify();
  return copies;
}

}  // namespace pipetrain
