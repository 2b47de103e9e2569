#include "train/part_worker.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/error.h"
#include "train/replica_updates.h"

namespace pipetrain {
namespace {

/// A runtime for gradients alone: its own updates, with a learning rate of 0, are never read.
std::unique_ptr<Runtime> runtime_of_worker(const PipelineRun& run, int replica, int place,
                                           int places) {
  RuntimeOptions options = run.runtime_options();
  options.optimizer = default_settings(OptimizerKind::kSgd);
  options.optimizer.momentum = 0;  // which would need a state
  options.clip_norm = 0;
  options.first_log = log_of_replica(replica);
  options.devices_before = place;
  options.sharing_devices = places;
  return std::make_unique<Runtime>(run.runtime_variants(), run.training_programs(), options);
}

}  // namespace

PartWorker::PartWorker(const PipelineRun& run, Runtime* runtime, std::unique_ptr<Runtime> own)
    : run_(run),
      network_(run.network()),
      own_(std::move(own)),
      runtime_(own_ ? *own_ : *runtime),
      reader_(network_.training_data(), network_.config().pipeline.timeout_seconds),
      sampler_(training_sampler(network_)),
      units_(run, /*evaluation=*/false) {}

PartWorker::PartWorker(PipelineRun& run) : PartWorker(run, &run.runtime(), nullptr) {}

PartWorker::PartWorker(const PipelineRun& run, int replica, int place, int places)
    : PartWorker(run, nullptr, runtime_of_worker(run, replica, place, places)) {}

PartWorker::~PartWorker() = default;

void PartWorker::set_weights(const NamedTensors& weights) {
  for (const auto& [name, value] : weights) runtime_.write(name, value);
}

PartGradient PartWorker::compute(const DataPart& part) {
  const auto number = static_cast<std::uint64_t>(part.number);
  PartGradient out;
  out.part = part;
  out.samples = static_cast<std::int64_t>(sampler_.batch_samples(number));
  const std::vector<Tensor>& columns =
      with_context([&] { return fmt::format("reading the data of part {}", part.number); },
                   [&]() -> const std::vector<Tensor>& {
                     return reader_.read(number, sampler_.batch_indices(number));
                   });
  units_.set(columns, out.samples, number, /*learning_rate=*/0);
  const TrainingGraph& graph = network_.graph();
  out.weight = sum_of_weights(network_, columns.back(),
                              count_labels(graph.loss, columns.back(), out.samples));
  // What is read afterwards is then what the part has added.
  const auto each_statistic = [&](const auto& body) {
    for (const RunningStatistic& statistic : graph.statistics) {
      for (const ValueId id : {statistic.state_mean, statistic.state_variance})
        body(graph.graph[id]);
    }
  };
  each_statistic([&](const Value& value) { runtime_.write(value.name, HostTensor(value.type)); });
  runtime_.run(run_.program(network_.units_of(out.samples)), units_);
  each_statistic(
      [&](const Value& value) { out.statistics[value.name] = runtime_.read(value.name); });
  for (const Parameter& parameter : graph.parameters) {
    if (parameter.gradient) out.gradients[parameter.name] = runtime_.read_gradient(parameter.name);
  }
  out.loss = units_.loss();
  out.correct = units_.correct();
  out.counted = units_.counted();
  return out;
}

}  // namespace pipetrain
