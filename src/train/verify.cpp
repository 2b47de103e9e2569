#include "train/verify.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "data/loading/loader.h"
#include "pipeline/runtime/oracle.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "train/batch_source.h"

namespace pipetrain {
namespace {

/// Mini-batches read in advance, so that both runs get the same.
class FixedUnits final : public MicroBatchSource {
 public:
  FixedUnits(const PipelineRun& run, std::int64_t batches) {
    const PlannedNetwork& network = run.network();
    const OptimizationConfig& settings = network.config().optimization;
    const Sampler sampler(network.data().train->size(),
                          {static_cast<std::size_t>(settings.batch_size), settings.seed,
                           settings.shuffle, settings.drop_last});
    Loader loader(network.training_data(), sampler, 0, static_cast<std::uint64_t>(batches));
    for (std::int64_t b = 0; b < batches; ++b) {
      const Batch* batch = loader.next();
      PT_CHECK(batch != nullptr, kInternal, "the data end before the step");
      std::vector<Tensor> columns;
      for (const Tensor& column : batch->columns) {
        memory_.emplace_back(column.type);
        std::memcpy(memory_.back().view().data, column.data, column.bytes());
        columns.push_back(memory_.back().view());
      }
      const auto samples = static_cast<std::int64_t>(batch->samples);
      std::vector<MicroBatch> units;
      cut_into_units(run, columns, samples, /*evaluation=*/false, batch->step,
                     counted_elements(network.graph().loss, columns.back(), samples), units);
      units_.insert(units_.end(), units.begin(), units.end());
    }
    rate_ = settings.learning_rate.peak;
  }

  MicroBatch& acquire(int unit) override { return units_[static_cast<std::size_t>(unit)]; }
  void release(int) override {}
  double learning_rate(int) const override { return rate_; }
  std::int64_t updates_before() const override { return 0; }
  int count() const { return static_cast<int>(units_.size()); }
  std::vector<double> losses() const {
    std::vector<double> out;
    for (const MicroBatch& unit : units_) out.push_back(unit.loss_sum);
    return out;
  }

 private:
  std::vector<HostTensor> memory_;
  std::vector<MicroBatch> units_;
  double rate_ = 0;
};

}  // namespace

void compare(const std::string& what, const HostTensor& a, const HostTensor& b,
             std::vector<std::string>& different) {
  const bool same = static_cast<bool>(a) == static_cast<bool>(b) &&
                    (!a || (a.type() == b.type() &&
                            std::memcmp(a.view().data, b.view().data, a.type().bytes()) == 0));
  if (same) return;
  double gap = 0;
  if (a && b && a.type() == b.type() && a.type().dtype == DType::kFloat32) {
    for (std::int64_t i = 0; i < a.type().count(); ++i) {
      gap = std::max(gap, std::abs(static_cast<double>(a.view().as<float>()[i]) -
                                   static_cast<double>(b.view().as<float>()[i])));
    }
  }
  different.push_back(fmt::format("{} (largest difference {:.3g})", printable(what), gap));
}

Verification verify(PipelineRun& run) {
  const PlannedNetwork& network = run.network();
  Verification result;
  const bool replay = network.asynchronous() || network.has_replicas();
  // Stages are compiled for asynchronous rounds that end with the epoch.
  const std::int64_t wanted =
      network.asynchronous()
          ? std::min<std::int64_t>(2 * network.devices(), network.round_batches(0))
          : 1;
  result.steps = std::min(wanted, network.total_steps());
  FixedUnits units(run, result.steps);
  const Program program = run.training_program(units.count());

  std::vector<RuntimeVariant> variants = run.runtime_variants();
  Program reference = program;
  int stages = network.stages();
  if (replay) {
    result.reference = network.asynchronous()
                           ? "a replay of the schedule in one thread"
                           : "one device with one gradient accumulator per replica";
  } else {
    result.reference = "one device without a pipeline";
    ScheduleOptions options;
    options.name = "gpipe";
    options.micro_batches = units.count();
    options.gradient_sync = program.gradient_sync;
    reference = lower(generate(options), {});
    stages = 1;
    for (RuntimeVariant& variant : variants) {
      for (int& stage : variant.stage_of_forward) stage = std::min(stage, 0);
    }
  }
  Oracle oracle(std::move(variants), stages, run.runtime_options());
  oracle.run(reference, units);
  const std::vector<double> expected = units.losses();
  result.skipped = run.runtime().run(program, units).skipped;
  const std::vector<double> losses = units.losses();
  for (std::size_t k = 0; k < losses.size(); ++k) {
    ++result.losses;
    if (std::bit_cast<std::uint64_t>(losses[k]) != std::bit_cast<std::uint64_t>(expected[k]))
      result.different.push_back(fmt::format("loss of micro-batch {}", k));
  }
  const TrainingGraph& graph = network.graph();
  for (const Parameter& parameter : graph.parameters) {
    if (!parameter.gradient) continue;
    ++result.gradients;
    compare("gradient of " + parameter.name, run.runtime().read_gradient(parameter.name),
            oracle.read_gradient(parameter.name), result.different);
  }
  for (const Value& value : graph.graph.values) {
    if (value.role != Role::kParameter && value.role != Role::kState) continue;
    ++result.parameters;
    compare(value.name, run.runtime().read(value.name), oracle.read(value.name), result.different);
  }
  return result;
}

}  // namespace pipetrain
