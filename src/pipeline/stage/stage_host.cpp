#include "pipeline/stage/stage_host.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/parallel_blocks.h"

namespace pipetrain {
namespace {

void add_into(float* __restrict to, const float* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

/// The updates of a variant as tasks for idle devices: one per large parameter, small ones grouped.
class UpdateRun : public SharedTasks {
 public:
  UpdateRun(StageUpdates& updates, std::int64_t step, double gradient_scale, double average_decay)
      : updates_(&updates),
        step_(step),
        gradient_scale_(gradient_scale),
        average_decay_(average_decay) {
    if (updates.tasks.empty()) cut();
  }

  std::size_t count() const override { return updates_->tasks.size(); }
  double seconds(std::size_t task) const override { return updates_->tasks[task].last_seconds; }
  std::size_t workspace_bytes(std::size_t /*task*/) const override { return 0; }
  void run(std::size_t task, std::byte* /*workspace*/) override {
    UpdateTask& one = updates_->tasks[task];
    const double start = steady_seconds();
    run(one.first, one.count);
    one.last_seconds = steady_seconds() - start;
  }
  void run_all() { run(0, updates_->parameters.size()); }

 private:
  void cut() {
    constexpr std::size_t kLeastElements = std::size_t{1} << 18;
    std::size_t elements = kLeastElements;  // of the last task
    for (std::size_t k = 0; k < updates_->parameters.size(); ++k) {
      if (elements >= kLeastElements) {
        updates_->tasks.push_back({k});
        elements = 0;
      }
      ++updates_->tasks.back().count;
      elements += updates_->parameters[k].parameter.size();
    }
  }

  void run(std::size_t first, std::size_t count) {
    update_all(step_, gradient_scale_, std::span(updates_->parameters).subspan(first, count));
    for (std::size_t k = first; k < first + count; ++k) {
      float* average = updates_->averages[k];
      if (!average) continue;
      const std::span<float> weights = updates_->parameters[k].parameter;
      update_average(average_decay_, step_, {average, weights.size()}, weights);
    }
  }

  StageUpdates* updates_;
  std::int64_t step_;
  double gradient_scale_, average_decay_;
};

}  // namespace

StageKernel StageHost::make_kernel(const KernelRequest& request) {
  return {pipetrain::make_kernel(backend_, request), false};
}

ArenaHalves StageHost::take_arena(const StageArena& arena) {
  // Matmuls read weights down columns, where small pages cost up to a fifth of their time.
  // Activations are read along rows and are most of the memory; in virtual machines small pages are
  // allocated several times faster.
  arena_ = PageBlock(arena.slots, /*huge_pages=*/true);
  for (const ArenaRange& range : arena.sparse) arena_.use_small_pages(range.offset, range.bytes);
  activations_ = PageBlock(arena.bytes - arena.slots);
  return {arena_.data(), activations_.data()};
}

void StageHost::release_activations() {
  if (std::exchange(has_activations_, false)) activations_.release();
}

std::byte* StageHost::place_constant(const HostTensor& value) {
  return static_cast<std::byte*>(value.view().data);
}

std::byte* StageHost::place_running(const std::string& /*name*/, const HostTensor& value) {
  return static_cast<std::byte*>(value.view().data);
}

void StageHost::take_workspace(std::size_t bytes) { workspace_ = Buffer(bytes); }

void StageHost::copy(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

void StageHost::move(void* to, const void* from, std::size_t bytes) const {
  copy_in_parallel(to, from, bytes);
}

void StageHost::add(float* to, const float* from, std::size_t count) { add_into(to, from, count); }

void StageHost::begin(const CompiledVariant& /*variant*/, StageMicroBatch& /*micro_batch*/) {
  // Not earlier: the model's own copy of the weights is released before the first step.
  if (!std::exchange(has_activations_, true)) activations_.take();
}

void StageHost::take_loss(const StageMicroBatch& /*micro_batch*/, const float* loss_sum,
                          const float* correct, LossResults& results) {
  results.loss_sum = static_cast<double>(*loss_sum);
  results.correct = correct ? static_cast<double>(*correct) : 0;
}

void StageHost::collect_moments(std::span<const BatchMoments> all) {
  for (const BatchMoments& one : all)
    one.into->merge({one.mean, one.channels}, {one.variance, one.channels}, one.count);
}

void StageHost::sum_of_squares(std::span<const float> values, double& out) {
  out = pipetrain::sum_of_squares(values);
}

void StageHost::update(StageUpdates& updates, std::int64_t step, double gradient_scale,
                       double average_decay, WorkSharing& sharing) {
  UpdateRun run(updates, step, gradient_scale, average_decay);
  if (sharing.work) {
    sharing.work->run(sharing.job, sharing.device, run, nullptr);
  } else {
    run.run_all();
  }
}

}  // namespace pipetrain
