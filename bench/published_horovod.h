// Published scaling efficiencies of Horovod next to what pipetrain's simulator says of data
// parallelism on the same cluster: a section of docs/published.md.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "partition/topology_file.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/simulate/simulate.h"
#include "published_horovod_words.h"
#include "published_networks.h"

namespace pipetrain {

/// What a data-parallel run trains, and how fast one GPU does so alone.
struct HorovodRun {
  const ImageNetwork* network;
  double images_per_second;
  int batch = 64;  // of each GPU
};

/// Seconds of a step on one GPU.
inline double step_seconds(const HorovodRun& run) { return run.batch / run.images_per_second; }

/// Horovod's Tensor Fusion: gradients in the order of the backward pass are summed together as long
/// as they fit in 64 MiB; a larger one is summed alone. A layer's gradients are complete when the
/// backward pass, which takes the time of its multiply-adds in each layer, has passed the layer.
inline std::vector<ReduceBucket> fused_buckets(const ImageNetwork& network, int gpus,
                                               const LinkCost& link) {
  constexpr std::int64_t kMost = 64 << 20;
  std::vector<ReduceBucket> buckets;
  const double all = network.multiply_adds();
  double done = 0;
  for (auto layer = network.layers().rbegin(); layer != network.layers().rend(); ++layer) {
    const auto bytes = static_cast<std::int64_t>(sizeof(float)) * layer->parameters;
    if (buckets.empty() || buckets.back().bytes + bytes > kMost) buckets.emplace_back();
    done += layer->multiply_adds;
    buckets.back().bytes += bytes;
    buckets.back().ready = std::min(1.0, done / all);
  }
  for (ReduceBucket& bucket : buckets)
    bucket.seconds = all_reduce_seconds(bucket.bytes, gpus, link);
  return buckets;
}

/// The share of `gpus` times one GPU's speed that they reach together: one step, simulated.
inline double scaling_efficiency(const HorovodRun& run, int gpus, const LinkCost& link,
                                 bool overlap = true) {
  ScheduleOptions options;
  options.name = "1f1b";
  options.stages = 1;
  options.micro_batches = gpus;  // one for each replica
  options.replicas = {gpus};
  StageSeconds stage;
  stage.forward = step_seconds(run) / 3;
  stage.backward = step_seconds(run) - stage.forward;
  stage.buckets = fused_buckets(*run.network, gpus, link);
  for (ReduceBucket& bucket : stage.buckets) {
    if (!overlap) bucket.ready = 1;
  }
  Costs costs;
  costs.stage = {stage};
  SimulateOptions once;
  once.keep_events = false;
  once.rounds = 1;
  return step_seconds(run) / simulate(generate(options), costs, once).makespan;
}

/// A ring over all GPUs passes the network card of each server once in each direction.
inline LinkCost ring_link(const Topology& topology) {
  const TopologyLevel& network = topology.levels.back();
  return {network.latency_seconds, network.bytes_per_second};
}

/// The same link with other times.
inline LinkCost changed(const LinkCost& link, double latency, double bandwidth) {
  return {latency * link.latency_seconds, bandwidth * link.bytes_per_second};
}

/// A model and what was published of it.
struct HorovodModel {
  const char* name;
  ImageNetwork network;
  double images_per_second;        // of one GPU of such a cluster
  double images_per_second_of_16;  // of 16 GPUs
  double efficiency_of_128, efficiency_of_512;
  double images_per_second_dgx1;  // of a P100 in another machine

