#include "cli/output/kernel_rates.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/safe_text.h"
#include "base/units.h"
#include "cli/output/progress_line.h"
#include "graph/op.h"
#include "profile/node_key.h"

namespace pipetrain {
namespace {

struct KernelRow {
  std::string name;  // of the first node
  std::string_view op;
  double flops = 0;
  double bytes = 0;
  double seconds = 0;  // of all
  int count = 0;
};

constexpr double kShown = 0.005;  // of the time of all kernels: what is less is not worth a line

/// Names of one model differ at their end.
std::string tail_of(const std::string& name) {
  constexpr std::size_t kMost = 31;
  return columns_of(name) <= kMost ? name : ".." + last_characters(name, kMost - 2);
}

/// Rows by what their nodes compute; equal ones follow the first. Without arithmetic: those too
/// that only move elements.
std::vector<KernelRow> kernel_rows(const Profile& profile, const TrainingGraph& training,
                                   bool with_arithmetic) {
  const Graph& graph = training.graph;
  const std::vector<bool> is_read = values_read(training);
  std::map<std::string, std::size_t> place;
  std::vector<KernelRow> out;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const double flops = node_flops(graph, node);
    if ((with_arithmetic && flops <= 0) || profile.node_seconds[n] <= 0) continue;
    std::string key = fmt::format("{} {}", node.op->name, name_of(node.part));
    for (const TensorType& type : graph.input_types(node)) key += " " + type.text();
    for (const TensorType& type : graph.output_types(node)) key += " " + type.text();
    const auto [found, is_new] = place.emplace(std::move(key), out.size());
    if (is_new) out.push_back({node.name, node.op->name, flops, node_bytes(graph, node, is_read)});
    KernelRow& row = out[found->second];
    row.seconds += profile.node_seconds[n];
    ++row.count;
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const KernelRow& a, const KernelRow& b) { return a.seconds > b.seconds; });
  return out;
}

}  // namespace

std::string kernel_rates_table(const Profile& profile, const TrainingGraph& training, double peak) {
  const std::vector<KernelRow> rows = kernel_rows(profile, training, /*with_arithmetic=*/true);
  if (rows.empty()) return {};
  std::string out = fmt::format("{:<32}{:<20}{:>8}{:>12}{:>12}{:>10}\n", "kernel", "operator",
                                "times", "each", "Gflop/s", "of peak");
  const auto line = [&](std::string_view name, std::string_view op, int count, double seconds,
                        double flops) {
    out += fmt::format("{:<32}{:<20}{:>8}{:>12}{:>12.1f}{:>8.0f} %\n", name, op, count,
                       seconds_text(seconds / count), flops / seconds / 1e9,
                       100 * flops / seconds / peak);
  };
  double flops = 0, seconds = 0, all_seconds = 0;
  int count = 0;
  for (const KernelRow& row : rows) all_seconds += row.seconds;
  for (const KernelRow& row : rows) {
    if (row.seconds >= kShown * all_seconds) {
      line(tail_of(printable(row.name)), row.op.substr(0, 19), row.count, row.seconds,
           row.flops * row.count);
    }
    flops += row.flops * row.count;
    seconds += row.seconds;
    count += row.count;
  }
  line("all", "", count, seconds, flops);
  return out + fmt::format("peak: {:.1f} Gflop/s, a large matmul on {} thread{}\n", peak / 1e9,
                           profile.threads, profile.threads == 1 ? "" : "s");
}

std::string roofline_table(const Profile& profile, const TrainingGraph& training,
                           const DeviceSpeed& roof) {
  std::string out = fmt::format("{:<32}{:<20}{:>8}{:>12}{:>12}{:>12}{:>12}\n", "kernel", "operator",
                                "times", "each", "GB/s", "Tflop/s", "of roofline");
  const auto line = [&](std::string_view name, std::string_view op, int count, const KernelRow& sum,
                        double least) {
    out += fmt::format("{:<32}{:<20}{:>8}{:>12}{:>12.0f}{:>12.1f}{:>10.0f} %\n", name, op, count,
                       seconds_text(sum.seconds / count), sum.bytes / sum.seconds / 1e9,
                       sum.flops / sum.seconds / 1e12, 100 * least / sum.seconds);
  };
  const std::vector<KernelRow> rows = kernel_rows(profile, training, /*with_arithmetic=*/false);
  if (rows.empty()) return {};
  double all_seconds = 0, all_least = 0;
  for (const KernelRow& row : rows) all_seconds += row.seconds;
  KernelRow all;
  for (KernelRow row : rows) {
    row.flops *= row.count;
    row.bytes *= row.count;
    const double least =
        std::max(row.flops / roof.flops_per_second, row.bytes / roof.bytes_per_second);
    if (row.seconds >= kShown * all_seconds)
      line(tail_of(printable(row.name)), row.op.substr(0, 19), row.count, row, least);
    all.flops += row.flops;
    all.bytes += row.bytes;
    all.seconds += row.seconds;
    all.count += row.count;
    all_least += least;
  }
  line("all", "", all.count, all, all_least);
  return out + fmt::format(
                   "roofline: {:.0f} GB/s and {:.1f} Tflop/s, a large element-wise operation and a "
                   "large matmul on {}\n",
                   roof.bytes_per_second / 1e9, roof.flops_per_second / 1e12, roof.name);
}

}  // namespace pipetrain
