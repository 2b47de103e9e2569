#include "pipeline/transport/communicated_replicas.h"

#include <algorithm>
#include <utility>

namespace pipetrain {

CommunicatedReplicas::CommunicatedReplicas(const std::vector<std::size_t>& sizes,
                                           std::vector<Stream*> streams, std::vector<int> devices,
                                           Exchange& exchange)
    : ReplicaGroup(static_cast<int>(streams.size()), sizes, BucketFloats(),
                   static_cast<int>(streams.size()) -
                       static_cast<int>(std::count(streams.begin(), streams.end(), nullptr))),
      streams_(std::move(streams)),
      devices_(std::move(devices)),
      exchange_(exchange),
      operations_(streams_.size(), -1),
      zeros_(streams_.size()) {
  for (const std::size_t size : sizes) largest_ = std::max(largest_, size);
  for (Stream* stream : streams_)
    ready_.push_back(stream ? stream->device().make_point() : nullptr);
}

void CommunicatedReplicas::at_instruction(int replica, int instruction) {
  const auto r = static_cast<std::size_t>(replica);
  operations_[r] = exchange_.operation_at(devices_[r], instruction);
}

void CommunicatedReplicas::reduce(int replica, bool contributes) {
  const auto r = static_cast<std::size_t>(replica);
  Stream& stream = *streams_[r];
  std::vector<ExchangedSpan> spans;
  for (const std::span<float> gradient : member(replica).gradients) {
    spans.push_back({reinterpret_cast<std::byte*>(gradient.data()), gradient.size_bytes()});
    if (contributes) continue;
    // The buffer holds values of an older step.
    if (!zeros_[r].data()) zeros_[r] = stream.device().allocate(largest_ * sizeof(float));
    stream.copy(gradient.data(), zeros_[r].data(), gradient.size_bytes());
  }
  stream.record(*ready_[r]);
  exchange_.offer(operations_[r], devices_[r], std::move(spans), ready_[r].get());
  stream.wait(*exchange_.wait(operations_[r], devices_[r]));
}

}  // namespace pipetrain
