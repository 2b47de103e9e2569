#include "pipeline/stage_device.h"

#include <algorithm>
#include <utility>

namespace pipetrain {

int StageDevice::take_block() {
  if (free_blocks_.empty()) {
    auto block = std::make_unique<StageBlock>();
    // For the variant that needs most: memory that is freed later would wait for the whole device.
    block->inputs = device().allocate(*std::max_element(input_bytes.begin(), input_bytes.end()));
    block->results = device().allocate_on_host(2 * sizeof(float));
    block->copied = device().make_point();
    block->settled = device().make_point();
    block->free = device().make_point();
    free_blocks_.push_back(static_cast<int>(blocks_.size()));
    blocks_.push_back(std::move(block));
  }
  // The first, so that every round gives its units the same addresses.
  const auto first = std::min_element(free_blocks_.begin(), free_blocks_.end());
  const int index = *first;
  free_blocks_.erase(first);
  StageBlock& block = this->block(index);
  block.settles = false;
  transfer_.wait(*block.free);
  return index;
}

void StageDevice::give_back(int block) {
  compute_.record(*this->block(block).free);
  free_blocks_.push_back(block);
}

std::byte* StageDevice::take_received(StageBlock& block) const {
  const std::size_t most = *std::max_element(received_bytes.begin(), received_bytes.end());
  if (!block.received.data()) block.received = device().allocate(most);
  return block.received.data();
}

DeviceMemory StageDevice::take_moments(std::size_t bytes) {
  const auto found = free_moments_.find(bytes);
  if (found == free_moments_.end()) return device().allocate_on_host(bytes);
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
  if (device().reaches(sender)) {
    if (written) transfer_.wait(*written);
    return transfer_.copy(to, from, bytes);
  }
  stagings_.try_emplace(&sender, sender, transfer_).first->second.copy(to, from, bytes, written);
}

std::size_t StageDevice::bytes() const {
  std::size_t bytes = 0;
  for (const auto& block : blocks_) bytes += block->inputs.bytes() + block->received.bytes();
  for (const DeviceMemory& constant : constants) bytes += constant.bytes();
  return bytes;
}

}  // namespace pipetrain
