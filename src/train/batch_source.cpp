#include "train/batch_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "pipeline/transport/channel.h"
#include "train/data_shards.h"

namespace pipetrain {

std::int64_t count_labels(const Loss& loss, const Tensor& label, std::int64_t samples) {
  if (loss.kind == LossKind::kOutput) return samples;
  if (loss.classes < 0 || is_float(label.type.dtype)) return samples * loss.elements_per_sample;
  const auto labels = label.span<const std::int64_t>();
  const auto ignored = std::count(labels.begin(), labels.end(), loss.ignore_index);
  return static_cast<std::int64_t>(labels.size()) - ignored;
}

std::int64_t counted_elements(const Loss& loss, const Tensor& label, std::int64_t samples) {
  return std::max<std::int64_t>(1, count_labels(loss, label, samples));
}

double sum_of_weights(const Network& network, const Tensor& label, std::int64_t counted) {
  const std::vector<double>& weights = network.config().model.loss.class_weights;
  if (weights.empty()) return static_cast<double>(counted);
  const Loss& loss = network.graph().loss;
  double sum = 0;
  for (const std::int64_t value : label.span<const std::int64_t>()) {
    // Invalid classes are reported later by the kernels.
    if (value >= 0 && value < loss.classes && value != loss.ignore_index)
      sum += weights[static_cast<std::size_t>(value)];
  }
  return sum;
}

double counted_weight(const Network& network, const Tensor& label, std::int64_t counted) {
  const double sum = sum_of_weights(network, label, counted);
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
    unit.has_loss = false;
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
  const Network& network = run_.network();
  if (!evaluation_ && !network.data().shard_samples.empty()) {
    const CountedLabels all = count_together(network, columns.back(), samples);
    counted_ = all.elements;
    weight_ = all.weight;
  } else {
    counted_ = counted_elements(network.graph().loss, columns.back(), samples);
    weight_ = evaluation_ ? static_cast<double>(counted_)
                          : counted_weight(network, columns.back(), counted_);
  }
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

StreamUnits::StreamUnits(const PipelineRun& run, const Program& program, Loader& loader,
                         const Shape& shape, RoundSaves& saves, Callbacks callbacks)
    : run_(run),
      program_(program),
      loader_(loader),
      shape_(shape),
      saves_(saves),
      callbacks_(std::move(callbacks)),
      slots_(static_cast<std::size_t>(shape.in_flight)),
      loaded_(shape.done),
      released_(shape.done),
      told_(shape.done) {
  for (Slot& slot : slots_) slot.memory = BatchMemory(run.network().batch_memory());
}

MicroBatch& StreamUnits::acquire(int unit) {
  const int batch = unit / shape_.micro_batches;
  std::unique_lock lock(mutex_);
  while (loaded_ <= batch) {
    const int next = loaded_;
    changed_.wait(lock, [&] {
      return aborted_ || loaded_ > next || next - released_ < static_cast<int>(slots_.size());
    });
    if (aborted_) throw ChannelAborted();
    if (loaded_ > next) continue;  // another replica has read it
    load(next);
  }
  return slot(batch).units[static_cast<std::size_t>(unit % shape_.micro_batches)];
}

/// Whether a stage here runs a micro-batch.
bool StreamUnits::is_used(int unit) const {
  for (int s = 0; s < program_.stages; ++s) {
    if (run_.network().is_here(program_.device_of(s, unit))) return true;
  }
  return false;
}

int StreamUnits::variant(int unit) {
  const Network& network = run_.network();
  const std::int64_t samples =
      network.samples_of_step(static_cast<std::int64_t>(step_of(unit / shape_.micro_batches)));
  const std::int64_t before = unit % shape_.micro_batches * network.micro_batch();
  return run_.variant(std::min(network.micro_batch(), samples - before), /*evaluation=*/false);
}

void StreamUnits::load(int number) {
  const Batch* batch = loader_.next();
  if (!batch && aborted_) throw ChannelAborted();
  PT_CHECK(batch != nullptr, kInternal, "the data ended before the round");
  Slot& slot = this->slot(number);
  Losses& losses = losses_[number];
  losses.samples = static_cast<std::int64_t>(batch->samples);
  losses.counted =
      counted_elements(run_.network().graph().loss, batch->columns.back(), losses.samples);
  losses.weight = counted_weight(run_.network(), batch->columns.back(), losses.counted);
  std::vector<Tensor> columns;
  for (std::size_t c = 0; c < batch->columns.size(); ++c) {
    const Tensor& column = batch->columns[c];
    columns.push_back(slot.memory.column(c, column.type));
    std::memcpy(columns.back().data, column.data, column.bytes());
  }
  cut_into_units(run_, columns, losses.samples, /*evaluation=*/false, batch->step, losses.weight,
                 slot.units);
  slot.left = 0;
  for (std::size_t k = 0; k < slot.units.size(); ++k)
    slot.left += is_used(number * shape_.micro_batches + static_cast<int>(k)) ? 1 : 0;
  ++loaded_;
  free_slots();
  tell_done();
}

/// Mini-batches of which no stage here uses any more.
void StreamUnits::free_slots() {
  while (released_ < loaded_ && slot(released_).left == 0) ++released_;
  changed_.notify_all();
}

void StreamUnits::release(int unit) {
  const std::lock_guard lock(mutex_);
  Slot& slot = this->slot(unit / shape_.micro_batches);
  const MicroBatch& done = slot.units[static_cast<std::size_t>(unit % shape_.micro_batches)];
  // A round that ends early drops those in flight.
  if (done.has_loss && unit < saves_.end()) {
    if (run_.network().leads()) {
      add_loss(unit, done.loss_sum, done.correct);
    } else {
      callbacks_.loss(unit, done.loss_sum, done.correct);
    }
  }
  --slot.left;
  free_slots();
  tell_done();
}

void StreamUnits::abort() {
  aborted_ = true;
  loader_.abort();  // whoever reads holds the mutex
  {
    // Who has found that nothing was aborted waits by now.
    const std::lock_guard lock(mutex_);
  }
  changed_.notify_all();
}

void StreamUnits::note_loss(int unit, double sum, double correct) {
  const std::lock_guard lock(mutex_);
  add_loss(unit, sum, correct);
  tell_done();
}

void StreamUnits::add_loss(int unit, double sum, double correct) {
  Losses& losses = losses_[unit / shape_.micro_batches];
  const auto k = static_cast<std::size_t>(unit % shape_.micro_batches);
  if (losses.units.size() <= k) losses.units.resize(k + 1);
  losses.units[k] = {sum, correct};
  ++losses.known;
}

/// In process 0, mini-batches are done when all losses are known, which come with the last use.
void StreamUnits::tell_done() {
  if (!run_.network().leads()) {
    losses_.clear();
    return;
  }
  for (auto first = losses_.find(told_); first != losses_.end(); first = losses_.find(told_)) {
    const Losses& done = first->second;
    if (told_ >= loaded_ || done.known < run_.network().units_of(done.samples)) return;
    double loss = 0, correct = 0;
    for (const auto& [sum, right] : done.units) {
      loss += sum;
      correct += right;
    }
    const Done told = {step_of(told_), done.samples, loss / done.weight, correct, done.counted};
    losses_.erase(first);
    ++told_;
    callbacks_.done(told);
  }
}

void StreamUnits::finish(int mini_batches) {
  const std::lock_guard lock(mutex_);
  while (loaded_ < mini_batches) load(loaded_);
}

}  // namespace pipetrain
