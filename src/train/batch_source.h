// Feeds the runtime: splits mini-batches into the micro-batches of a round.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "data/loading/loader.h"
#include "pipeline/runtime/runtime.h"
#include "train/pipeline_run.h"

namespace pipetrain {

/// Elements of the labels that count towards the loss: all but ignore_index.
std::int64_t counted_elements(const Loss& loss, const Tensor& label, std::int64_t samples);

/// Their total weight: their number, or while training the sum of the weights of their classes.
double counted_weight(const Network& network, const Tensor& label, std::int64_t counted);

/// Points the micro-batches of a mini-batch at their samples. columns: each (samples, …), which
/// stay where they are; `weight` is the total weight of the counted labels.
void cut_into_units(const PipelineRun& run, const std::vector<Tensor>& columns,
                    std::int64_t samples, bool evaluation, std::uint64_t step, double weight,
                    std::vector<MicroBatch>& units);

/// The micro-batches of one mini-batch, for a synchronous or evaluation round.
class BatchUnits final : public MicroBatchSource {
 public:
  /// `batch` stays valid during the round.
  BatchUnits(const PipelineRun& run, bool evaluation);
  void set(const std::vector<Tensor>& columns, std::int64_t samples, std::uint64_t step,
           double learning_rate);

  MicroBatch& acquire(int unit) override { return units_[static_cast<std::size_t>(unit)]; }
  void release(int) override {}
  double learning_rate(int) const override { return learning_rate_; }
  std::int64_t updates_before() const override { return static_cast<std::int64_t>(step_); }

  double loss() const;     // of the whole mini-batch: a mean, by weights of classes
  double correct() const;  // count
  std::int64_t counted() const { return counted_; }

 private:
  const PipelineRun& run_;
  bool evaluation_;
  std::vector<MicroBatch> units_;
  std::uint64_t step_ = 0;
  double learning_rate_ = 0;
  std::int64_t counted_ = 1;
  double weight_ = 1;
};

/// Mini-batches of an asynchronous round, cut into micro-batches: read when a stage needs the first
/// of them, kept until every stage has used the last.
class StreamUnits final : public MicroBatchSource {
 public:
  struct Done {
    std::uint64_t step;
    std::int64_t samples;
    double loss;
    double correct;
    std::int64_t counted;
  };
  /// See MicroBatchSource::updated().
  using Updated = std::function<void(int stage, int replica, int unit, int version)>;
  /// `micro_batches`: of each mini-batch; the last one may have fewer. `in_flight`: how
  /// many mini-batches may be between their first and last use. `done`: mini-batches of the round
  /// that are done, where it is taken up again; the loader gives the ones after them. `on_done` is
  /// called in order of the steps, by one thread at a time.
  StreamUnits(const PipelineRun& run, Loader& loader, std::uint64_t first_step, int micro_batches,
              int in_flight, int done, std::function<double(std::uint64_t step)> learning_rate,
              std::function<void(const Done&)> on_done, Updated on_update);

  MicroBatch& acquire(int unit) override;
  void release(int unit) override;
  double learning_rate(int unit) const override {
    return learning_rate_(first_step_ + static_cast<std::uint64_t>(unit / micro_batches_));
  }
  std::int64_t updates_before() const override { return static_cast<std::int64_t>(first_step_); }
  void updated(int stage, int replica, int unit, int version) override {
    on_update_(stage, replica, unit, version);
  }

 private:
  struct Slot {
    std::vector<MicroBatch> units;
    BatchMemory memory;
    std::int64_t samples = 0, counted = 1;
    double weight = 1;
    int left = 0;  // units not yet released
  };
  void load(int batch);
  Slot& slot(int batch) { return slots_[static_cast<std::size_t>(batch) % slots_.size()]; }

  const PipelineRun& run_;
  Loader& loader_;
  std::uint64_t first_step_;
  int micro_batches_;
  std::function<double(std::uint64_t)> learning_rate_;
  std::function<void(const Done&)> on_done_;
  Updated on_update_;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int loaded_, released_;  // mini-batches
};

}  // namespace pipetrain
