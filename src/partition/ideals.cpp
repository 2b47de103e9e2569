#include "partition/ideals.h"

#include <algorithm>
#include <bit>
#include <set>

#include "base/index.h"
#include "partition/orders.h"

namespace pipetrain {
namespace {

using Bits = std::vector<std::uint64_t>;

void add_node(Bits& bits, int node) { bits[at(node) / 64] |= std::uint64_t{1} << at(node) % 64; }
bool has_node(const Bits& bits, int node) {
  return (bits[at(node) / 64] >> at(node) % 64 & 1) != 0;
}

}  // namespace

std::optional<IdealRanges> IdealRanges::of(const CostGraph& graph, std::size_t most) {
  IdealRanges out;
  out.order_ = numbered_order(graph);
  out.width_ = std::max<std::size_t>(1, (graph.nodes.size() + 63) / 64);
  const std::vector<std::vector<int>> readers = readers_of(graph);
  // Ideals by size: each of the next size is one of this size and a node whose inputs are in it.
  std::set<Bits> level = {Bits(out.width_, 0)};
  std::size_t found = 0;
  for (std::size_t size = 0; size <= graph.nodes.size(); ++size) {
    std::set<Bits> next;
    for (const Bits& ideal : level) {
      out.bits_.insert(out.bits_.end(), ideal.begin(), ideal.end());
      if (++found > most) return std::nullopt;
      for (const int node : out.order_) {
        if (has_node(ideal, node)) continue;
        const std::vector<int>& inputs = graph.nodes[at(node)].inputs;
        if (!std::all_of(inputs.begin(), inputs.end(),
                         [&](int input) { return has_node(ideal, input); })) {
          continue;
        }
        Bits larger = ideal;
        add_node(larger, node);
        next.insert(std::move(larger));
        if (found + next.size() > most) return std::nullopt;
      }
    }
    level = std::move(next);
  }
  out.add_costs(graph);
  return out;
}

void IdealRanges::add_costs(const CostGraph& graph) {
  const std::vector<std::vector<int>> readers = readers_of(graph);
  const std::size_t ideals = bits_.size() / width_;
  for (std::size_t position = 0; position < ideals; ++position) {
    RangeCost sum;
    std::size_t forward = 0, backward = 0;
    for (const int node : order_) {
      if (!contains(static_cast<int>(position), node)) continue;
      const CostNode& cost = graph.nodes[at(node)];
      add_to(sum, cost);
      const bool read_later =
          std::any_of(readers[at(node)].begin(), readers[at(node)].end(),
                      [&](int reader) { return !contains(static_cast<int>(position), reader); });
      if (!read_later) continue;
      forward += cost.output_bytes;
      backward += cost.gradient_bytes;
    }
    sums_.push_back(sum);
    forward_bytes_.push_back(forward);
    backward_bytes_.push_back(backward);
  }
  for (const CostNode& node : graph.nodes) transient_.push_back(node.transient_bytes);
  if (std::all_of(transient_.begin(), transient_.end(), [](std::size_t b) { return b == 0; })) {
    transient_.clear();
  }
}

RangeCost IdealRanges::range(int first, int last) const {
  RangeCost out = between(sums_[at(first)], sums_[at(last)]);
  for (std::size_t word = 0; word < width_ && !transient_.empty(); ++word) {
    std::uint64_t inside = words(last)[word] & ~words(first)[word];
    for (; inside != 0; inside &= inside - 1) {
      const std::size_t node = word * 64 + static_cast<std::size_t>(std::countr_zero(inside));
      out.transient_bytes = std::max(out.transient_bytes, transient_[node]);
    }
  }
  return out;
}

std::vector<int> IdealRanges::order_through(const std::vector<int>& positions) const {
  std::vector<int> out;
  int before = 0;
  const auto add = [&](int position) {
    for (const int node : order_) {
      if (contains(position, node) && !contains(before, node)) out.push_back(node);
    }
    before = position;
  };
  for (const int position : positions) add(position);
  add(count());
  return out;
}

}  // namespace pipetrain
