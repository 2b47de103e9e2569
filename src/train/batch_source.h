// Feeds the runtime: splits mini-batches into the micro-batches of a round.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "data/loading/loader.h"
#include "pipeline/runtime/runtime.h"
#include "train/pipeline_run.h"
#include "train/round_saves.h"

namespace pipetrain {

/// Elements of the labels that count towards the loss: all but ignore_index.
std::int64_t count_labels(const Loss& loss, const Tensor& label, std::int64_t samples);
/// The same, at least 1.
std::int64_t counted_elements(const Loss& loss, const Tensor& label, std::int64_t samples);

/// Their total weight: their number, or while training the sum of the weights of their classes.
double sum_of_weights(const Network& network, const Tensor& label, std::int64_t counted);
/// The same; 1 in place of 0.
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
/// of them, kept until every stage here has used the last.
class StreamUnits final : public MicroBatchSource {
 public:
  struct Done {
    std::uint64_t step;
    std::int64_t samples;
    double loss;
    double correct;
    std::int64_t counted;
  };
  struct Shape {
    std::uint64_t first_step = 0;
    int micro_batches = 1;  // of each mini-batch; the last one may have fewer
    int in_flight = 1;      // how many mini-batches may be between their first and last use
    /// Mini-batches of the round that are done, where it is taken up again; the loader gives the
    /// ones after them.
    int done = 0;
  };
  struct Callbacks {
    std::function<double(std::uint64_t step)> learning_rate;
    /// In process 0, in the order of the steps, one call at a time.
    std::function<void(const Done&)> done;
    /// In other processes: sends the loss of a micro-batch to note_loss() in process 0.
    std::function<void(int unit, double sum, double correct)> loss;
  };
  StreamUnits(const PipelineRun& run, const Program& program, Loader& loader, const Shape& shape,
              RoundSaves& saves, Callbacks callbacks);

  MicroBatch& acquire(int unit) override;
  int variant(int unit) override;
  void release(int unit) override;
  void abort() override;
  double learning_rate(int unit) const override {
    return callbacks_.learning_rate(step_of(unit / shape_.micro_batches));
  }
  std::int64_t updates_before() const override {
    return static_cast<std::int64_t>(shape_.first_step);
  }
  int end_before(int unit) override { return saves_.end_before(unit); }
  void updated(int stage, int replica, int unit, int version) override {
    saves_.updated(stage, replica, unit, version);
  }

  /// Of another process.
  void note_loss(int unit, double sum, double correct);
  /// Reads what no stage here has needed, up to the end of the round.
  void finish(int mini_batches);

 private:
  struct Slot {
    std::vector<MicroBatch> units;
    BatchMemory memory;
    int left = 0;  // units not yet released
  };
  /// The losses of a mini-batch, as far as they are known.
  struct Losses {
    std::int64_t samples = 0, counted = 1;
    double weight = 1;
    std::vector<std::pair<double, double>> units;  // sum, correct
    int known = 0;
  };
  std::uint64_t step_of(int batch) const {
    return shape_.first_step + static_cast<std::uint64_t>(batch);
  }
  bool is_used(int unit) const;
  void load(int batch);
  void free_slots();
  void add_loss(int unit, double sum, double correct);
  void tell_done();
  Slot& slot(int batch) { return slots_[static_cast<std::size_t>(batch) % slots_.size()]; }

  const PipelineRun& run_;
  const Program& program_;
  Loader& loader_;
  const Shape shape_;
  RoundSaves& saves_;
  Callbacks callbacks_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::atomic<bool> aborted_ = false;
  int loaded_ = 0, released_ = 0;  // mini-batches
  std::map<int, Losses> losses_;   // of mini-batches that are not told yet
  int told_ = 0;                   // mini-batches
};

}  // namespace pipetrain
