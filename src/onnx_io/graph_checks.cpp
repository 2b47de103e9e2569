#include "onnx_io/graph_checks.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/name_table.h"
#include "onnx_io/subgraph.h"

namespace pipetrain {
namespace {

// Who makes a value: a node's index, or one of these.
constexpr std::int64_t kGraphInput = -1;
constexpr std::int64_t kInitializer = -2;

using Producers = NameTable<std::int64_t>;
/// What the sub-graphs of nodes read of the graph around them, by node.
using Captured = std::map<std::size_t, std::set<std::string>>;

std::string maker(const OnnxModel& model, std::int64_t producer) {
  if (producer == kGraphInput) return "a graph input";
  if (producer == kInitializer) return "an initializer";
  return model.nodes[static_cast<std::size_t>(producer)].label();
}

Captured find_captured(const OnnxModel& model) {
  Captured out;
  for (std::size_t n = 0; n < model.nodes.size(); ++n) {
    if (has_subgraphs(model.nodes[n])) out.emplace(n, captured_names(model.nodes[n]));
  }
  return out;
}

/// Whether a sub-graph reads what a later node makes.
bool is_captured_early(const Captured& captured, const Producers& producers) {
  return std::ranges::any_of(captured, [&](const auto& reader) {
    return std::ranges::any_of(reader.second, [&](const std::string& name) {
      const std::int64_t* const found = producers.find(name);
      return found && *found > static_cast<std::int64_t>(reader.first);
    });
  });
}

/// Calls `visit` with the node that makes each of the values that node `n` reads, also in its
/// sub-graphs, until it returns false.
template <class Visit>
void each_needed_node(const OnnxModel& model, const Producers& producers, const Captured& captured,
                      std::size_t n, const Visit& visit) {
  const auto follow = [&](const std::string& name) {
    const std::int64_t* const found = producers.find(name);
    return !found || *found < 0 || visit(static_cast<std::size_t>(*found));
  };
  if (!std::ranges::all_of(model.nodes[n].inputs, follow)) return;
  if (const auto inside = captured.find(n); inside != captured.end())
    (void)std::ranges::all_of(inside->second, follow);
}

struct Found {
  Producers producers;
  /// The nodes that read what no earlier one makes.
  std::vector<std::size_t> read_early;
};

Found find_producers(const OnnxModel& model) {
  Found out;
  Producers& producers = out.producers;
  producers.reserve(model.initializers.size() + model.inputs.size() + model.nodes.size());
  for (const OnnxInitializer& initializer : model.initializers) {
    PT_CHECK(!initializer.name.empty(), kModel, "an initializer has no name");
    PT_CHECK(producers.add(initializer.name, kInitializer).second, kModel,
             "duplicate initializer '{}'", printable(initializer.name));
  }
  for (const OnnxValue& input : model.inputs) {
    PT_CHECK(producers.add(input.name, kGraphInput).second, kModel, "duplicate graph input '{}'",
             printable(input.name));
  }
  for (std::size_t i = 0; i < model.nodes.size(); ++i) {
    if (i + kNamesAhead < model.nodes.size()) {
      for (const std::string& output : model.nodes[i + kNamesAhead].outputs)
        producers.expect(output);
    }
    // What was made last is looked up here, while it is in the cache.
    const auto is_known = [&](const std::string& input) {
      return input.empty() || producers.contains(input);
    };
    if (!std::ranges::all_of(model.nodes[i].inputs, is_known)) out.read_early.push_back(i);
    for (const std::string& output : model.nodes[i].outputs) {
      if (output.empty()) continue;
      const auto [producer, inserted] = producers.add(output, static_cast<std::int64_t>(i));
      PT_CHECK(inserted, kModel, "value '{}' is produced twice: by {} and by {}", printable(output),
               maker(model, *producer), model.nodes[i].label());
    }
  }
  return out;
}

// Follows unmet needs among `waiting` nodes until one repeats: there is a cycle there.
[[noreturn]] void name_cycle(const OnnxModel& model, const Producers& producers,
                             const Captured& captured, const std::vector<std::size_t>& waiting) {
  std::vector<std::size_t> path;
  std::unordered_map<std::size_t, std::size_t> position;
  std::size_t at = 0;
  while (waiting[at] == 0) ++at;
  while (position.emplace(at, path.size()).second) {
    path.push_back(at);
    std::size_t next = at;
    each_needed_node(model, producers, captured, at, [&](std::size_t producer) {
      if (waiting[producer] == 0) return true;
      next = producer;
      return false;
    });
    at = next;
  }
  std::string cycle;
  const std::size_t begin = position[at];
  PT_CHECK(path.size() - begin > 1, kModel, "{} needs its own output", model.nodes[at].label());
  for (std::size_t i = path.size(); i-- > begin;) {
    if (path.size() - i > 8) {
      cycle += "… → ";
      break;
    }
    cycle += model.nodes[path[i]].label() + " → ";
  }
  PT_FAIL(kModel, "the graph has a cycle: {}{}", cycle, model.nodes[path.back()].label());
}

// Kahn's algorithm; of the nodes that are ready, the first in the file comes first.
void sort_nodes(OnnxModel& model, const Producers& producers, const Captured& captured) {
  std::vector<std::size_t> waiting(model.nodes.size());
  std::vector<std::vector<std::size_t>> consumers(model.nodes.size());
  for (std::size_t i = 0; i < model.nodes.size(); ++i) {
    each_needed_node(model, producers, captured, i, [&](std::size_t producer) {
      consumers[producer].push_back(i);
      ++waiting[i];
      return true;
    });
  }
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i] == 0) ready.push(i);
  }
  std::vector<std::size_t> order;
  while (!ready.empty()) {
    const std::size_t node = ready.top();
    ready.pop();
    order.push_back(node);
    for (const std::size_t consumer : consumers[node]) {
      if (--waiting[consumer] == 0) ready.push(consumer);
    }
  }
  if (order.size() < model.nodes.size()) name_cycle(model, producers, captured, waiting);
  std::vector<OnnxNode> nodes;
  nodes.reserve(order.size());
  for (const std::size_t node : order) nodes.push_back(std::move(model.nodes.edit()[node]));
  model.nodes = std::move(nodes);
  model.warnings.push_back("the nodes are not in topological order; they were sorted");
}

