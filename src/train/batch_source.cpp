#include "train/batch_source.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace pipetrain {

std::int64_t counted_elements(const Loss& loss, const Tensor& label, std::int64_t samples) {
  if (loss.kind == LossKind::kOutput) return samples;
  if (loss.classes < 0) return samples * loss.elements_per_sample;
  const auto labels = label.span<const std::int64_t>();
  const auto ignored = std::count(labels.begin(), labels.end(), loss.ignore_index);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(labels.size()) - ignored);
}

BatchUnits::BatchUnits(const Session& session, bool evaluation)
    : session_(session), evaluation_(evaluation) {}

void BatchUnits::set(const std::vector<Tensor>& columns, std::int64_t samples, std::uint64_t step,
                     double learning_rate) {
  step_ = step;
  learning_rate_ = learning_rate;
  counted_ = counted_elements(session_.graph().loss, columns.back(), samples);
  const std::int64_t micro = session_.micro_batch();
  const auto count = static_cast<std::size_t>((samples + micro - 1) / micro);
  if (units_.size() != count) units_.resize(count);
  for (std::size_t k = 0; k < count; ++k) {
    RoundUnit& unit = units_[k];
    unit.first_sample = static_cast<std::int64_t>(k) * micro;
    const std::int64_t size = std::min(micro, samples - unit.first_sample);
    unit.variant = session_.variant(size, evaluation_);
    unit.step = step;
    unit.loss_scale = 1.0 / static_cast<double>(counted_);
    unit.columns.resize(columns.size());
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::size_t sample_bytes =
          columns[c].bytes() / static_cast<std::size_t>(columns[c].type.shape[0]);
      unit.columns[c] = static_cast<const std::byte*>(columns[c].data) +
                        static_cast<std::size_t>(unit.first_sample) * sample_bytes;
    }
  }
}

double BatchUnits::loss() const {
  double sum = 0;
  for (const RoundUnit& unit : units_) sum += unit.loss_sum;
  return sum / static_cast<double>(counted_);
}

double BatchUnits::correct() const {
  double sum = 0;
  for (const RoundUnit& unit : units_) sum += unit.correct;
  return sum;
}

StreamUnits::StreamUnits(const Session& session, Loader& loader, std::uint64_t first_step,
                         int in_flight, std::function<double(std::uint64_t)> learning_rate,
                         std::function<void(const Done&)> on_done)
    : session_(session),
      loader_(loader),
      first_step_(first_step),
      learning_rate_(std::move(learning_rate)),
      on_done_(std::move(on_done)),
      slots_(static_cast<std::size_t>(in_flight)) {}

RoundUnit& StreamUnits::acquire(int unit) {
  std::unique_lock lock(mutex_);
  if (unit == loaded_) {  // only the first stage gets here first
    changed_.wait(lock, [&] { return unit - released_ < static_cast<int>(slots_.size()); });
    load(unit);
    ++loaded_;
  }
  return slots_[static_cast<std::size_t>(unit) % slots_.size()].unit;
}

void StreamUnits::load(int unit) {
  const Batch* batch = loader_.next();
  PT_CHECK(batch != nullptr, kInternal, "the data end before the round");
  Slot& slot = slots_[static_cast<std::size_t>(unit) % slots_.size()];
  if (slot.memory.empty()) {
    for (const Tensor& column : batch->columns) slot.memory.emplace_back(column.type);
  }
  slot.samples = static_cast<std::int64_t>(batch->samples);
  slot.counted = counted_elements(session_.graph().loss, batch->columns.back(), slot.samples);
  slot.unit.columns.clear();
  for (std::size_t c = 0; c < batch->columns.size(); ++c) {
    if (slot.memory[c].type().bytes() < batch->columns[c].bytes())
      slot.memory[c] = HostTensor(batch->columns[c].type);
    std::memcpy(slot.memory[c].view().data, batch->columns[c].data, batch->columns[c].bytes());
    slot.unit.columns.push_back(static_cast<const std::byte*>(slot.memory[c].view().data));
  }
  slot.unit.variant = session_.variant(slot.samples, /*evaluation=*/false);
  slot.unit.step = batch->step;
  slot.unit.first_sample = 0;
  slot.unit.loss_scale = 1.0 / static_cast<double>(slot.counted);
}

void StreamUnits::release(int unit) {
  const Slot& slot = slots_[static_cast<std::size_t>(unit) % slots_.size()];
  on_done_({first_step_ + static_cast<std::uint64_t>(unit), slot.samples,
            slot.unit.loss_sum / static_cast<double>(slot.counted), slot.unit.correct,
            slot.counted});
  {
    const std::lock_guard lock(mutex_);
    ++released_;
  }
  changed_.notify_all();
}

}  // namespace pipetrain
