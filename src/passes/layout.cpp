#include "passes/layout.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "graph/op.h"
#include "ops/conv/conv.h"
#include "ops/kernel/channel_block.h"
#include "ops/reduce/reduce_plan.h"
#include "ops/registry/registry.h"
#include "passes/value_readers.h"

namespace pipetrain {
namespace {

class LayoutPass {
 public:
  LayoutPass(TrainingGraph& training, Layout blocked)
      : training_(training),
        graph_(training.graph),
        blocked_(blocked),
        channels_last_(blocked == Layout::kChannelsLast),
        block_(blocked == Layout::kBlocked16 ? 16 : 8),
        fixed_(values_read_outside(training)) {}

  void run() {
    std::vector<Node> old = std::move(graph_.nodes);
    graph_.nodes.clear();
    new_index_.assign(old.size(), -1);
    for (std::size_t n = 0; n < old.size(); ++n) {
      Node node = std::move(old[n]);
      if (node.gradient_of) {
        node.gradient_of = {new_index_[static_cast<std::size_t>(node.gradient_of.index)]};
      }
      const std::vector<Layout> wanted = choose(node);
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i]) node.inputs[i] = in_layout(node.inputs[i], wanted[i], node);
      }
      new_index_[n] = static_cast<int>(graph_.nodes.size());
      for (const ValueId id : node.outputs) graph_[id].producer = {new_index_[n]};
      graph_.nodes.push_back(std::move(node));
    }
    for (Accumulation& accumulation : training_.accumulations) {
      accumulation.consumer = {new_index_[static_cast<std::size_t>(accumulation.consumer.index)]};
      PT_CHECK(!is_blocked(accumulation.contribution), kInternal,
               "{} is added to a row-major gradient", graph_[accumulation.contribution].name);
    }
  }

 private:
  bool divides(ValueId id) const {
    const Shape& shape = graph_[id].type.shape;
    return has_feature_map_axes(shape) && fills_blocks(shape, block_);
  }
  /// cuDNN has channels last of images only.
  bool has_feature_map_axes(const Shape& shape) const {
    return channels_last_ ? shape.rank() == 4 : shape.rank() >= 3 && shape.rank() <= 5;
  }
  /// Channels last are one block.
  bool is_blocked(ValueId id) const { return graph_[id].type.layout != Layout::kRowMajor; }

  /// Sets the layouts of a node's outputs; returns those that its inputs must have.
  std::vector<Layout> choose(const Node& node) {
    std::vector<Layout> wanted(node.inputs.size(), Layout::kRowMajor);
    if (node.part == Part::kPrepare || node.part == Part::kFinish) return wanted;
    if (node.op->traits.layout == LayoutRule::kConvolution) {
      channels_last_ ? choose_channels_last(node, wanted) : choose_convolution(node, wanted);
    } else if (channels_last_ && reduces_positions(node)) {
      wanted[0] = graph_[node.inputs[0]].type.layout;
    } else if (follows(node)) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i] && is_feature_map(node, node.inputs[i])) wanted[i] = blocked_;
      }
      for (const ValueId id : node.outputs) {
        if (is_feature_map(node, id)) graph_[id].type.layout = blocked_;
      }
    }
    return wanted;
  }

  /// Decided for each tensor of a convolution: the first input of a network has 3 channels.
  void choose_convolution(const Node& node, std::vector<Layout>& wanted) {
    const std::string_view op = node.op->name;
    const bool weight_gradient = op == "ConvWeightGrad";
    // What is shaped like the weight: an input, or the result.
    const Shape weight = graph_[weight_gradient ? node.outputs[0] : node.inputs[1]].type.shape;
    if (!is_fast_in_blocks(node, weight)) return;
    if (divides(node.inputs[0])) wanted[0] = blocked_;
    if (weight_gradient) {
      if (divides(node.inputs[1])) wanted[1] = blocked_;
    } else if (divides(node.outputs[0]) && !fixed_.contains(node.outputs[0])) {
      graph_[node.outputs[0]].type.layout = blocked_;
    }
  }

  /// Whether the kernels of a convolution between blocks are faster than those of row-major
  /// tensors.
  bool is_fast_in_blocks(const Node& node, const Shape& weight) const {
    const std::int64_t group = node.attributes.integer("group", 1);
    const bool depthwise = group > 1 && weight[0] == group && weight[1] == 1;
    if (depthwise && weight.rank() == 5) return false;
    if (group > 1 && !depthwise) return conv_groups_together(weight, group, block_) > 0;
    // Between row-major sequences these are matrix products and sums of rows: nothing is reordered.
    const bool reads_one_position = weight.count(2, weight.rank()) == 1;
    if (weight.rank() == 3 && (depthwise || reads_one_position)) return is_blocked(node.inputs[0]);
    return true;
  }

  /// All tensors of a convolution together, as cuDNN requires. The first input of a network has few
  /// channels, which cuDNN pads.
  void choose_channels_last(const Node& node, std::vector<Layout>& wanted) {
    const bool weight_gradient = node.op->name == "ConvWeightGrad";
    const Shape weight = graph_[weight_gradient ? node.outputs[0] : node.inputs[1]].type.shape;
    if (weight.rank() != 4 || weight[0] % block_ != 0) return;
    if (!weight_gradient && fixed_.contains(node.outputs[0])) return;
    wanted[0] = blocked_;
    // With one channel or a 1x1 kernel both layouts of a weight are the same.
    const bool lies_both_ways = weight[1] == 1 || weight.count(2, 4) == 1;
    if (weight_gradient || !lies_both_ways) wanted[1] = blocked_;
    if (!weight_gradient) graph_[node.outputs[0]].type.layout = blocked_;
  }

  /// A reduction over height and width of a channels-last tensor.
  bool reduces_positions(const Node& node) const {
    if (node.op->traits.layout != LayoutRule::kPositions) return false;
    if (!is_blocked(node.inputs[0])) return false;
    const Ints axes =
        node.attributes.has("axes")
            ? node.attributes.ints("axes")
            : axes_of_sum_to(graph_[node.inputs[0]].type.shape, graph_[node.outputs[0]].type.shape);
    const auto reduces = [&](std::int64_t axis) {
      return std::find(axes.begin(), axes.end(), axis) != axes.end();
    };
    return reduces(2) && reduces(3);
  }

  /// Whether `id` is one of the node's tensors (N, C, …), not a number per channel and the like.
  bool is_feature_map(const Node& node, ValueId id) const {
    if (!has_feature_map_axes(graph_[id].type.shape)) return false;
    if (!(node.op->flags & kElementwise)) return true;
    return graph_[id].type.shape == graph_[node.outputs[0]].type.shape;
  }

  /// A node that supports blocked tensors uses them if one of its inputs is blocked.
  bool follows(const Node& node) const {
    if (node.op->traits.layout != LayoutRule::kFollows && !takes_whole_blocks(node)) return false;
    bool any = false;
    for (const ValueId id : node.inputs) {
      if (!id || !is_feature_map(node, id)) continue;
      if (!divides(id)) return false;
      any = any || is_blocked(id);
    }
    return any && std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
             return !is_feature_map(node, id) || (divides(id) && !fixed_.contains(id));
           });
  }

  /// A Concat, Split or Slice along the channels, at multiples of the block: what follows checks
  /// the sizes of all tensors.
  bool takes_whole_blocks(const Node& node) const {
    if (node.op->traits.layout != LayoutRule::kWholeBlocks) return false;
    if (node.op->name != "Slice") return node.attributes.integer("axis") == 1;
    return node.attributes.ints("axes") == Ints{1} && node.attributes.ints("steps") == Ints{1} &&
           node.attributes.ints("starts")[0] % block_ == 0;
  }

  /// `id` in the layout that `reader` needs: itself or its reordered copy. A forward copy serves
  /// later forward nodes and the gradients of those, a backward copy only readers of the same
  /// forward node.
  ValueId in_layout(ValueId id, Layout layout, const Node& reader) {
    if (graph_[id].type.layout == layout) return id;
    if (channels_last_ && is_weight(id)) {
      const auto [found, added] = copies_.try_emplace({id, layout, Part::kPrepare, NodeId{}});
      if (added) found->second = add_reorder(id, layout, Part::kPrepare, NodeId{});
      return found->second;
    }
    const auto forward = copies_.find({id, layout, Part::kForward, NodeId{}});
    if (forward != copies_.end() && may_read(reader, forward->second)) return forward->second;
    const NodeId place = reader.part == Part::kForward ? NodeId{} : reader.gradient_of;
    if (reader.part == Part::kWeightGradient) {
      const auto earlier = copies_.find({id, layout, Part::kInputGradient, place});
      if (earlier != copies_.end()) return earlier->second;
    }
    const auto [found, added] = copies_.try_emplace({id, layout, reader.part, place});
    if (added) found->second = add_reorder(id, layout, reader.part, reader.gradient_of);
    return found->second;
  }

  /// Whether a forward copy lies before `reader` wherever the chain is cut. A gradient runs with
  /// its forward node, and only what that reads is sure to come first.
  bool may_read(const Node& reader, ValueId copy) const {
    if (!reader.gradient_of) return true;
    const std::vector<ValueId>& inputs = graph_[reader.gradient_of].inputs;
    return std::ranges::find(inputs, copy) != inputs.end();
  }

  /// Whether a value depends on parameters alone.
  bool is_weight(ValueId id) const {
    const Value& value = graph_[id];
    return value.role == Role::kParameter || value.role == Role::kConstant ||
           (value.producer && graph_[value.producer].part == Part::kPrepare);
  }

  ValueId add_reorder(ValueId id, Layout layout, Part part, NodeId gradient_of) {
    const bool plain = layout == Layout::kRowMajor;
    Value copy;
    copy.name = fmt::format("{} {}", graph_[id].name,
                            plain            ? "row-major"
                            : channels_last_ ? "channels last"
                                             : fmt::format("blocked by {}", block_));
    copy.type = {graph_[id].type.dtype, graph_[id].type.shape, layout};
    const bool backward = part == Part::kInputGradient || part == Part::kWeightGradient;
    copy.role = backward ? Role::kGradient : Role::kActivation;
    copy.producer = {static_cast<int>(graph_.nodes.size())};
    const ValueId out{static_cast<int>(graph_.values.size())};
    Node node;
    node.op = find_op("Reorder");
    node.attributes = {{"layout", static_cast<std::int64_t>(layout)}};
    node.inputs = {id};
    node.outputs = {out};
    node.name = copy.name;
    node.part = part;
    node.gradient_of = gradient_of;
    graph_.values.push_back(std::move(copy));
    graph_.nodes.push_back(std::move(node));
    return out;
  }

  TrainingGraph& training_;
  Graph& graph_;
  Layout blocked_;
  bool channels_last_;
  std::int64_t block_;       // channels come in multiples of it
  std::set<ValueId> fixed_;  // read from outside, where row-major is expected
  std::vector<int> new_index_;
  std::map<std::tuple<ValueId, Layout, Part, NodeId>, ValueId> copies_;
};

}  // namespace

void choose_layouts(TrainingGraph& training, Layout blocked) {
  // Only convolutions begin a region of blocked values.
  const bool begins = std::ranges::any_of(training.graph.nodes, [](const Node& node) {
    return node.op->traits.layout == LayoutRule::kConvolution;
  });
  if (blocked == Layout::kRowMajor || !begins) return;
  LayoutPass(training, blocked).run();
  training.graph.verify();
}

}  // namespace pipetrain
