#include "pipeline/transport/replica_group.h"

#include <algorithm>

#include "pipeline/transport/narrow_floats.h"
#include "pipeline/transport/sum_tree.h"

namespace pipetrain {

BucketFloats buckets_for(double latency_seconds, double bytes_per_second) {
  constexpr double kLatencies = 64, kLeast = 1 << 20, kMost = 4 << 20;  // bytes
  const double bytes = std::clamp(kLatencies * latency_seconds * bytes_per_second, kLeast, kMost);
  const auto floats = static_cast<std::size_t>(bytes) / sizeof(float);
  return {floats / 4, floats};
}

std::span<float> ReplicaGroup::share(std::span<float> gradient, int replica) const {
  const auto edge = [&](int r) {
    return gradient.size() * static_cast<std::size_t>(r) / members_.size();
  };
  return gradient.subspan(edge(replica), edge(replica + 1) - edge(replica));
}

std::vector<ReplicaGroup::Bucket> ReplicaGroup::divide(const std::vector<std::size_t>& sizes,
                                                       BucketFloats buckets) {
  std::vector<Bucket> out;
  std::size_t floats = 0;
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    if (out.empty() || floats >= (out.size() == 1 ? buckets.first : buckets.others)) {
      out.push_back({g, g});
      floats = 0;
    }
    floats += sizes[g];
    out.back().last = g + 1;
  }
  return out;
}

ReplicaGroup::ReplicaGroup(int replicas, const std::vector<std::size_t>& sizes,
                           BucketFloats buckets, int here)
    : buckets_(divide(sizes, buckets)),
      members_(static_cast<std::size_t>(replicas)),
      barrier_(here > 0 ? here : replicas) {
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    bucket_of_.insert(bucket_of_.end(), buckets_[b].last - buckets_[b].first, b);
  for (Member& member : members_) restart(member);
}

void ReplicaGroup::restart(Member& member) const {
  member.missing.clear();
  for (const Bucket& bucket : buckets_) member.missing.push_back(bucket.last - bucket.first);
  member.absent = false;
}

void ReplicaGroup::reset() {
  const std::lock_guard lock(mutex_);
  aborted_ = false;
  barrier_.reset();
  for (Member& member : members_) restart(member);
}

void ReplicaGroup::bind(int replica, std::vector<std::span<float>> gradients) {
  member(replica).gradients = std::move(gradients);
}

void ReplicaGroup::complete(int replica, std::size_t gradient) {
  if (as_bfloat16_) round_to_bfloat16(member(replica).gradients[gradient]);
  {
    const std::lock_guard lock(mutex_);
    if (--member(replica).missing[bucket_of_[gradient]] > 0) return;
  }
  bucket_completed();
}

void ReplicaGroup::reduce(int replica, bool contributes) {
  if (!contributes) {
    {
      const std::lock_guard lock(mutex_);
      member(replica).absent = true;
    }
    changed_.notify_all();
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return aborted_ || std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
                 return member.absent || member.missing[b] == 0;
               });
      });
      if (aborted_) throw ChannelAborted();
    }
    sum_share(replica, buckets_[b]);
    barrier_.arrive_and_wait();
    collect_shares(replica, buckets_[b]);
  }
  {
    const std::lock_guard lock(mutex_);
    restart(member(replica));
  }
  barrier_.arrive_and_wait();  // no replica reads another's gradients any more, all have restarted
}

void ReplicaGroup::add_up_parts(std::span<const float* const> parts, std::span<float> out) const {
  as_tree_ ? pipetrain::sum_as_tree(parts, out.size(), out.data())
           : sum_in_order(parts, out.size(), out.data());
  if (as_bfloat16_) round_to_bfloat16(out);
}

void ReplicaGroup::sum_share(int replica, const Bucket& bucket) {
  std::vector<const float*> parts;
  for (std::size_t g = bucket.first; g < bucket.last; ++g) {
    parts.clear();
    for (const Member& other : members_) {
      if (!other.absent || as_tree_)
        parts.push_back(other.absent ? nullptr : share(other.gradients[g], replica).data());
    }
    add_up_parts(parts, share(member(replica).gradients[g], replica));
  }
}

void ReplicaGroup::collect_shares(int replica, const Bucket& bucket) {
  for (std::size_t g = bucket.first; g < bucket.last; ++g) {
    for (int other = 0; other < replicas(); ++other) {
      if (other == replica) continue;
      const std::span<const float> from = share(member(other).gradients[g], other);
      std::copy(from.begin(), from.end(), share(member(replica).gradients[g], other).begin());
    }
  }
}

void ReplicaGroup::share_weights(int replica, std::vector<OwnedWeights> weights) {
  std::vector<OwnedWeights>& mine = member(replica).weights = std::move(weights);
  meet();
  for (std::size_t k = 0; k < mine.size(); ++k) {
    if (mine[k].owner == replica) continue;
    const std::span<float> from = member(mine[k].owner).weights[k].values;
    std::copy(from.begin(), from.end(), mine[k].values.begin());
  }
  meet();
}

bool ReplicaGroup::is_aborted() {
  const std::lock_guard lock(mutex_);
  return aborted_;
}

void ReplicaGroup::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_all();
  barrier_.abort();
}

}  // namespace pipetrain
