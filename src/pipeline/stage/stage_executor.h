// Where a stage computes: in host memory on the calling thread, or on a GPU through its streams. A
// stage uses this interface for all memory, kernels and auxiliary operations.
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

/// The idle devices of this process that may run tasks of a stage.
struct WorkSharing {
  SharedWork* work = nullptr;  // null: no work sharing
  int device = 0;              // as `work` counts
  SharedWork::Job job = {};    // of the current list or update
};

/// A range of parameters that one device updates.
struct UpdateTask {
  std::size_t first;  // in StageUpdates::parameters
  std::size_t count = 0;
  double last_seconds = 0;
};

/// The updates of one variant. Kept as a buffer for the next step.
struct StageUpdates {
  std::vector<ParameterUpdate> parameters;
  std::vector<float*> averages;  // of the same parameters; null: none is kept
  std::vector<UpdateTask> tasks;
};

/// Batch moments of one BatchNorm, one value per channel, to be merged.
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
  /// Whether calls only enqueue work, whose results are ready after synchronize().
  bool is_asynchronous() const { return device() != nullptr; }
  /// Waits until all work is done.
  virtual void synchronize() const = 0;

  // Used while a stage is built. Memory is zeroed and lives as long as the executor.

  /// Error (kModel) when there is no kernel for the node.
  virtual StageKernel make_kernel(const KernelRequest& request) = 0;
  virtual ArenaHalves take_arena(const StageArena& arena) = 0;
  /// The address at which steps read a constant, which must outlive the executor unchanged. Those
  /// with the same bytes may share one.
  virtual std::byte* place_constant(const HostTensor& value) = 0;
  /// The same for a running statistic, whose host address is fixed.
  virtual std::byte* place_running(const std::string& name, const HostTensor& value) = 0;
  /// Bytes of copies of constants.
  virtual std::size_t constant_bytes() const = 0;
  /// Between rounds: may give the memory of activations back until the next micro-batch begins.
  virtual void release_activations() {}
  /// Replaces the workspace.
  virtual void take_workspace(std::size_t bytes) = 0;
  virtual Workspace workspace() const = 0;

  // Memory.

  /// Uploads, downloads or copies, and waits.
  virtual void move(void* to, const void* from, std::size_t bytes) const = 0;
  /// Copies within the stage's memory.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  /// to[i] += from[i]
  virtual void add(float* to, const float* from, std::size_t count) = 0;
  /// Values in host memory: in place, or copied into `room`.
  virtual std::span<const float> read_back(std::span<const float> values,
                                           std::vector<float>& room) const = 0;
  bool is_finite(std::span<const float> values) const;

  // Micro-batches.

  /// Copies the inputs from the host; the table then has their addresses.
  virtual void begin(const CompiledVariant& variant, StageMicroBatch& micro_batch) = 0;
  /// Makes values of an edge readable that a stage on `sender` (null: host memory) completes at
  /// `written` (null: complete). Replaces the sender's addresses in the table with local ones.
  virtual void receive(const CompiledVariant& variant, const ValueEdge& edge, Device* sender,
                       const StreamPoint* written, StageMicroBatch& micro_batch) = 0;
  /// Reads the results of a micro-batch where a forward wrote them (`correct`: may be null) into
  /// `results`, or keeps them for end().
  virtual void take_loss(const StageMicroBatch& micro_batch, const float* loss_sum,
                         const float* correct, LossResults& results) = 0;
  /// After the last instruction: waits until host memory is no longer read and `results` (null:
  /// this stage has no loss) have arrived.
  virtual void end(StageMicroBatch& micro_batch, LossResults* results) = 0;

  // Lists of steps.

  virtual float* loss_scale() = 0;
  virtual void set_loss_scale(float value) = 0;
  /// Called when the running statistics have changed on the host.
  virtual void upload_running() = 0;
  /// As run(), or replays a recording of it with the same arguments.
  virtual void run(const std::vector<StageStep>& steps, const StageAddresses& addresses, bool first,
                   const std::function<void()>& run) = 0;

  // Once per micro-batch or once per step.

  /// Merges the moments of a micro-batch's BatchNorms in order, possibly deferred to
  /// merge_moments().
  virtual void collect_moments(std::span<const BatchMoments> all) = 0;
  /// Requires that the stage's streams are idle.
  virtual void merge_moments() = 0;
  /// Writes the sum of squares to `out`, possibly deferred to finish_sums().
  virtual void sum_of_squares(std::span<const float> values, double& out) = 0;
  virtual void finish_sums() = 0;
  virtual void update(StageUpdates& updates, std::int64_t step, double gradient_scale,
                      double average_decay, WorkSharing& sharing) = 0;
};

}  // namespace pipetrain
