// Where a stage computes: in host memory, by the thread that calls, or in the memory of a device,
// through its streams. A stage asks this and nothing else for memory, kernels and the little that
// it does beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/kernel/kernel.h"
#include "optim/update.h"
#include "pipeline/stage/compiled_stage.h"
#include "pipeline/stage/micro_batch.h"
#include "pipeline/stage/moments.h"
#include "pipeline/stage/stage_addresses.h"
#include "pipeline/transport/shared_work.h"

namespace pipetrain {

class Device;
class StreamPoint;

struct StageKernel {
  std::unique_ptr<Kernel> kernel;
  bool repeatable = false;  // what it does depends on addresses alone, and may be recorded
};

/// The two halves of an arena: before StageArena::slots, and from there on.
struct ArenaHalves {
  std::byte* begin = nullptr;
  std::byte* slots = nullptr;
};

/// The devices of this process that run tasks of a stage's work while they wait.
struct WorkSharing {
  SharedWork* work = nullptr;  // null: nobody helps
  int device = 0;              // as `work` counts
  SharedWork::Job job = {};    // of the list or update that runs
};

/// Parameters, one behind the other, that one device updates.
struct UpdateTask {
  std::size_t first;  // in StageUpdates::parameters
  std::size_t count = 0;
  double last_seconds = 0;
};

/// The updates of one variant. Of the last step: room for the next.
struct StageUpdates {
  std::vector<ParameterUpdate> parameters;
  std::vector<float*> averages;  // of the same parameters; null: none is kept
  std::vector<UpdateTask> tasks;
};

/// Batch moments of one BatchNorm, one number a channel, that are to be merged.
struct BatchMoments {
  Moments* into;
  const float* mean;
  const float* variance;
  std::size_t channels;
  double count;  // values of each channel
};

class StageExecutor {
 public:
  virtual ~StageExecutor() = default;

  /// The device; null: host memory.
  virtual Device* device() const = 0;
  /// Whether calls only put work into a stream, so that what they compute is there after
  /// synchronize().
  bool is_asynchronous() const { return device() != nullptr; }
  /// Waits until everything is done that was asked for.
  virtual void synchronize() const = 0;

  // While a stage is built. What is taken lives as long as the executor, zeroed.

  /// Error (kModel) when there is no kernel for the node.
  virtual StageKernel make_kernel(const KernelRequest& request) = 0;
  virtual ArenaHalves take_arena(const StageArena& arena) = 0;
  /// Where the steps read a constant, which outlives the executor.
  virtual std::byte* place_constant(const HostTensor& value) = 0;
  /// Where they read a running statistic, which stays where it is on the host.
  virtual std::byte* place_running(const std::string& name, const HostTensor& value) = 0;
  /// Takes a workspace in the place of the one before.
  virtual void take_workspace(std::size_t bytes) = 0;
  virtual Workspace workspace() const = 0;

  // Memory.

  /// Uploads, downloads or copies, and waits.
  virtual void move(void* to, const void* from, std::size_t bytes) const = 0;
  /// Copies within the stage's memory.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  /// to[i] += from[i]
  virtual void add(float* to, const float* from, std::size_t count) = 0;
  /// Values as the host reads them: where they are, or copied into `room`.
  virtual std::span<const float> read_back(std::span<const float> values,
                                           std::vector<float>& room) const = 0;
  bool is_finite(std::span<const float> values) const;

  // Micro-batches.

  /// Takes the inputs over from the host; the table then has their addresses.
  virtual void begin(const CompiledVariant& variant, StageMicroBatch& micro_batch) = 0;
  /// Makes the values of an edge readable that a stage on `sender` (null: host memory) wrote before
  /// `written` (null: they are there). The table has their addresses there, and then here.
  virtual void receive(const CompiledVariant& variant, const ValueEdge& edge, Device* sender,
                       const StreamPoint* written, StageMicroBatch& micro_batch) = 0;
  /// Takes the results of a micro-batch from where a forward has written them (`correct`: null when
  /// there is none) into `results`, or keeps them for end().
  virtual void take_loss(const StageMicroBatch& micro_batch, const float* loss_sum,
                         const float* correct, LossResults& results) = 0;
  /// After the last instruction: host memory is no longer read; `results` (null: this stage has no
  /// loss) are there.
  virtual void end(StageMicroBatch& micro_batch, LossResults* results) = 0;

  // Lists of steps.

  virtual float* loss_scale() = 0;
  virtual void set_loss_scale(float value) = 0;
  /// The running statistics have changed on the host.
  virtual void upload_running() = 0;
  /// Does what run() does, or what it did when all of this was the same.
  virtual void run(const std::vector<StageStep>& steps, const StageAddresses& addresses, bool first,
                   const std::function<void()>& run) = 0;

  // Once a micro-batch or once a step.

  /// Merges the moments of a micro-batch's BatchNorms in their order, at the latest in
  /// merge_moments().
  virtual void collect_moments(std::span<const BatchMoments> all) = 0;
  /// The stage's streams have been waited for.
  virtual void merge_moments() = 0;
  /// Writes the sum of squares to `out`, at the latest in finish_sums().
  virtual void sum_of_squares(std::span<const float> values, double& out) = 0;
  virtual void finish_sums() = 0;
  virtual void update(StageUpdates& updates, std::int64_t step, double gradient_scale,
                      double average_decay, WorkSharing& sharing) = 0;
};

}  // namespace pipetrain
