#include "pipeline/stage/stage_device.h"

#include <algorithm>
#include <utility>

#include "ops/registry/host_kernel.h"

namespace pipetrain {

StageDevice::StageDevice(Stream& compute, Stream& transfer)
    : compute_(compute),
      transfer_(transfer),
      loss_scale_(compute.device().allocate(sizeof(float))),
      sums_(compute.device().allocate(0)),
      recordings_(compute) {}

StageKernel StageDevice::make_kernel(const KernelRequest& request) {
  StageKernel made{device()->make_kernel(compute_, request), true};
  if (!made.kernel) made = {make_host_kernel(compute_, request), false};
  return made;
}

ArenaHalves StageDevice::take_arena(const StageArena& arena) {
  arena_ = device()->allocate(arena.bytes);
  return {arena_.data(), arena_.data() + arena.slots};
}

std::byte* StageDevice::place_constant(const HostTensor& value) {
  const std::size_t bytes = value.type().bytes();
  const auto [index, added] = distinct_constants_.add(value);
  if (added) {
    constants_.push_back(device()->allocate(aligned(bytes)));
    move(constants_.back().data(), value.view().data, bytes);
  }
  return constants_[index].data();
}

std::size_t StageDevice::constant_bytes() const {
  std::size_t sum = 0;
  for (const DeviceMemory& memory : constants_) sum += memory.bytes();
  return sum;
}

std::byte* StageDevice::place_running(const std::string& name, const HostTensor& value) {
  Running& running = running_[name];
  running.host = &value;
  if (!running.memory.data()) running.memory = device()->allocate(value.type().bytes());
  return running.memory.data();
}

void StageDevice::take_workspace(std::size_t bytes) { workspace_ = device()->allocate(bytes); }

std::span<const float> StageDevice::read_back(std::span<const float> values,
                                              std::vector<float>& room) const {
  room.resize(values.size());
  move(room.data(), values.data(), values.size_bytes());
  return room;
}

void StageDevice::begin(const CompiledVariant& variant, StageMicroBatch& micro_batch) {
  const OutsideValues& outside = variant.outside;
  micro_batch.buffers = take_buffers(outside.most_input_bytes);
  DeviceBuffers& buffers = this->buffers(micro_batch.buffers);
  for (const OutsidePlace& place : outside.inputs) {
    std::byte* to = place.bytes > 0 ? buffers.inputs.data() + place.offset : nullptr;
    if (to) transfer_.copy(to, micro_batch.table[place.table], place.bytes);
    micro_batch.table[place.table] = to;
  }
  if (outside.input_bytes == 0) return;
  transfer_.record(*buffers.copied);
  compute_.wait(*buffers.copied);
  compute_.record(*buffers.completed);
  buffers.has_completed = true;
}

void StageDevice::receive(const CompiledVariant& variant, const ValueEdge& edge, Device* sender,
                          const StreamPoint* written, StageMicroBatch& micro_batch) {
  if (sender == device()) {
    if (written) compute_.wait(*written);
    return;
  }
  DeviceBuffers& buffers = this->buffers(micro_batch.buffers);
  if (!buffers.received.data())
    buffers.received = device()->allocate(variant.outside.most_received_bytes);
  for (const ValueId id : edge.values) {
    const OutsidePlace& place = variant.outside.received[variant.layout.table.at(id)];
    std::byte* to = buffers.received.data() + place.offset;
    fetch(*sender, to, micro_batch.table[place.table], place.bytes, written);
    micro_batch.table[place.table] = to;
  }
  transfer_.record(*buffers.copied);
  compute_.wait(*buffers.copied);
}

void StageDevice::take_loss(const StageMicroBatch& micro_batch, const float* loss_sum,
                            const float* correct, LossResults& /*results*/) {
  DeviceBuffers& buffers = this->buffers(micro_batch.buffers);
  auto* results = reinterpret_cast<float*>(buffers.results.data());
  compute_.copy(results, loss_sum, sizeof(float));
  if (correct) compute_.copy(results + 1, correct, sizeof(float));
  compute_.record(*buffers.completed);
  buffers.has_completed = true;
}

void StageDevice::end(StageMicroBatch& micro_batch, LossResults* results) {
  DeviceBuffers& buffers = this->buffers(micro_batch.buffers);
  if (buffers.has_completed) buffers.completed->synchronize();
  if (results) {
    const auto* there = reinterpret_cast<const float*>(buffers.results.data());
    results->loss_sum = static_cast<double>(there[0]);
    results->correct = static_cast<double>(there[1]);
  }
  give_back(micro_batch.buffers);
  micro_batch.buffers = -1;
}

void StageDevice::upload_running() {
  for (const auto& [name, running] : running_)
    move(running.memory.data(), running.host->view().data, running.memory.bytes());
}

void StageDevice::run(const std::vector<StageStep>& steps, const StageAddresses& addresses,
                      bool first, const std::function<void()>& run) {
  const auto repeatable = [](const StageStep& step) { return step.repeatable; };
  if (!recordings_.records() || steps.empty() ||
      !std::all_of(steps.begin(), steps.end(), repeatable))
    return run();
  StageRecordings& described = recordings_.describe(&steps).with(first);
  for (const void* address : {addresses.parameter, addresses.prepared, addresses.slot,
                              addresses.forward_out, addresses.gradient_out})
    described.with(address);
  for (const std::byte* entry : addresses.micro_batch->table) described.with(entry);
  described.run(run);
}

void StageDevice::collect_moments(std::span<const BatchMoments> all) {
  if (all.empty()) return;
  StageMoments moments;
  std::size_t bytes = 0;  // on the host
  std::vector<Copy> copies;
  const auto place = [&](const float* values, std::size_t channels) {
    const auto* from = reinterpret_cast<const std::byte*>(values);
    // The layout places the moments of a micro-batch contiguously.
    const bool follows =
        !copies.empty() && from == copies.back().from + aligned(copies.back().bytes);
    if (!follows) copies.push_back({from, bytes, 0});
    Copy& copy = copies.back();
    const std::size_t offset = copy.offset + static_cast<std::size_t>(from - copy.from);
    copy.bytes = offset - copy.offset + channels * sizeof(float);
    bytes = copy.offset + aligned(copy.bytes);
    return offset;
  };
  for (const BatchMoments& one : all)
    moments.of.push_back({one, place(one.mean, one.channels), place(one.variance, one.channels)});
  moments.host = take_moments(bytes);
  for (const Copy& copy : copies)
    compute_.copy(moments.host.data() + copy.offset, copy.from, copy.bytes);
  moments_.push_back(std::move(moments));
}

void StageDevice::merge_moments() {
  for (StageMoments& moments : moments_) {
    for (const StageMoments::One& one : moments.of) {
      const auto numbers = [&](std::size_t offset) -> std::span<const float> {
        return {reinterpret_cast<const float*>(moments.host.data() + offset), one.of.channels};
      };
      one.of.into->merge(numbers(one.mean), numbers(one.variance), one.of.count);
    }
    give_back(std::move(moments.host));
  }
  moments_.clear();
}

void StageDevice::sum_of_squares(std::span<const float> values, double& out) {
  to_sum_.push_back(values);
  sums_of_.push_back(&out);
}

void StageDevice::finish_sums() {
  const std::vector<std::span<const float>> values = std::exchange(to_sum_, {});
  const std::vector<double*> out = std::exchange(sums_of_, {});
  const std::size_t count = values.size();
  if (count == 0) return synchronize();
  const std::size_t bytes = (1 + Device::kScratch) * count * sizeof(double);
  if (sums_.bytes() < bytes) sums_ = device()->allocate(bytes);
  auto* there = reinterpret_cast<double*>(sums_.data());
  device()->sums_of_squares(compute_, values, there, there + count);
  std::vector<double> sums(count);
  compute_.copy(sums.data(), there, count * sizeof(double));
  synchronize();
  for (std::size_t k = 0; k < count; ++k) *out[k] = sums[k];
}

void StageDevice::update(StageUpdates& updates, std::int64_t step, double gradient_scale,
                         double average_decay, WorkSharing& /*sharing*/) {
  updates_.clear();
  for (std::size_t k = 0; k < updates.parameters.size(); ++k) {
    const ParameterUpdate& one = updates.parameters[k];
    float* average = updates.averages[k];
    updates_.push_back({one.settings,
                        one.learning_rate,
                        one.parameter,
                        one.gradient,
                        one.state0,
                        one.state1,
                        {average, average ? one.parameter.size() : 0}});
  }
  device()->update(compute_, step, gradient_scale, average_decay, updates_);
}

int StageDevice::take_buffers(std::size_t most_input_bytes) {
  if (free_buffers_.empty()) {
    auto buffers = std::make_unique<DeviceBuffers>();
    buffers->inputs = device()->allocate(most_input_bytes);
    buffers->results = device()->allocate_on_host(2 * sizeof(float));
    buffers->copied = device()->make_point();
    buffers->completed = device()->make_point();
    buffers->free = device()->make_point();
    free_buffers_.push_back(static_cast<int>(buffers_.size()));
    buffers_.push_back(std::move(buffers));
  }
  // The first free one, so that every round uses the same addresses.
  const auto first = std::min_element(free_buffers_.begin(), free_buffers_.end());
  const int index = *first;
  free_buffers_.erase(first);
  DeviceBuffers& buffers = this->buffers(index);
  buffers.has_completed = false;
  transfer_.wait(*buffers.free);
  return index;
}

void StageDevice::give_back(int buffers) {
  compute_.record(*this->buffers(buffers).free);
  free_buffers_.push_back(buffers);
}

DeviceMemory StageDevice::take_moments(std::size_t bytes) {
  const auto found = free_moments_.find(bytes);
  if (found == free_moments_.end()) return device()->allocate_on_host(bytes);
  DeviceMemory out = std::move(found->second);
  free_moments_.erase(found);
  return out;
}

void StageDevice::give_back(DeviceMemory moments) {
  const std::size_t bytes = moments.bytes();
  free_moments_.emplace(bytes, std::move(moments));
}

void StageDevice::fetch(Device& sender, void* to, const void* from, std::size_t bytes,
                        const StreamPoint* written) {
  if (device()->reaches(sender)) {
    if (written) transfer_.wait(*written);
    return transfer_.copy(to, from, bytes);
  }
  stagings_.try_emplace(&sender, sender, transfer_).first->second.copy(to, from, bytes, written);
}

}  // namespace pipetrain
