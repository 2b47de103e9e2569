#include "profile/estimate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "graph/op.h"
#include "passes/batch_weight_gradients.h"
#include "profile/node_key.h"

namespace pipetrain {

DeviceSpeed ordinary_core() { return {"a core", 5e10, 1e10, 1e-6}; }

double node_flops(const Graph& graph, const Node& node) {
  if (!node.op->cost) return 0;
  return node.op->cost(node.attributes, graph.input_types(node), graph.output_types(node)).flops;
}

double flops_of_sample(const TrainingGraph& training) {
  double flops = 0;
  for (const Node& node : training.graph.nodes)
    flops += node_flops(training.graph, node) * runs_per_micro_batch(training, node);
  return flops / static_cast<double>(training.micro_batch);
}

double node_bytes(const Graph& graph, const Node& node, const std::vector<bool>& is_read) {
  if (node.op->flags & kView) return 0;
  double written = 0;
  for (const ValueId id : node.outputs) {
    if (!is_read[static_cast<std::size_t>(id.index)]) continue;
    written += static_cast<double>(graph[id].type.bytes());
  }
  double read = 0;
  for (const ValueId id : node.inputs) {
    if (!id) continue;
    const auto bytes = static_cast<double>(graph[id].type.bytes());
    read += node.op->cost ? bytes : std::min(bytes, written);
  }
  return read + written;
}

Profile estimate_profile(const TrainingGraph& training, const DeviceSpeed& device, int slots) {
  PT_CHECK(
      device.flops_per_second > 0 && device.bytes_per_second > 0 && device.launch_seconds >= 0,
      kUsage,
      "to estimate times, the device's flops and memory bytes per second must be known, not {} "
      "and {}",
      device.flops_per_second, device.bytes_per_second);
  const Graph& graph = training.graph;
  const std::vector<bool> is_read = values_read(training);
  Profile out;
  out.device = device.name;
  out.backend = "estimate";
  out.accumulate_seconds_per_byte = 3 / device.bytes_per_second;
  out.update_seconds_per_byte = (3 + 2 * slots) / device.bytes_per_second;
  out.workspace_bytes.assign(graph.nodes.size(), 0);
  out.node_seconds.reserve(graph.nodes.size());
  for (const Node& node : graph.nodes) {
    double seconds = 0;
    if (!(node.op->flags & kView)) {
      seconds = device.launch_seconds +
                std::max(node_flops(graph, node) / device.flops_per_second,
                         node_bytes(graph, node, is_read) / device.bytes_per_second);
    }
    out.node_seconds.push_back(seconds);
  }
  return out;
}

int useful_threads(const TrainingGraph& training, int most) {
  // So that small networks take the threads that are faster on an Intel Xeon with AMX.
  const DeviceSpeed fast_core{"a core", 1e11, 1e10, 1e-6};
  constexpr double kStart = 40e-6;  // of two threads, and waiting for the last of them
  constexpr double kLeast = 1.3;    // gain of any threads over one
  constexpr double kGain = 1.05;    // gain of each more
  const std::vector<double> seconds = estimate_profile(training, fast_core).node_seconds;
  const double alone = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  int best = 1;
  double least = alone;
  for (int threads = 2; threads <= most; ++threads) {
    const double start = kStart * std::log2(threads);
    double step = 0;
    for (const double kernel : seconds) step += std::min(kernel, start + kernel / threads);
    if (step * kGain >= least) continue;
    least = step;
    best = threads;
  }
  return least * kLeast < alone ? best : 1;
}

}  // namespace pipetrain
