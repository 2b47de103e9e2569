// A stage that computes in host memory, on the calling thread.
#pragma once

#include "base/page_block.h"
#include "ops/registry/registry.h"
#include "pipeline/stage/stage_executor.h"

namespace pipetrain {

class StageHost final : public StageExecutor {
 public:
  explicit StageHost(Backend backend) : backend_(backend) {}

  Device* device() const override { return nullptr; }
  void synchronize() const override {}

  StageKernel make_kernel(const KernelRequest& request) override;
  ArenaHalves take_arena(const StageArena& arena) override;
  void release_activations() override;
  std::byte* place_constant(const HostTensor& value) override;
  std::size_t constant_bytes() const override { return 0; }
  std::byte* place_running(const std::string& name, const HostTensor& value) override;
  void take_workspace(std::size_t bytes) override;
  Workspace workspace() const override { return {workspace_.data(), workspace_.bytes()}; }

  void move(void* to, const void* from, std::size_t bytes) const override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void add(float* to, const float* from, std::size_t count) override;
  std::span<const float> read_back(std::span<const float> values,
                                   std::vector<float>& /*room*/) const override {
    return values;
  }

  void begin(const CompiledVariant& variant, StageMicroBatch& micro_batch) override;
  void receive(const CompiledVariant& /*variant*/, const ValueEdge& /*edge*/, Device* /*sender*/,
               const StreamPoint* /*written*/, StageMicroBatch& /*micro_batch*/) override {}
  void take_loss(const StageMicroBatch& micro_batch, const float* loss_sum, const float* correct,
                 LossResults& results) override;
  void end(StageMicroBatch& /*micro_batch*/, LossResults* /*results*/) override {}

  float* loss_scale() override { return &loss_scale_; }
  void set_loss_scale(float value) override { loss_scale_ = value; }
  void upload_running() override {}
  void run(const std::vector<StageStep>& /*steps*/, const StageAddresses& /*addresses*/,
           bool /*first*/, const std::function<void()>& run) override {
    run();
  }

  void collect_moments(std::span<const BatchMoments> all) override;
  void merge_moments() override {}
  void sum_of_squares(std::span<const float> values, double& out) override;
  void finish_sums() override {}
  void update(StageUpdates& updates, std::int64_t step, double gradient_scale, double average_decay,
              WorkSharing& sharing) override;

 private:
  Backend backend_;
  PageBlock arena_;        // what lies before the slots
  PageBlock activations_;  // slots, edges and temporaries
  bool has_activations_ = false;
  Buffer workspace_;
  float loss_scale_ = 1;
};

}  // namespace pipetrain
