#include "train/batch_source.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace pipetrain {

std::int64_t counted_elements(const Loss& loss, const Tensor& label, std::int64_t samples) {
  if (loss.kind == LossKind::kOutput) return samples;
  if (loss.classes < 0 || is_float(label.type.dtype)) return samples * loss.elements_per_sample;
  const auto labels = label.span<const std::int64_t>();
  const auto ignored = std::count(labels.begin(), labels.end(), loss.ignore_index);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(labels.size()) - ignored);
}

double counted_weight(const Network& network, const Tensor& label, std::int64_t counted) {
  const std::vector<double>& weights = network.config().model.loss.class_weights;
  if (weights.empty()) return static_cast<double>(counted);
  const Loss& loss = network.graph().loss;
  double sum = 0;
  for (const std::int64_t value : label.span<const std::int64_t>()) {
    // Invalid classes are reported later by the kernels.
    if (value >= 0 && value < loss.classes && value != loss.ignore_index)
      sum += weights[static_cast<std::size_t>(value)];
  }
  return sum > 0 ? sum : 1;
}

void cut_into_units(const PipelineRun& run, const std::vector<Tensor>& columns,
                    std::int64_t samples, bool evaluation, std::uint64_t step, double weight,
                    std::vector<MicroBatch>& units) {
  const std::int64_t micro = run.network().micro_batch();
  const auto count = static_cast<std::size_t>((samples + micro - 1) / micro);
  if (units.size() != count) units.resize(count);
  for (std::size_t k = 0; k < count; ++k) {
    MicroBatch& unit = units[k];
    unit.first_sample = static_cast<std::int64_t>(k) * micro;
    const std::int64_t size = std::min(micro, samples - unit.first_sample);
    unit.variant = run.variant(size, evaluation);
    unit.step = step;
    unit.loss_scale = 1.0 / weight;
    unit.columns.resize(columns.size());
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::size_t sample_bytes =
          columns[c].bytes() / static_cast<std::size_t>(columns[c].type.shape[0]);
      unit.columns[c] = static_cast<const std::byte*>(columns[c].data) +
                        static_cast<std::size_t>(unit.first_sample) * sample_bytes;
    }
  }
}

BatchUnits::BatchUnits(const PipelineRun& run, bool evaluation)
    : run_(run), evaluation_(evaluation) {}

void BatchUnits::set(const std::vector<Tensor>& columns, std::int64_t samples, std::uint64_t step,
                     double learning_rate) {
  step_ = step;
  learning_rate_ = learning_rate;
  counted_ = counted_elements(run_.network().graph().loss, columns.back(), samples);
  weight_ = evaluation_ ? static_cast<double>(counted_)
                        : counted_weight(run_.network(), columns.back(), counted_);
  cut_into_units(run_, columns, samples, evaluation_, step, weight_, units_);
}

double BatchUnits::loss() const {
  double sum = 0;
  for (const MicroBatch& unit : units_) sum += unit.loss_sum;
  return sum / weight_;
}

double BatchUnits::correct() const {
  double sum = 0;
  for (const MicroBatch& unit : units_) sum += unit.correct;
  return sum;
}

StreamUnits::StreamUnits(const PipelineRun& run, Loader& loader, std::uint64_t first_step,
                         int micro_batches, int in_flight, int done,
                         std::function<double(std::uint64_t)> learning_rate,
                         std::function<void(const Done&)> on_done, Updated on_update)
    : run_(run),
      loader_(loader),
      first_step_(first_step),
      micro_batches_(micro_batches),
      learning_rate_(std::move(learning_rate)),
      on_done_(std::move(on_done)),
      on_update_(std::move(on_update)),
      slots_(static_cast<std::size_t>(in_flight)),
      loaded_(done),
      released_(done) {
  for (Slot& slot : slots_) slot.memory = BatchMemory(run.network().batch_memory());
}

MicroBatch& StreamUnits::acquire(int unit) {
  const int batch = unit / micro_batches_;
  std::unique_lock lock(mutex_);
  while (loaded_ <= batch) {
    const int next = loaded_;
    changed_.wait(
        lock, [&] { return loaded_ > next || next - released_ < static_cast<int>(slots_.size()); });
    if (loaded_ > next) continue;  // another replica has read it
    load(next);
    ++loaded_;
    changed_.notify_all();
  }
  return slot(batch).units[static_cast<std::size_t>(unit % micro_batches_)];
}

void StreamUnits::load(int number) {
  const Batch* batch = loader_.next();
  PT_CHECK(batch != nullptr, kInternal, "the data ended before the round");
  Slot& slot = this->slot(number);
  slot.samples = static_cast<std::int64_t>(batch->samples);
  slot.counted = counted_elements(run_.network().graph().loss, batch->columns.back(), slot.samples);
  slot.weight = counted_weight(run_.network(), batch->columns.back(), slot.counted);
  std::vector<Tensor> columns;
  for (std::size_t c = 0; c < batch->columns.size(); ++c) {
    const Tensor& column = batch->columns[c];
    columns.push_back(slot.memory.column(c, column.type));
    std::memcpy(columns.back().data, column.data, column.bytes());
  }
  cut_into_units(run_, columns, slot.samples, /*evaluation=*/false, batch->step, slot.weight,
                 slot.units);
  slot.left = static_cast<int>(slot.units.size());
}

void StreamUnits::release(int unit) {
  const std::lock_guard lock(mutex_);
  --slot(unit / micro_batches_).left;
  while (released_ < loaded_ && slot(released_).left == 0) {
    const Slot& done = slot(released_);
    double loss = 0, correct = 0;
    for (const MicroBatch& part : done.units) {
      loss += part.loss_sum;
      correct += part.correct;
    }
    on_done_({first_step_ + static_cast<std::uint64_t>(released_), done.samples, loss / done.weight,
              correct, done.counted});
    ++released_;
  }
  changed_.notify_all();
}

}  // namespace pipetrain
