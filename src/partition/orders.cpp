#include "partition/orders.h"

#include <algorithm>
#include <random>

#include "base/error.h"
#include "base/index.h"

namespace pipetrain {
namespace {

// Puts nodes in order, one ready node after the other; pick(ready) tells which: an index into the
// ready nodes, which are in the order of becoming ready.
template <class Pick>
std::vector<int> list_order(const CostGraph& graph, const std::vector<std::vector<int>>& before,
                            const std::vector<std::vector<int>>& after, const Pick& pick) {
  std::vector<int> missing, ready, out;
  for (std::size_t node = 0; node < before.size(); ++node) {
    missing.push_back(static_cast<int>(before[node].size()));
    if (before[node].empty()) ready.push_back(static_cast<int>(node));
  }
  while (!ready.empty()) {
    const std::size_t index = pick(ready);
    const int node = ready[index];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(index));
    out.push_back(node);
    for (const int next : after[at(node)]) {
      if (--missing[at(next)] == 0) ready.push_back(next);
    }
  }
  if (out.size() < before.size()) {
    const auto stuck = std::find_if(missing.begin(), missing.end(), [](int n) { return n > 0; });
    PT_FAIL(kModel, "node \"{}\" needs its own output: the graph has a cycle",
            printable(graph.nodes[static_cast<std::size_t>(stuck - missing.begin())].name));
  }
  return out;
}

std::vector<std::vector<int>> inputs_of(const CostGraph& graph) {
  std::vector<std::vector<int>> out;
  for (const CostNode& node : graph.nodes) out.push_back(node.inputs);
  return out;
}

template <class Pick>
std::vector<int> forward_order(const CostGraph& graph, const Pick& pick) {
  const std::vector<std::vector<int>> readers = readers_of(graph);
  return list_order(graph, inputs_of(graph), readers, pick);
}

}  // namespace

std::vector<int> numbered_order(const CostGraph& graph) {
  return forward_order(graph, [](const std::vector<int>& ready) {
    return static_cast<std::size_t>(std::min_element(ready.begin(), ready.end()) - ready.begin());
  });
}

std::vector<int> breadth_first_order(const CostGraph& graph) {
  return forward_order(graph, [](const std::vector<int>&) { return std::size_t{0}; });
}

std::vector<int> depth_first_order(const CostGraph& graph) {
  return forward_order(graph, [](const std::vector<int>& ready) { return ready.size() - 1; });
}

std::vector<int> smallest_cut_order(const CostGraph& graph, const CutOrderOptions& options) {
  const std::size_t count = graph.nodes.size();
  const std::vector<std::vector<int>> readers = readers_of(graph);
  const std::vector<std::vector<int>> inputs = inputs_of(graph);
  const auto bytes = [&](int node) {
    const CostNode& from = graph.nodes[at(node)];
    return static_cast<double>(from.output_bytes + from.gradient_bytes);
  };
  double average = 0;
  std::vector<int> unread;
  for (std::size_t node = 0; node < count; ++node) {
    average += bytes(static_cast<int>(node)) / static_cast<double>(count);
    unread.push_back(static_cast<int>(readers[node].size()));
  }
  std::vector<bool> placed(count, false);
  std::mt19937 random(options.seed);

  // What the live bytes change by when this node is next.
  const auto growth = [&](int node) {
    double out = 0;
    if (!options.from_the_end) {
      if (!readers[at(node)].empty()) out += bytes(node);
      for (const int input : inputs[at(node)]) {
        if (unread[at(input)] == 1) out -= bytes(input);
      }
      return out;
    }
    // Backwards a tensor is alive from its last reader to the node that makes it.
    if (!readers[at(node)].empty()) out -= bytes(node);
    for (const int input : inputs[at(node)]) {
      const std::vector<int>& others = readers[at(input)];
      const bool alive =
          std::any_of(others.begin(), others.end(), [&](int reader) { return placed[at(reader)]; });
      if (!alive) out += bytes(input);
    }
    return out;
  };
  const auto pick = [&](const std::vector<int>& ready) {
    std::size_t best = 0;
    double least = 0;
    for (std::size_t i = 0; i < ready.size(); ++i) {
      double value = growth(ready[i]);
      if (options.noise > 0) {
        value += options.noise * average * static_cast<double>(random()) / 4294967296.0;
      }
      if (i == 0 || value < least) {
        least = value;
        best = i;
      }
    }
    const int node = ready[best];
    placed[at(node)] = true;
    for (const int input : inputs[at(node)]) --unread[at(input)];
    return best;
  };
  if (!options.from_the_end) return list_order(graph, inputs, readers, pick);
  std::vector<int> out = list_order(graph, readers, inputs, pick);
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::vector<int>> order_portfolio(const CostGraph& graph, int noisy) {
  std::vector<std::vector<int>> out;
  const auto add = [&](std::vector<int> order) {
    if (std::find(out.begin(), out.end(), order) == out.end()) out.push_back(std::move(order));
  };
  add(smallest_cut_order(graph));
  add(smallest_cut_order(graph, {.from_the_end = true}));
  add(numbered_order(graph));
  add(breadth_first_order(graph));
  add(depth_first_order(graph));
  for (int variant = 0; variant < noisy; ++variant) {
    CutOrderOptions options;
    options.noise = std::vector<double>{0.1, 0.5, 2.0}[at(variant % 3)];
    options.seed = static_cast<std::uint32_t>(variant + 1);
    options.from_the_end = variant % 2 == 1;
    add(smallest_cut_order(graph, options));
  }
  return out;
}

}  // namespace pipetrain
