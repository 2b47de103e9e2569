#include "partition/pipedream_states.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <utility>

#include "base/error.h"
#include "base/index.h"
#include "base/setting.h"

namespace pipetrain {
namespace {

// The closures below take the square of the nodes in bits.
constexpr std::size_t kMaximumNodes = 5'000;
constexpr std::size_t kMaximumEdges = 100'000;
// Words that are looked at to find the states: some seconds.
constexpr double kMaximumWork = 5e9;

// The graph without what PipeDream leaves out, and its closures.
class Network {
 public:
  explicit Network(const PipeDreamProfile& profile)
      : profile_(profile),
        next_(profile.nodes.size()),
        previous_(profile.nodes.size()),
        is_left_out_(profile.nodes.size(), false),
        predecessors_(profile.nodes.size(), profile.nodes.size()),
        successors_(profile.nodes.size(), profile.nodes.size()),
        inside_(1, profile.nodes.size()),
        extra_(profile.nodes.size()),
        has_extra_(profile.nodes.size(), false) {
    leave_out();
    for (const PipeDreamEdge& edge : profile.edges) {
      if (is_left_out_[at(edge.from)] || is_left_out_[at(edge.to)]) continue;
      next_[at(edge.from)].push_back(edge.to);
      previous_[at(edge.to)].push_back(edge.from);
    }
    for (std::vector<int>& readers : next_) {
      std::sort(readers.begin(), readers.end());
      readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
    }
    close();
  }

  /// The first node that needs no other.
  int first_source() const {
    for (std::size_t i = 0; i < next_.size(); ++i) {
      if (!is_left_out_[i] && previous_[i].empty()) return static_cast<int>(i);
    }
    PT_FAIL(kUsage, "the profile has inputs and unused outputs only; there is nothing to plan");
  }

