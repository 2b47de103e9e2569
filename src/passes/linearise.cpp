#include "passes/linearise.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/index.h"
#include "graph/op.h"

namespace pipetrain {

namespace {

/// The forward nodes in the order of the graph.
std::vector<NodeId> graph_order(const Graph& graph) {
  std::vector<NodeId> order;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].part == Part::kForward) order.push_back({static_cast<int>(n)});
  }
  return order;
}

/// Greedy: of the ready nodes picks the one that leaves the fewest live bytes, gradients included.
/// Ties: the first in the graph. What running a node adds is kept up to date, so the time is near
/// linear in the uses of values.
class SmallestLiveCut {
 public:
  explicit SmallestLiveCut(const Graph& graph)
      : graph_(graph),
        values_(graph.values.size()),
        growth_(graph.nodes.size(), 0),
        waits_for_(graph.nodes.size(), 0),
        ran_(graph.nodes.size(), false),
        read_at_(graph.nodes.size()),
        successors_(graph.nodes.size()) {
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      const int place = place_of(n);
      if (place < 0) continue;
      for (const ValueId id : distinct(graph.nodes[n].inputs)) {
        const NodeId producer = graph[id].producer;
        if (!producer || graph.nodes[at(producer.index)].part != Part::kForward) continue;
        read_at_[at(place)].push_back(id);
        if (graph.nodes[n].part != Part::kForward) continue;
        ++waits_for_[n];
        successors_[at(producer.index)].push_back(static_cast<int>(n));
      }
    }
    for (std::size_t n = 0; n < read_at_.size(); ++n) {
      read_at_[n] = distinct(read_at_[n]);
      for (const ValueId id : read_at_[n]) {
        ++values_[at(id.index)].readers;
        values_[at(id.index)].sum_of_readers += static_cast<int>(n);
      }
    }
    for (std::size_t n = 0; n < read_at_.size(); ++n) {
      for (const ValueId id : graph.nodes[n].outputs)
        if (values_[at(id.index)].readers > 0) growth_[n] += bytes_of(id);
      for (const ValueId id : read_at_[n])
        if (values_[at(id.index)].readers == 1) growth_[n] -= bytes_of(id);
    }
  }

  std::vector<NodeId> run() {
    for (const NodeId id : graph_order(graph_)) {
      if (waits_for_[at(id.index)] == 0) ready_.emplace(growth_[at(id.index)], id.index);
    }
    std::vector<NodeId> order;
    while (!ready_.empty()) {
      const int next = ready_.begin()->second;
      ready_.erase(ready_.begin());
      ran_[at(next)] = true;
      order.push_back({next});
      for (const ValueId id : read_at_[at(next)]) remove_reader(id, next);
      for (const int successor : successors_[at(next)]) {
        if (--waits_for_[at(successor)] == 0) ready_.emplace(growth_[at(successor)], successor);
      }
    }
    return order;
  }

 private:
  struct Live {
    int readers = 0;                  // forward nodes, still to come
    std::int64_t sum_of_readers = 0;  // of their indices: the index of the last one
  };

  static std::vector<ValueId> distinct(std::vector<ValueId> ids) {
    std::erase_if(ids, [](ValueId id) { return !id; });
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
  }

  std::int64_t bytes_of(ValueId id) const {
    return static_cast<std::int64_t>(graph_[id].type.bytes());
  }

  /// The forward node where a node runs.
  int place_of(std::size_t n) const {
    const Node& node = graph_.nodes[n];
    if (node.part == Part::kForward) return static_cast<int>(n);
    const bool gradient = node.part == Part::kInputGradient || node.part == Part::kWeightGradient;
    return gradient && node.gradient_of ? node.gradient_of.index : -1;
  }

  void remove_reader(ValueId id, int reader) {
    Live& value = values_[at(id.index)];
    value.sum_of_readers -= reader;
    if (--value.readers == 1) shrink(static_cast<int>(value.sum_of_readers), bytes_of(id));
    if (value.readers == 0) shrink(graph_[id].producer.index, bytes_of(id));
  }

  /// Running `node` leaves so many bytes fewer than before.
  void shrink(int node, std::int64_t bytes) {
    if (ran_[at(node)]) return;
    const bool was_ready = ready_.erase({growth_[at(node)], node}) > 0;
    growth_[at(node)] -= bytes;
    if (was_ready) ready_.emplace(growth_[at(node)], node);
  }

  const Graph& graph_;
  std::vector<Live> values_;
  std::vector<std::int64_t>
      growth_;                  // of every forward node: live bytes after it less those before
  std::vector<int> waits_for_;  // of every forward node: inputs not yet made
  std::vector<bool> ran_;
  std::vector<std::vector<ValueId>> read_at_;  // by forward node, without duplicates
  std::vector<std::vector<int>> successors_;
  std::set<std::pair<std::int64_t, int>> ready_;  // growth, node
};

