#include "cli/commands/layers_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "graph/op.h"
#include "profile/estimate.h"

namespace pipetrain {
namespace {

std::string shape_text(const Shape& shape, std::int64_t samples) {
  std::string out;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    out += i > 0 ? "x" : "";
    out += i == 0 && shape[0] == samples ? std::string("N") : fmt::format("{}", shape[i]);
  }
  return out.empty() ? "scalar" : out;
}

/// What a value is prepared from: the weight behind its packed form.
ValueId unprepared(const TrainingGraph& graph, ValueId value) {
  while (value) {
    const NodeId producer = graph.graph[value].producer;
    if (!producer || graph.graph[producer].part != Part::kPrepare) break;
    value = graph.graph[producer].inputs[0];
  }
  return value;
}

/// "118 k", "1.2 M".
std::string count_text(double count) {
  if (count < 1e4) return fmt::format("{:.0f}", count);
  if (count < 1e6) return fmt::format("{:.0f} k", count / 1e3);
  if (count < 1e9) return fmt::format("{:.1f} M", count / 1e6);
  return fmt::format("{:.1f} G", count / 1e9);
}

/// The end of a name, in at most `columns` characters: layers differ at the end of their names.
std::string shortened(const std::string& name, std::size_t columns) {
  return name.size() <= columns ? name : "…" + name.substr(name.size() - columns + 1);
}

}  // namespace

std::vector<LayerRow> layers_of(const TrainingGraph& graph, const Chain& chain,
                                const std::vector<ChainCost>* elements) {
  std::vector<LayerRow> rows;
  std::set<int> counted;
  double total = 0;
  for (std::size_t i = 0; i < chain.order.size(); ++i) {
    const Node& node = graph.graph[chain.order[i]];
    LayerRow& row = rows.emplace_back();
    row.name = printable(node.name);
    row.op = node.op->name;
    if (!node.outputs.empty())
      row.output = shape_text(graph.graph[node.outputs[0]].type.shape, graph.micro_batch);
    row.flops = node_flops(graph.graph, node) / static_cast<double>(graph.micro_batch);
    for (const ValueId used : node.inputs) {
      const ValueId input = unprepared(graph, used);
      const bool trained = input && std::ranges::any_of(graph.parameters, [&](const Parameter& p) {
                             return p.value == input;
                           });
      if (trained && counted.insert(input.index).second)
        row.parameters += graph.graph[input].type.count();
    }
    if (!elements) continue;
    const ChainCost& cost = (*elements)[i];
    row.share = cost.forward_seconds + cost.input_gradient_seconds + cost.weight_gradient_seconds;
    total += row.share;
  }
  for (LayerRow& row : rows) {
    if (total > 0) row.share /= total;
  }
  return rows;
}

std::string layers_table(const std::vector<LayerRow>& rows) {
  constexpr std::size_t kMostName = 32, kMostOp = 22;
  std::size_t name = 5, op = 8, output = 6;
  bool timed = false;
  for (const LayerRow& row : rows) {
    name = std::max(name, std::min(kMostName, row.name.size()));
    op = std::max(op, std::min(kMostOp, row.op.size()));
    output = std::max(output, row.output.size());
    timed = timed || row.share >= 0;
  }
  const auto line = [&](const std::string& a, const std::string& b, const std::string& c,
                        const std::string& d, const std::string& e, const std::string& f) {
    return fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>10}  {:>8}{}\n", a, name, b, op, c, output, d, e,
                       timed ? fmt::format("  {:>6}", f) : "");
  };
  std::string out = line("layer", "operator", "output", "parameters", "FLOPs", "time");
  double parameters = 0, flops = 0;
  for (const LayerRow& row : rows) {
    out += line(shortened(row.name, kMostName), shortened(row.op, kMostOp), row.output,
                row.parameters > 0 ? count_text(static_cast<double>(row.parameters)) : "",
                count_text(row.flops), fmt::format("{:.1f} %", row.share * 100));
    parameters += static_cast<double>(row.parameters);
    flops += row.flops;
  }
  return out + line("all", "", "", count_text(parameters), count_text(flops), "100 %");
}

}  // namespace pipetrain