  /// The antichain's nodes and, for each of them alone, the predecessors that another node still
  /// reads. (Of each alone, not of all together: that is what PipeDream does.)
  std::vector<int> augmented(const std::vector<int>& antichain) {
    std::vector<int> out = antichain;
    for (const int node : antichain) {
      const std::vector<int>& extra = extra_of(node);
      out.insert(out.end(), extra.begin(), extra.end());
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  /// Every antichain that one more node makes of this one.
  std::vector<std::vector<int>> next_antichains(const std::vector<int>& antichain,
                                                const std::vector<int>& augmented) {
    std::vector<std::vector<int>> out;
    for (const int node : augmented) inside_.set(0, node);
    for (const int from : augmented) {
      for (const int node : next_[at(from)]) {
        const bool is_inside = std::binary_search(antichain.begin(), antichain.end(), node);
        if (is_inside || successors_.meets(node, inside_, 0)) continue;
        std::vector<int> changed = augmented;
        std::replace(changed.begin(), changed.end(), from, node);
        out.push_back(without_predecessors(std::move(changed), from, node));
      }
    }
    for (const int node : augmented) inside_.clear(0, node);
    return out;
  }

  /// Nodes before a cut, itself included.
  void add_closure(const std::vector<int>& antichain, BitTable& table, int row) const {
    for (const int node : antichain) {
      table.add(row, predecessors_, node);
      table.set(row, node);
    }
  }

 private:
  void leave_out() {
    const std::size_t count = profile_.nodes.size();
    std::vector<bool> has_input(count, false);
    for (const PipeDreamEdge& edge : profile_.edges) has_input[at(edge.to)] = true;
    for (std::size_t i = 0; i < count; ++i) {
      if (!has_input[i] && profile_.nodes[i].is_input()) is_left_out_[i] = true;
    }
    // One pass: what only an unused output reads stays.
    std::vector<bool> has_output(count, false);
    for (const PipeDreamEdge& edge : profile_.edges) {
      if (!is_left_out_[at(edge.from)]) has_output[at(edge.from)] = true;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const bool is_item = profile_.nodes[i].description.starts_with("__getitem__");
      if (!is_left_out_[i] && !has_output[i] && is_item) is_left_out_[i] = true;
    }
  }

  void close() {
    const std::vector<int> order = topological_order(profile_);
    for (const int node : order) {
      for (const int before : previous_[at(node)]) {
        predecessors_.add(node, predecessors_, before);
        predecessors_.set(node, before);
      }
    }
    for (auto node = order.rbegin(); node != order.rend(); ++node) {
      for (const int after : next_[at(*node)]) {
        successors_.add(*node, successors_, after);
        successors_.set(*node, after);
      }
    }
  }

  const std::vector<int>& extra_of(int node) {
    if (has_extra_[at(node)]) return extra_[at(node)];
    has_extra_[at(node)] = true;
    std::vector<int>& extra = extra_[at(node)];
    for (int before = 0; at(before) < next_.size(); ++before) {
      if (!predecessors_.get(node, before)) continue;
      const std::vector<int>& readers = next_[at(before)];
      const auto is_still_read = [&](int reader) {
        return reader != node && !predecessors_.get(node, reader);
      };
      if (std::any_of(readers.begin(), readers.end(), is_still_read)) extra.push_back(before);
    }
    return extra;
  }

  // `nodes` are those of inside_, with `node` in place of `from`.
  std::vector<int> without_predecessors(std::vector<int> nodes, int from, int node) {
    work_ += static_cast<double>(nodes.size()) * static_cast<double>(next_.size() / 64 + 1);
    PT_CHECK(work_ <= kMaximumWork, kResource,
             "the network has too many branches side by side for PipeDream's planner; plan it "
             "without {} pipedream",
             setting("compat"));
    const bool had_node = inside_.get(0, node);
    inside_.clear(0, from);
    inside_.set(0, node);
    std::vector<int> out;
    for (const int kept : nodes) {
      if (!successors_.meets(kept, inside_, 0)) out.push_back(kept);
    }
    inside_.set(0, from);
    if (!had_node) inside_.clear(0, node);
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  const PipeDreamProfile& profile_;
  std::vector<std::vector<int>> next_, previous_;
  std::vector<bool> is_left_out_;
  BitTable predecessors_, successors_;
  BitTable inside_;  // one row: the nodes of the antichain that is looked at
  double work_ = 0;
  std::vector<std::vector<int>> extra_;
  std::vector<bool> has_extra_;
};

// The antichains in the order in which they are found, and which follows which.
struct Found {
  std::vector<std::vector<int>> antichain, outputs;
  std::vector<std::vector<int>> next;
};

Found search(Network& network, int most) {
  Found found;
  std::map<std::vector<int>, int> index;
  const auto state_of = [&](const std::vector<int>& antichain) {
    const auto [place, is_new] = index.emplace(antichain, static_cast<int>(index.size()));
    if (!is_new) return place->second;
    PT_CHECK(place->second < most, kResource,
             "the network has more than {} states (antichains) for PipeDream's planner, which runs "
             "out of memory on such graphs itself; plan it without {} pipedream: pipetrain's "
             "own planner needs no states",
             most, setting("compat"));
    found.antichain.push_back(antichain);
    found.outputs.push_back(network.augmented(antichain));
    return place->second;
  };
  state_of({network.first_source()});
  for (std::size_t i = 0; i < found.antichain.size(); ++i) {
    std::vector<int> next;
    // Copies: state_of() moves the lists.
    const std::vector<int> antichain = found.antichain[i], outputs = found.outputs[i];
    for (const std::vector<int>& after : network.next_antichains(antichain, outputs)) {
      next.push_back(state_of(after));
    }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    found.next.push_back(std::move(next));
  }
  return found;
}

// States so that ancestors come first, the earliest found first.
std::vector<int> order_of(const Found& found) {
  std::vector<int> waiting(found.next.size(), 0), out;
  for (const auto& next : found.next) {
    for (const int after : next) ++waiting[at(after)];
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  ready.push(0);
  while (!ready.empty()) {
    out.push_back(ready.top());
    ready.pop();
    for (const int after : found.next[at(out.back())]) {
      if (--waiting[at(after)] == 0) ready.push(after);
    }
  }
  PT_CHECK(out.size() == found.next.size(), kInternal, "the states of a profile make a cycle");
  return out;
}

}  // namespace

PipeDreamStates pipedream_states(const PipeDreamProfile& profile, int most) {
  const std::size_t nodes = profile.nodes.size();
  PT_CHECK(
      nodes <= kMaximumNodes && profile.edges.size() <= kMaximumEdges, kResource,
      "a profile of {} nodes and {} edges is too large for PipeDream's planner (at most {} and "
      "{}); plan it without {} pipedream",
      nodes, profile.edges.size(), kMaximumNodes, kMaximumEdges, setting("compat"));
  Network network(profile);
  const Found found = search(network, most);
  const std::vector<int> order = order_of(found);
  const std::size_t count = order.size();
  std::vector<int> place(count);
  for (std::size_t i = 0; i < count; ++i) place[at(order[i])] = static_cast<int>(i);

  PipeDreamStates out{{}, {}, BitTable(count, count), BitTable(count, nodes)};
  for (int j = 0; at(j) < count; ++j) {
    PipeDreamState state;
    state.outputs = found.outputs[at(order[at(j)])];
    for (const int node : state.outputs)
      state.output_bytes += profile.nodes[at(node)].output_bytes();
    network.add_closure(state.outputs, out.before, j);
    for (int node = 0; at(node) < nodes; ++node) {
      if (!out.before.get(j, node)) continue;
      state.seconds += profile.nodes[at(node)].seconds();
      state.parameter_bytes += profile.nodes[at(node)].parameter_bytes;
      state.activation_bytes += profile.nodes[at(node)].output_bytes();
    }
    out.states.push_back(std::move(state));
    for (const int after : found.next[at(order[at(j)])]) {
      out.is_ancestor.add(place[at(after)], out.is_ancestor, j);
      out.is_ancestor.set(place[at(after)], j);
    }
  }
  for (int j = 0; at(j) < count; ++j) {
    std::vector<int>& ancestors = out.ancestors.emplace_back();
    for (int k = 0; k < j; ++k) {
      if (out.is_ancestor.get(j, k)) ancestors.push_back(k);
    }
  }
  return out;
}

}  // namespace pipetrain