Chain chain_in_order(const TrainingGraph& training, std::vector<NodeId> order) {
  const Graph& graph = training.graph;
  Chain chain;
  chain.order = std::move(order);
  std::vector<int> position(graph.nodes.size(), -1);
  for (std::size_t i = 0; i < chain.order.size(); ++i)
    position[at(chain.order[i].index)] = static_cast<int>(i);
  // Where a node runs: a forward node at its own position, a gradient node at that of its forward
  // node.
  const auto place = [&](const Node& node, std::size_t n) {
    if (node.part == Part::kForward) return position[n];
    return node.gradient_of ? position[static_cast<std::size_t>(node.gradient_of.index)] : -1;
  };
  const std::size_t cuts = chain.order.size() + 1;
  chain.forward_bytes.assign(cuts + 1, 0);  // differences at first, one more than sums
  chain.backward_bytes.assign(cuts + 1, 0);
  // A view shows the memory of its root, which alone is sent; inputs of the model are not.
  std::vector<ValueId> root;
  for (std::size_t v = 0; v < graph.values.size(); ++v) root.push_back({static_cast<int>(v)});
  for (const Node& node : graph.nodes) {
    if (node.op->flags & kView) root[at(node.outputs[0].index)] = root[at(node.inputs[0].index)];
  }
  std::vector<int> first(graph.values.size(), -1), last(graph.values.size(), -1);
  const auto read = [&](ValueId id, int here) {
    if (!id || first[at(root[at(id.index)].index)] < 0 || here < 0) return;
    const ValueId value = root[at(id.index)];
    int& end = last[at(value.index)];
    end = graph[value].role == Role::kGradient ? std::min(end, here) : std::max(end, here);
  };
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.part == Part::kPrepare || node.part == Part::kBatchGradient ||
        node.part == Part::kFinish || (node.op->flags & kView))
      continue;
    const int here = place(node, n);
    for (const ValueId id : node.outputs) first[at(id.index)] = last[at(id.index)] = here;
    for (const ValueId id : node.inputs) read(id, here);
  }
  for (const BatchedValue& batched : training.batched_values)
    read(batched.value, position[at(batched.consumer.index)]);
  for (const Accumulation& accumulation : training.accumulations) {
    if (accumulation.consumer)
      read(accumulation.contribution, position[at(accumulation.consumer.index)]);
  }
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (first[v] < 0) continue;
    auto& bytes =
        graph.values[v].role == Role::kGradient ? chain.backward_bytes : chain.forward_bytes;
    // Only where a value begins and ends to count; the sums follow.
    const int low = std::min(first[v], last[v]), high = std::max(first[v], last[v]);
    bytes[at(low) + 1] += graph.values[v].type.bytes();
    bytes[at(high) + 1] -= graph.values[v].type.bytes();
  }
  for (auto* bytes : {&chain.forward_bytes, &chain.backward_bytes}) {
    std::partial_sum(bytes->begin(), bytes->end(), bytes->begin());
    bytes->resize(cuts);
  }
  return chain;
}

/// Pairs of forward nodes where the second reads a result of the first, in its forward or its
/// gradients.
std::vector<std::pair<int, int>> dependencies(const TrainingGraph& training) {
  const Graph& graph = training.graph;
  std::vector<std::pair<int, int>> out;
  const auto add = [&](ValueId id, int reader) {
    const NodeId producer = id ? graph[id].producer : NodeId{};
    if (producer && graph[producer].part == Part::kForward && producer.index < reader)
      out.emplace_back(producer.index, reader);
  };
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const bool forward = node.part == Part::kForward;
    const bool gradient = node.part == Part::kInputGradient || node.part == Part::kWeightGradient;
    if (!forward && !(gradient && node.gradient_of)) continue;
    const int reader = forward ? static_cast<int>(n) : node.gradient_of.index;
    for (const ValueId id : node.inputs) add(id, reader);
  }
  for (const BatchedValue& batched : training.batched_values)
    add(batched.value, batched.consumer.index);
  return out;
}

/// Total bytes over all cuts, the criterion for orders without a profile.
std::size_t all_cut_bytes(const Chain& chain) {
  return std::accumulate(chain.forward_bytes.begin(), chain.forward_bytes.end(), std::size_t{0}) +
         std::accumulate(chain.backward_bytes.begin(), chain.backward_bytes.end(), std::size_t{0});
}

/// Whether each node reads a result of the one before it, so that there is no other order.
bool is_only_order(const Graph& graph, const std::vector<NodeId>& order) {
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (std::ranges::none_of(graph[order[i]].inputs,
                             [&](ValueId id) { return id && graph[id].producer == order[i - 1]; }))
      return false;
  }
  return true;
}

}  // namespace

Chain linearise(const TrainingGraph& training) {
  std::vector<NodeId> order = graph_order(training.graph);
  const bool only = is_only_order(training.graph, order);
  Chain as_given = chain_in_order(training, std::move(order));
  if (only) return as_given;
  Chain by_cut = chain_in_order(training, SmallestLiveCut(training.graph).run());
  return all_cut_bytes(by_cut) < all_cut_bytes(as_given) ? by_cut : as_given;
}

