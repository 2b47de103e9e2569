// One stage, compiled for one device: kernels at fixed shapes, one arena planned before the first
// step, and the operations that the runtime's instructions stand for. A stage runs several variants
// of the same network (micro-batch sizes, evaluation) on the same parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "ops/registry/registry.h"
#include "pipeline/stage/batched_values.h"
#include "pipeline/stage/compiled_stage.h"
#include "pipeline/stage/micro_batch.h"
#include "pipeline/stage/nonfinite.h"
#include "pipeline/stage/running_statistics.h"
#include "pipeline/stage/stage_content.h"
#include "pipeline/stage/stage_executor.h"
#include "pipeline/stage/stage_gradients.h"
#include "pipeline/stage/stage_memory.h"
#include "pipeline/stage/stage_parameters.h"
#include "pipeline/stage/step_list_run.h"

namespace pipetrain {

struct ExchangedSpan;

/// The streams of a stage on a GPU; both null: it computes in host memory.
struct StageStreams {
  Stream* compute = nullptr;
  Stream* transfer = nullptr;
};

/// The kernel times of one variant.
struct KernelTimes {
  std::vector<double> seconds;     // by node of its graph, summed up
  std::int64_t micro_batches = 0;  // forwards of whole micro-batches
};

class Stage {
 public:
  /// `has_copied` (may be empty) is called with the name of each parameter whose initial value the
  /// stage has copied.
  Stage(int index, const std::vector<StageVariant>& variants, Backend backend,
        const StageCapacity& capacity, const OptimizerSettings& optimizer,
        const StageStreams& streams = {}, const UpdateShare& share = {},
        const std::function<void(const std::string&)>& has_copied = {});
  ~Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  const ArenaBytes& memory() const { return memory_.bytes(); }
  /// Waits until the stage's streams are idle.
  void synchronize() const;
  /// Copies the inputs from the host. On a GPU the table then has their device addresses.
  void begin(StageMicroBatch& micro_batch);
  /// After the last instruction of a micro-batch on a GPU: waits until its host memory is no longer
  /// read and, on the stage with the loss, its results have arrived. Waits for its forward only.
  void end(StageMicroBatch& micro_batch);
  /// Entries of StageMicroBatch::table: the graph's inputs in their order, the label, then values
  /// received.
  std::size_t table_size(int variant) const;
  /// Sets the table's entries of the values received over an edge, given the sender's memory and
  /// the point of its stream that completes them. Values on another device are copied.
  void bind_received(int variant, const ValueEdge& edge, const Stage& sender, const std::byte* base,
                     const StreamPoint* written, StageMicroBatch& micro_batch) const;

  /// The same by exchange: the memory to send, the memory to receive into within a buffer of
  /// received_bytes(), and the table's entries there.
  std::vector<ExchangedSpan> handed_on(int variant, const ValueEdge& edge,
                                       const std::byte* base) const;
  std::size_t received_bytes(int variant, const ValueEdge& edge) const;
  std::vector<ExchangedSpan> received(int variant, const ValueEdge& edge, std::byte* buffer) const;
  void bind_buffer(int variant, const ValueEdge& edge, std::byte* buffer,
                   StageMicroBatch& micro_batch) const;

  /// F. Writes output values into buffer `entry`; returns its memory. `count_statistics` is false
  /// on a recompute.
  std::byte* forward(StageMicroBatch& micro_batch, int entry, bool count_statistics);
  /// Runs the forward again into the slot; output buffers are not touched.
  void recompute(StageMicroBatch& micro_batch);
  enum class Pass : std::uint8_t { kFull, kInput, kWeight };
  /// B, I or W. `first` is true for the first micro-batch of a step: gradients are then overwritten
  /// instead of accumulated. W ignores `entry` and uses that of I.
  std::byte* backward(StageMicroBatch& micro_batch, int entry, Pass pass, bool first);
  /// Computes the batched weight gradients once the batch is full; called after each backward. With
  /// work sharing they may be deferred, until flush_gradients() or the next full batch.
  void complete_gradients(const StageMicroBatch& micro_batch);
  /// Runs deferred work after the last micro-batch of a step; all gradients are then complete.
  void flush_gradients();
  /// Whether batched weight gradients are deferred.
  bool defers_gradients() const {
    return sharing_.work != nullptr && !compiled(0).batch_gradient.empty();
  }
  /// Discards what a round that failed has left: batched values and running statistics.
  void forget_round();

  /// Loss and correct predictions of the micro-batch whose forward ran last (on a GPU: that ended
  /// last); only on the stage with the loss.
  bool has_loss(int variant) const;
  double loss_sum() const { return loss_.loss_sum; }
  double correct() const { return loss_.correct; }

  /// Sizes of the gradients that replicas reduce, in the order in which a backward completes them.
  std::vector<std::size_t> gradient_sizes() const;
  /// Which replica needs the sum of each; kEveryReplica: all.
  std::vector<int> gradient_owners() const;
  /// Makes this stage one of several replicas. The group must outlive it.
  void join(ReplicaGroup& group, int replica);
  /// Lets idle devices run steps of this stage, which is on `device`. It must outlive their runs.
  /// Its workspace gets at least this size, since other tasks use it too.
  void share(SharedWork& work, int device, std::size_t workspace_bytes);
  Workspace workspace() const { return executor_->workspace(); }
  /// Reduces gradients and collected running statistics over the replicas (`all`, in their order).
  /// `contributes`: whether this one has run a micro-batch since the last update.
  void reduce(std::span<Stage* const> all, bool contributes);

