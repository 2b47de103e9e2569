#include "pipeline/transport/device_replicas.h"

#include <algorithm>
#include <utility>

namespace pipetrain {

DeviceReplicaGroup::DeviceReplicaGroup(const std::vector<std::size_t>& sizes,
                                       std::vector<Stream*> streams)
    : ReplicaGroup(static_cast<int>(streams.size()), sizes), streams_(std::move(streams)) {
  std::size_t largest = 0;
  for (const std::size_t size : sizes) largest = std::max(largest, size);
  const std::size_t bytes = (largest / streams_.size() + 1) * sizeof(float);
  for (Stream* stream : streams_) {
    sums_.push_back(stream->device().allocate(bytes));
    terms_.push_back(stream->device().allocate(bytes));
  }
}

void DeviceReplicaGroup::sum_share(int replica, const Bucket& bucket) {
  Stream& stream = *streams_[static_cast<std::size_t>(replica)];
  auto* sum = reinterpret_cast<float*>(sums_[static_cast<std::size_t>(replica)].data());
  auto* term = reinterpret_cast<float*>(terms_[static_cast<std::size_t>(replica)].data());
  for (std::size_t g = bucket.first; g < bucket.last; ++g) {
    const std::span<float> own =
        share(members_[static_cast<std::size_t>(replica)].gradients[g], replica);
    bool first = true;
    for (const Member& other : members_) {
      if (other.absent) continue;
      const std::span<float> part = share(other.gradients[g], replica);
      float* to = std::exchange(first, false) ? sum : term;
      stream.copy(to, part.data(), part.size_bytes());
      if (to == term) stream.device().add(stream, sum, term, part.size());
    }
    stream.copy(own.data(), sum, own.size_bytes());
  }
  stream.synchronize();
}

void DeviceReplicaGroup::collect_shares(int replica, const Bucket& bucket) {
  Stream& stream = *streams_[static_cast<std::size_t>(replica)];
  for (std::size_t g = bucket.first; g < bucket.last; ++g) {
    for (int other = 0; other < replicas(); ++other) {
      if (other == replica) continue;
      const std::span<float> from =
          share(members_[static_cast<std::size_t>(other)].gradients[g], other);
      stream.copy(share(members_[static_cast<std::size_t>(replica)].gradients[g], other).data(),
                  from.data(), from.size_bytes());
    }
  }
  stream.synchronize();
}

}  // namespace pipetrain
