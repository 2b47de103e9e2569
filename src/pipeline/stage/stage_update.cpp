// Stage: from gradients to new weights.

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "ops/adding_kernel.h"
#include "optim/update.h"
#include "pipeline/stage/stage.h"
#include "pipeline/stage/stage_device.h"
#include "pipeline/stage/stage_state.h"

namespace pipetrain {

/// Where the gradient of a held parameter lies after finish_gradients(); null when it has none.
std::byte* Stage::gradient_address(const Compiled& variant, std::size_t k) const {
  const Location& at = variant.gradient_at[k];
  if (at.space == Space::kAccumulator) return accumulators_[at.offset];
  if (at.space == Space::kTemporary) return temporary_ + at.offset;
  PT_CHECK(at.space == Space::kAbsent, kInternal, "a gradient in an unexpected place");
  return nullptr;
}

void Stage::squared_norms(int variant, std::span<double> out) {
  const Compiled& compiled = *variants_[static_cast<std::size_t>(variant)];
  std::vector<std::span<const float>> gradients;
  std::vector<std::size_t> places;  // in `out`
  for (std::size_t k = 0; k < compiled.slice->parameters.size(); ++k) {
    std::byte* gradient = gradient_address(compiled, k);
    const auto parameter = static_cast<std::size_t>(compiled.slice->parameters[k]);
    if (!gradient || compiled.slices->owner[parameter] != index_) continue;
    const std::span<const float> values = floats(gradient, compiled.parameter_states[k]->type);
    if (!on_device_) {
      out[parameter] = sum_of_squares(values);
      continue;
    }
    gradients.push_back(values);
    places.push_back(parameter);
  }
  if (gradients.empty()) return synchronize();
  const std::size_t count = gradients.size();
  const std::size_t bytes = (1 + Device::kScratch) * count * sizeof(double);
  if (on_device_->sums.bytes() < bytes) on_device_->sums = on_device_->device().allocate(bytes);
  auto* there = reinterpret_cast<double*>(on_device_->sums.data());
  on_device_->device().sums_of_squares(on_device_->compute(), gradients, there, there + count);
  std::vector<double> sums(count);
  on_device_->compute().copy(sums.data(), there, count * sizeof(double));
  synchronize();
  for (std::size_t k = 0; k < count; ++k) out[places[k]] = sums[k];
}

/// The updates of a variant. Devices that wait may make some: large parameters alone, small ones
/// together.
class Stage::UpdateRun : public SharedPieces {
 public:
  UpdateRun(Compiled& variant, std::int64_t step, double gradient_scale, double average_decay)
      : variant_(&variant),
        step_(step),
        gradient_scale_(gradient_scale),
        average_decay_(average_decay) {
    if (variant.update_pieces.empty()) cut();
  }

  std::size_t count() const override { return variant_->update_pieces.size(); }
  double seconds(std::size_t piece) const override {
    return variant_->update_pieces[piece].last_seconds;
  }
  std::size_t workspace_bytes(std::size_t /*piece*/) const override { return 0; }
  void run(std::size_t piece, std::byte* /*workspace*/) override {
    StageUpdatePiece& one = variant_->update_pieces[piece];
    const double start = steady_seconds();
    run(one.first, one.count);
    one.last_seconds = steady_seconds() - start;
  }
  void run_all() { run(0, variant_->updates.size()); }

 private:
  void cut() {
    constexpr std::size_t kLeastElements = std::size_t{1} << 18;
    std::size_t elements = kLeastElements;  // of the last piece
    for (std::size_t k = 0; k < variant_->updates.size(); ++k) {
      if (elements >= kLeastElements) {
        variant_->update_pieces.push_back({k});
        elements = 0;
      }
      ++variant_->update_pieces.back().count;
      elements += variant_->updates[k].parameter.size();
    }
  }

  void run(std::size_t first, std::size_t count) {
    update_all(step_, gradient_scale_, std::span(variant_->updates).subspan(first, count));
    for (std::size_t k = first; k < first + count; ++k) {
      float* average = variant_->averages[k];
      if (!average) continue;
      const std::span<float> weights = variant_->updates[k].parameter;
      if (step_ == 1) std::copy(weights.begin(), weights.end(), average);
      update_average(average_decay_, {average, weights.size()}, weights);
    }
  }

  Compiled* variant_;
  std::int64_t step_;
  double gradient_scale_, average_decay_;
};

void Stage::update(int variant, int from, int to, double learning_rate, std::int64_t step,
                   double gradient_scale) {
  settle_prepare();  // it reads weights that are written now
  Compiled& compiled = *variants_[static_cast<std::size_t>(variant)];
  std::byte* source = parameter_block_ + static_cast<std::size_t>(from) * parameter_block_bytes_;
  std::byte* target = parameter_block_ + static_cast<std::size_t>(to) * parameter_block_bytes_;
  if (from != to && on_device_) {
    on_device_->compute().copy(target, source, parameter_block_bytes_);
  } else if (from != to) {
    std::memcpy(target, source, parameter_block_bytes_);
  }
  std::vector<ParameterUpdate>& updates = compiled.updates;
  updates.clear();
  std::vector<float*>& averages = compiled.averages;
  averages.clear();
  for (std::size_t k = 0; k < compiled.slice->parameters.size(); ++k) {
    const ParameterState& parameter = *compiled.parameter_states[k];
    std::byte* gradient = gradient_address(compiled, k);
    if (!gradient) continue;
    const auto count = static_cast<std::size_t>(parameter.type.count());
    const auto state = [&](float* data) {
      return data ? std::span<float>(data, count) : std::span<float>();
    };
    updates.push_back({&parameter.optimizer.settings,
                       learning_rate * parameter.optimizer.learning_rate_scale,
                       floats(target + parameter.offset, parameter.type),
                       std::span<const float>(floats(gradient, parameter.type)),
                       state(parameter.state0), state(parameter.state1)});
    const Location& at = compiled.gradient_at[k];
    const TouchedRows* touched =
        at.space == Space::kAccumulator ? touched_rows_[at.offset].get() : nullptr;
    if (touched && !touched->all()) {
      updates.back().has_rows = true;
      updates.back().rows = touched->list();
      updates.back().row_floats = count / static_cast<std::size_t>(touched->rows());
    }
    averages.push_back(parameter.average);
  }
  if (on_device_) {
    std::vector<DeviceUpdate>& there = on_device_->updates;
    there.clear();
    for (std::size_t k = 0; k < updates.size(); ++k) {
      const ParameterUpdate& one = updates[k];
      there.push_back({one.settings,
                       one.learning_rate,
                       one.parameter,
                       one.gradient,
                       one.state0,
                       one.state1,
                       {averages[k], averages[k] ? one.parameter.size() : 0}});
    }
    on_device_->device().update(on_device_->compute(), step, gradient_scale,
                                optimizer_.average_decay, there);
  } else {
    UpdateRun run(compiled, step, gradient_scale, optimizer_.average_decay);
    if (shared_work_) {
      shared_work_->run(list_job_, device_, run, nullptr);
    } else {
      run.run_all();
    }
  }
  copy_generation_[static_cast<std::size_t>(to)] = ++weight_generation_;
  // Here rather than before the first forward, for whose values the next stage waits.
  put_off_prepare(*variants_.front(), to);
}

}  // namespace pipetrain