  /// Copies the accumulators that other stages computed for tied weights; null: a stage of another
  /// process, which sends them as bytes.
  void fetch_remote(int variant, std::span<Stage* const> stages);
  std::string read_accumulator(int accumulation) const;
  void write_accumulator(int accumulation, std::string_view bytes);
  /// Runs the finish list: from accumulators to gradients.
  void finish_gradients(int variant, int version_copy);
  /// Whether replicas share the updates (update_owners.h).
  bool shares_updates() const { return share_.replicas > 1; }
  /// Writes the squared norm of each gradient owned here (a tied one counts once, and so does one
  /// of several replicas) to its place, by parameter index.
  void squared_norms(int variant, std::span<double> out);
  /// The optimizer step, from weights in copy `from` to copy `to`, with the gradients of
  /// finish_gradients(). Where replicas share it, all make it and wait for each other.
  void update(int variant, int from, int to, double learning_rate, std::int64_t step,
              double gradient_scale);
  /// Applies or discards the running statistics collected since the last call.
  void apply_statistics();
  void forget_statistics();

  /// Reads or writes a parameter or running statistic by name; false when this stage does not hold
  /// it.
  bool read(const std::string& name, int version_copy, HostTensor& out) const;
  bool write(const std::string& name, const HostTensor& value);
  /// All parameters of one copy of the weights by name, and back.
  std::map<std::string, HostTensor> parameters(int version_copy) const;
  void set_parameters(int version_copy, const std::map<std::string, HostTensor>& values);
  /// The state of the stage between steps, with one copy of the weights; and back, into all copies.
  /// Restoring ignores names that the stage does not hold; Error (kUsage) when a weight or running
  /// statistic is missing or of another type.
  StageContent content(int version_copy) const;
  /// Its parameters and running statistics, without the optimizer's state.
  std::map<std::string, HostTensor> weights(int version_copy) const;
  void set_content(const StageContent& content);
  /// Swaps the weights with their moving averages.
  void exchange_averages(int version_copy);
  /// Gives the memory of activations back until the next micro-batch begins, if it can.
  void release_activations();
  /// Reads the gradient of the last update of a parameter; false when there is none here.
  bool read_gradient(const std::string& name, HostTensor& out) const;
  /// Adds the kernel times of a variant since the last call to `out`.
  void take_kernel_times(int variant, KernelTimes& out);
  /// Name of the first value in this stage's gradients or weights that is not finite; empty when
  /// all are.
  std::string first_nonfinite(int version_copy) const;

  // Host memory only; stage_nonfinite.cpp.

  PassPlace place_of(const StageMicroBatch& micro_batch) const;
  /// Whether what a pass of a micro-batch hands to other stages is finite, at `base`.
  bool sends_finite(int variant, const std::byte* base, bool gradient) const;
  /// The first gradient whose first row or column has a value that is not finite. Without `all`,
  /// not of those that belong to several micro-batches.
  std::optional<NonfiniteValue> nonfinite_gradient(bool all) const;
  /// Runs the passes of a micro-batch again to find where its values stop being finite; before its
  /// inputs are released. None: on another stage, or another micro-batch.
  std::optional<NonfiniteValue> find_nonfinite(const StageMicroBatch& micro_batch, bool backward);

 private:
  void write_initial_weights(const std::vector<StageVariant>& variants,
                             const std::function<void(const std::string&)>& has_copied);
  /// A list of deferred steps. It belongs to several micro-batches, or to none.
  struct Deferred {
    StageMicroBatch micro_batch;
    std::optional<StepListRun> run;
    SharedWork::Job job;
  };
  /// The deferred preparation of new weights.
  struct Preparation {
    Deferred list;
    int variant = -1;  // of the preparation; -1: nothing is deferred
    std::uint64_t generation = 0;
  };
  CompiledVariant& compiled(int variant) { return compiled_.variants[at(variant)]; }
  const CompiledVariant& compiled(int variant) const { return compiled_.variants[at(variant)]; }
  StageAddresses addresses(const StageMicroBatch& micro_batch) const;
  StageAddresses run(std::vector<StageStep>& steps, const StageMicroBatch& micro_batch, bool first,
                     std::span<const StageStepAddition> late_additions = {});
  StageAddresses run_forward(const StageMicroBatch& micro_batch);
  void prepare(int variant, int version_copy);
  void forget_overwritten(int variant);
  void defer_prepare(int variant, int version_copy);
  void flush_prepare();
  void defer(Deferred& what, std::vector<StageStep>& steps, bool first);
  bool is_updated_here(std::size_t k) const;
  void share_weights(int to, std::int64_t step);
  bool seems_finite(int accumulation) const;

  int index_;
  UpdateShare share_;
  StageCapacity capacity_;
  OptimizerSettings optimizer_;
  std::unique_ptr<StageExecutor> executor_;  // owns the memory and streams used below
  CompiledStage compiled_;
  StageMemory memory_;
  StageParameters parameters_;
  StageGradients gradients_;
  RunningStatistics statistics_;
  BatchedValues batched_;
  std::vector<const RunningStatistics*> statistics_of_replicas_;  // room for reduce()
  // Work that spans micro-batches, and work sharing.
  WorkSharing sharing_;
  Deferred batch_gradients_;
  bool has_batch_sums_ = false;  // of earlier micro-batches of the step
  Preparation preparation_;
  std::vector<StageUpdates> updates_;  // [variant]
  // Results.
  LossResults loss_;                    // of the micro-batch that was last
  std::vector<std::int64_t> forwards_;  // [variant]: since the last kernel_times()
};

}  // namespace pipetrain