Chain chain_in_order(const TrainingGraph& training, std::span<const int> order) {
  const Graph& graph = training.graph;
  const std::vector<NodeId> nodes = graph_order(graph);
  PT_CHECK(order.size() == nodes.size(), kUsage, "an order of {} nodes does not fit a model of {}",
           order.size(), nodes.size());
  std::vector<int> place(graph.nodes.size(), -1);
  std::vector<NodeId> out;
  for (const int number : order) {
    PT_CHECK(number >= 0 && at(number) < nodes.size() && place[at(nodes[at(number)].index)] < 0,
             kUsage, "an order of the {} nodes names {} twice or does not know it", nodes.size(),
             number);
    place[at(nodes[at(number)].index)] = static_cast<int>(out.size());
    out.push_back(nodes[at(number)]);
  }
  for (const auto& [producer, reader] : dependencies(training)) {
    PT_CHECK(place[at(producer)] < place[at(reader)], kUsage,
             "the order puts \"{}\" before its input \"{}\"",
             printable(graph.nodes[at(reader)].name), printable(graph.nodes[at(producer)].name));
  }
  return chain_in_order(training, std::move(out));
}

std::vector<int> order_of(const TrainingGraph& training, const Chain& chain) {
  std::vector<int> number(training.graph.nodes.size(), -1), out;
  int next = 0;
  for (const NodeId id : graph_order(training.graph)) number[at(id.index)] = next++;
  for (const NodeId id : chain.order) out.push_back(number[at(id.index)]);
  return out;
}

std::vector<std::vector<int>> inputs_of(const TrainingGraph& training, const Chain& chain) {
  std::vector<int> place(training.graph.nodes.size(), -1);
  for (std::size_t i = 0; i < chain.order.size(); ++i)
    place[at(chain.order[i].index)] = static_cast<int>(i);
  std::vector<std::set<int>> inputs(chain.order.size());
  for (const auto& [producer, reader] : dependencies(training))
    inputs[at(place[at(reader)])].insert(place[at(producer)]);
  std::vector<std::vector<int>> out;
  for (const std::set<int>& of : inputs) out.emplace_back(of.begin(), of.end());
  return out;
}

std::vector<int> stages_of_chain(const TrainingGraph& training, const Chain& chain,
                                 const std::vector<int>& starts) {
  std::vector<int> stages(training.graph.nodes.size(), -1);
  int stage = -1;
  for (std::size_t i = 0; i < chain.order.size(); ++i) {
    while (stage + 1 < static_cast<int>(starts.size()) &&
           starts[static_cast<std::size_t>(stage + 1)] <= static_cast<int>(i))
      ++stage;
    stages[static_cast<std::size_t>(chain.order[i].index)] = std::max(stage, 0);
  }
  return stages;
}

namespace {

/// The ONNX nodes behind a node; a fused one has several.
std::vector<std::string> names_of(const Node& node) {
  std::string members = node.attributes.text("members", node.name);
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= members.size();) {
    const std::size_t end = std::min(members.find('\n', begin), members.size());
    names.push_back(members.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

}  // namespace

bool has_same_nodes(const TrainingGraph& one, const TrainingGraph& other) {
  return std::ranges::equal(one.graph.nodes, other.graph.nodes, [](const Node& a, const Node& b) {
    return a.op == b.op && a.name == b.name &&
           a.attributes.text("members", "") == b.attributes.text("members", "");
  });
}

bool has_same_groups(const TrainingGraph& one, const TrainingGraph& other) {
  const auto groups = [](const TrainingGraph& training) {
    std::vector<std::pair<std::string, std::string>> out;
    for (const Node& node : training.graph.nodes) {
      if (node.part == Part::kForward)
        out.emplace_back(node.name, node.attributes.text("members", ""));
    }
    return out;
  };
  return groups(one) == groups(other);
}

std::vector<int> carry_stages(const TrainingGraph& from, const std::vector<int>& stages,
                              const TrainingGraph& to) {
  std::map<std::string, std::vector<int>> known;
  for (std::size_t n = 0; n < from.graph.nodes.size(); ++n) {
    if (from.graph.nodes[n].part != Part::kForward) continue;
    for (const std::string& name : names_of(from.graph.nodes[n])) known[name].push_back(stages[n]);
  }
  std::vector<int> out(to.graph.nodes.size(), -1);
  std::map<std::string, std::size_t> seen;
  for (std::size_t n = 0; n < to.graph.nodes.size(); ++n) {
    const Node& node = to.graph.nodes[n];
    if (node.part != Part::kForward) continue;
    // A node that only this variant has is placed directly after its inputs.
    out[n] = 0;
    for (const ValueId id : node.inputs) {
      const NodeId producer = id ? to.graph[id].producer : NodeId{};
      if (producer) out[n] = std::max(out[n], out[at(producer.index)]);
    }
    for (const std::string& name : names_of(node)) {
      const auto found = known.find(name);
      if (found == known.end()) continue;
      const std::size_t k = std::min(seen[name]++, found->second.size() - 1);
      out[n] = std::max(out[n], found->second[k]);
    }
  }
  return out;
}

}  // namespace pipetrain
