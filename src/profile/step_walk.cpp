#include "profile/step_walk.h"

#include <algorithm>

#include "base/error.h"
#include "graph/op.h"

namespace pipetrain {
namespace {

std::size_t index_of(ValueId id) { return static_cast<std::size_t>(id.index); }

/// Memory for one value after the other: a block is free again after the last reader of its value.
class Blocks {
 public:
  /// The smallest free block that is large enough, else a new one.
  int take(std::size_t bytes) {
    int best = -1;
    for (const int block : free_) {
      const std::size_t size = bytes_[static_cast<std::size_t>(block)];
      if (size < bytes || size > kMostWaste * bytes) continue;
      if (best < 0 || size < bytes_[static_cast<std::size_t>(best)]) best = block;
    }
    if (best >= 0) {
      std::erase(free_, best);
      return best;
    }
    bytes_.push_back(bytes);
    return static_cast<int>(bytes_.size()) - 1;
  }
  void give_back(int block) { free_.push_back(block); }
  const std::vector<std::size_t>& bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kMostWaste = 2;
  std::vector<std::size_t> bytes_;
  std::vector<int> free_;
};

/// Which block holds each value; views lie in the block of what they show.
class Placement {
 public:
  explicit Placement(const TrainingGraph& training, const std::vector<bool>& is_read)
      : block_(training.graph.values.size(), -1) {
    const Graph& graph = training.graph;
    const std::vector<std::size_t> last = last_uses(graph);
    std::vector<std::vector<ValueId>> ending(graph.nodes.size());
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      if (node.op->flags & kView) {
        block_[index_of(node.outputs[0])] = block_[index_of(node.inputs[0])];
        owner_[index_of(node.outputs[0])] = owner_[index_of(node.inputs[0])];
      } else {
        for (const ValueId id : node.outputs) {
          if (!is_read[index_of(id)]) continue;
          block_[index_of(id)] = blocks_.take(graph[id].type.bytes());
          ending[std::max(last[index_of(id)], n)].push_back(id);
        }
      }
      for (const ValueId id : ending[n]) blocks_.give_back(block_[index_of(id)]);
    }
  }

  /// -1: not computed by a node.
  int block(ValueId id) const { return block_[index_of(id)]; }
  /// The value that a view shows, itself for all others.
  ValueId owner(ValueId id) const { return owner_[index_of(id)]; }
  const std::vector<std::size_t>& bytes() const { return blocks_.bytes(); }

 private:
  /// The last node that reads each value, itself or through views.
  std::vector<std::size_t> last_uses(const Graph& graph) {
    for (std::size_t v = 0; v < graph.values.size(); ++v) owner_.push_back({static_cast<int>(v)});
    for (const Node& node : graph.nodes) {
      if (node.op->flags & kView)
        owner_[index_of(node.outputs[0])] = owner_[index_of(node.inputs[0])];
    }
    std::vector<std::size_t> last(graph.values.size(), 0);
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      for (const ValueId id : graph.nodes[n].inputs) {
        if (id) last[index_of(owner_[index_of(id)])] = n;
      }
    }
    return last;
  }

  std::vector<int> block_;
  std::vector<ValueId> owner_;
  Blocks blocks_;
};

std::string measuring(const Node& node) {
  return fmt::format("measuring {} ({})", printable(node.name), node.op->name);
}

}  // namespace

StepWalk::StepWalk(const TrainingGraph& training, Backend backend, const SampleData& data,
                   const std::vector<bool>& is_read)
    : training_(training), workspace_bytes_(training.graph.nodes.size(), 0) {
  const Graph& graph = training.graph;
  const Placement placement(training, is_read);
  for (const std::size_t bytes : placement.bytes()) blocks_.emplace_back(bytes);
  const auto tensor = [&](ValueId id) -> Tensor {
    if (!id) return {};
    const int block = placement.block(id);
    if (block >= 0) return {graph[id].type, blocks_[static_cast<std::size_t>(block)].data()};
    if (graph[placement.owner(id)].producer) return {graph[id].type, nullptr};
    contents_.push_back(data.content(placement.owner(id)));
    return {graph[id].type, contents_.back().view().data};
  };
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.op->flags & kView) continue;
    Step step{n, nullptr, {}, {}};
    with_context([&] { return measuring(node); },
                 [&] {
                   step.kernel = make_kernel(
                       backend, {node, graph.input_types(node), graph.output_types(node)});
                 });
    for (const ValueId id : node.inputs) step.in.push_back(tensor(id));
    for (const ValueId id : node.outputs) step.out.push_back(tensor(id));
    workspace_bytes_[n] = step.kernel->workspace_bytes();
    steps_.push_back(std::move(step));
  }
  workspace_ = Buffer(*std::max_element(workspace_bytes_.begin(), workspace_bytes_.end()));
}

void StepWalk::run(double (*clock)(), std::span<double> seconds) {
  RunContext context;
  context.workspace = workspace_.data();
  context.samples = training_.micro_batch;
  for (Step& step : steps_) {
    with_context([&] { return measuring(training_.graph.nodes[step.node]); },
                 [&] {
                   const double start = clock();
                   step.kernel->run(step.in, step.out, context);
                   seconds[step.node] = clock() - start;
                 });
  }
}

}  // namespace pipetrain