void warn_of_duplicate_names(OnnxModel& model) {
  NameSet names;
  names.reserve(model.nodes.size());
  std::size_t duplicates = 0;
  std::string first;
  for (std::size_t n = 0; n < model.nodes.size(); ++n) {
    const OnnxNode& node = model.nodes[n];
    if (n + kNamesAhead < model.nodes.size()) names.expect(model.nodes[n + kNamesAhead].name);
    if (node.name.empty() || names.insert(node.name)) continue;
    if (++duplicates == 1) first = printable(node.name);
  }
  if (duplicates == 0) return;
  model.warnings.push_back(fmt::format("{} node name{} used more than once, '{}' for example",
                                       duplicates, duplicates == 1 ? " is" : "s are", first));
}

}  // namespace

void check_and_sort(OnnxModel& model) {
  const auto [producers, read_early] = find_producers(model);
  for (const OnnxNode& node : model.nodes)
    PT_CHECK(!node.op_type.empty(), kModel, "{} has no operator", node.label());
  for (const std::size_t n : read_early) {
    const OnnxNode& node = model.nodes[n];
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      PT_CHECK(node.inputs[i].empty() || producers.contains(node.inputs[i]), kModel,
               "{}: its input #{} '{}' is not defined", node.label(), i, printable(node.inputs[i]));
    }
  }
  PT_CHECK(!model.outputs.empty(), kModel, "the graph has no outputs");
  std::unordered_set<std::string_view> outputs;
  for (const OnnxValue& output : model.outputs) {
    PT_CHECK(producers.contains(output.name), kModel, "no node produces the graph output '{}'",
             printable(output.name));
    PT_CHECK(outputs.insert(output.name).second, kModel, "duplicate graph output '{}'",
             printable(output.name));
  }
  const Captured captured = find_captured(model);
  if (!read_early.empty() || is_captured_early(captured, producers))
    sort_nodes(model, producers, captured);
  warn_of_duplicate_names(model);
}

}  // namespace pipetrain