  HorovodRun run() const { return {&network, images_per_second}; }
  double published(int gpus) const {
    if (gpus == 16) return images_per_second_of_16 / (16 * images_per_second);
    return gpus == 128 ? efficiency_of_128 : efficiency_of_512;
  }
};

/// The three models of Horovod's README.
inline std::vector<HorovodModel> horovod_models() {
  const ImageNetwork resnet101 = resnet({3, 4, 23, 3});
  // TensorFlow published ResNet-50 and ResNet-152 on a P100: in between by multiply-adds.
  const double small = resnet({3, 4, 6, 3}).multiply_adds();
  const double part =
      (resnet101.multiply_adds() - small) / (resnet({3, 8, 36, 3}).multiply_adds() - small);
  const double seconds = (1 - part) / 219 + part / 91.8;
  return {{"Inception V3", inception_v3(), 134.4, 2022.6, 0.9, 0.9, 142},
          {"ResNet-101", resnet101, 119.4, 1746.2, 0.9, 0.9, 1 / seconds},
          {"VGG-16", vgg16(), 130.9, 1787.4, 0.79, 0.68, 154}};
}

/// One row of efficiencies, of all models.
template <typename Efficiency>
void print_efficiencies(const std::vector<HorovodModel>& models, const char* inputs,
                        Efficiency efficiency) {
  fmt::print("| {} |", inputs);
  for (const HorovodModel& model : models) fmt::print(" {:.0f} % |", 100 * efficiency(model));
  fmt::print("\n");
}

/// What each of the assumed inputs changes.
inline void print_other_inputs(const std::vector<HorovodModel>& models, int gpus,
                               const LinkCost& link) {
  fmt::print("{}", kHorovodOtherInputs);
  const auto with_link = [&](const char* inputs, double latency, double bandwidth) {
    print_efficiencies(models, inputs, [&](const HorovodModel& model) {
      return scaling_efficiency(model.run(), gpus, changed(link, latency, bandwidth));
    });
  };
  print_efficiencies(models, "published",
                     [&](const HorovodModel& model) { return model.published(gpus); });
  with_link("predicted, as above", 1, 1);
  with_link("no latency", 0, 1);
  with_link("five times the latency", 5, 1);
  with_link("half the bandwidth", 1, 0.5);
  print_efficiencies(models, "GPUs as fast as a P100 of a DGX-1", [&](const HorovodModel& model) {
    return scaling_efficiency({&model.network, model.images_per_second_dgx1}, gpus, link);
  });
  print_efficiencies(
      models, "32 images per GPU, the same images/s", [&](const HorovodModel& model) {
        return scaling_efficiency({&model.network, model.images_per_second, 32}, gpus, link);
      });
}

/// The whole section.
inline void print_horovod(const std::filesystem::path& topologies) {
  const Topology topology = read_topology(topologies / "horovod-p100.json");
  const LinkCost link = ring_link(topology);
  const int all = topology.devices();
  const std::vector<HorovodModel> models = horovod_models();
  fmt::print("{}", kHorovodInputs);
  for (const HorovodModel& model : models) {
    const HorovodRun run = model.run();
    double reduce = 0;
    for (const ReduceBucket& bucket : fused_buckets(model.network, all, link))
      reduce += bucket.seconds;
    fmt::print(
        "| {} | {:.1f} M | {:.1f} G | {:.0f} ms | {:.0f} ms | {:.0f} % | **{:.0f} %** | {:.0f} % "
        "|\n",
        model.name, static_cast<double>(model.network.parameters()) / 1e6,
        model.network.multiply_adds() / 1e9, 1e3 * step_seconds(run), 1e3 * reduce,
        100 * model.published(all), 100 * scaling_efficiency(run, all, link),
        100 * scaling_efficiency(run, all, link, false));
  }
  fmt::print("{}", kHorovodSizes);
  for (const int gpus : {16, 128, all}) {
    fmt::print("| {} |", gpus);
    for (const HorovodModel& model : models) {
      fmt::print(" {:.0f} / **{:.0f}** \\| {:.0f} |", 100 * model.published(gpus),
                 100 * scaling_efficiency(model.run(), gpus, link),
                 100 * scaling_efficiency(model.run(), gpus, changed(link, 2, 0.8)));
    }
    fmt::print("\n");
  }
  print_other_inputs(models, all, link);
  fmt::print("{}", kHorovodWords);
}

}  // namespace pipetrain
