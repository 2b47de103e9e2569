// A stage on a GPU: it enqueues its work on two streams. Beside the arena it has buffers for inputs
// from elsewhere, results that are being copied to the host, and stream points.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "pipeline/stage/stage_executor.h"
#include "pipeline/stage/stage_recordings.h"
#include "pipeline/transport/host_staging.h"
#include "tensor/distinct_constants.h"

namespace pipetrain {

/// Copies of a micro-batch's inputs, and its results, from its forward to its last instruction.
/// Buffers are reused and fit any variant, so a run allocates only in its first round.
struct DeviceBuffers {
  DeviceMemory inputs;                  // graph inputs and label
  DeviceMemory received;                // values of stages on other devices; allocated when needed
  DeviceMemory results;                 // on the host: loss sum, correct predictions
  std::unique_ptr<StreamPoint> copied;  // on the transfer stream: the copies are done
  std::unique_ptr<StreamPoint>
      completed;  // on the compute stream: inputs are copied, results have arrived
  std::unique_ptr<StreamPoint> free;  // on the compute stream: the last reader is done
  bool has_completed = false;         // `completed` has been recorded for this micro-batch
};

/// The batch moments of one micro-batch, being copied to the host.
struct StageMoments {
  struct One {
    BatchMoments of;
    std::size_t mean, variance;  // offsets in `host`
  };
  DeviceMemory host;
  std::vector<One> of;
};

class StageDevice final : public StageExecutor {
 public:
  StageDevice(Stream& compute, Stream& transfer);

  Device* device() const override { return &compute_.device(); }
  void synchronize() const override {
    transfer_.synchronize();
    compute_.synchronize();
  }

  StageKernel make_kernel(const KernelRequest& request) override;
  ArenaHalves take_arena(const StageArena& arena) override;
  std::byte* place_constant(const HostTensor& value) override;
  std::size_t constant_bytes() const override;
  std::byte* place_running(const std::string& name, const HostTensor& value) override;
  void take_workspace(std::size_t bytes) override;
  Workspace workspace() const override { return {workspace_.data(), workspace_.bytes()}; }

  void move(void* to, const void* from, std::size_t bytes) const override {
    compute_.copy(to, from, bytes);
    compute_.synchronize();
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    compute_.copy(to, from, bytes);
  }
  void add(float* to, const float* from, std::size_t count) override {
    device()->add(compute_, to, from, count);
  }
  std::span<const float> read_back(std::span<const float> values,
                                   std::vector<float>& room) const override;

  void begin(const CompiledVariant& variant, StageMicroBatch& micro_batch) override;
  void receive(const CompiledVariant& variant, const ValueEdge& edge, Device* sender,
               const StreamPoint* written, StageMicroBatch& micro_batch) override;
  void take_loss(const StageMicroBatch& micro_batch, const float* loss_sum, const float* correct,
                 LossResults& results) override;
  void end(StageMicroBatch& micro_batch, LossResults* results) override;

  float* loss_scale() override { return reinterpret_cast<float*>(loss_scale_.data()); }
  void set_loss_scale(float value) override { device()->set(compute_, loss_scale(), value); }
  void upload_running() override;
  void run(const std::vector<StageStep>& steps, const StageAddresses& addresses, bool first,
           const std::function<void()>& run) override;

  void collect_moments(std::span<const BatchMoments> all) override;
  void merge_moments() override;
  void sum_of_squares(std::span<const float> values, double& out) override;
  void finish_sums() override;
  void update(StageUpdates& updates, std::int64_t step, double gradient_scale, double average_decay,
              WorkSharing& sharing) override;

 private:
  /// Returns unused buffers; the transfer stream waits for their last reader.
  int take_buffers(std::size_t most_input_bytes);
  void give_back(int buffers);
  DeviceBuffers& buffers(int index) { return *buffers_[static_cast<std::size_t>(index)]; }
  /// Allocates host memory for moments, and takes it back after merging.
  DeviceMemory take_moments(std::size_t bytes);
  void give_back(DeviceMemory moments);
  /// Enqueues a copy of what another device completes at `written` on the transfer stream.
  void fetch(Device& sender, void* to, const void* from, std::size_t bytes,
             const StreamPoint* written);

  struct Copy {
    const std::byte* from;
    std::size_t offset, bytes;  // on the host
  };
  struct Running {
    DeviceMemory memory;
    const HostTensor* host;
  };

  Stream& compute_;
  Stream& transfer_;
  DeviceMemory arena_, workspace_, loss_scale_;
  DistinctConstants distinct_constants_;
  std::vector<DeviceMemory> constants_;     // copies of those
  std::map<std::string, Running> running_;  // running statistics by name
  std::vector<std::unique_ptr<DeviceBuffers>> buffers_;
  std::vector<int> free_buffers_;
  std::vector<StageMoments> moments_;  // in the order of the micro-batches
  std::multimap<std::size_t, DeviceMemory> free_moments_;
  std::map<const Device*, HostStaging> stagings_;  // by sender
  DeviceMemory sums_;
  std::vector<std::span<const float>> to_sum_;  // until finish_sums(), which writes there:
  std::vector<double*> sums_of_;
  std::vector<DeviceUpdate> updates_;  // of the last update: room for the next
  StageRecordings recordings_;
};

}  // namespace pipetrain
