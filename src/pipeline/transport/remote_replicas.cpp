#include "pipeline/transport/remote_replicas.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "pipeline/transport/narrow_floats.h"
#include "pipeline/transport/sum_tree.h"
#include "processes/message_parts.h"

namespace pipetrain {

namespace {

constexpr std::size_t kMostEvents = 4096;
/// Pieces of so many floats leave from where they are and arrive where they belong; smaller ones
/// share a message.
constexpr std::size_t kOwnMessage = 16'384;
/// Floats of each replica that are read and added at a time: they stay in the cache.
constexpr std::size_t kReadFloats = 16'384;
/// Buckets under way at most. The oldest get the network: what has left last would delay them.
constexpr std::size_t kMostUnderWay = 8;

int count_here(const ProcessGroup& group, const std::vector<int>& process_of) {
  return static_cast<int>(std::count(process_of.begin(), process_of.end(), group.rank()));
}

}  // namespace

RemoteReplicas::RemoteReplicas(ProcessGroup& group, MessageThread& messages,
                               std::vector<int> process_of, int first_tag,
                               const std::vector<std::size_t>& sizes,
                               const std::vector<int>& owners, BucketFloats buckets)
    : ReplicaGroup(static_cast<int>(process_of.size()), sizes, buckets,
                   count_here(group, process_of)),
      group_(group),
      messages_(messages),
      rank_(group.rank()),
      process_of_(std::move(process_of)),
      first_tag_(first_tag),
      sizes_(sizes),
      on_way_(buckets_.size()),
      read_(process_of_.size()),
      step_of_(process_of_.size(), 0),
      texts_(process_of_.size()),
      text_sizes_(process_of_.size()) {
  for (const int process : process_of_) {
    if (std::find(processes_.begin(), processes_.end(), process) == processes_.end())
      processes_.push_back(process);
  }
  for (int r = 0; r < replicas(); ++r) senders_.push_back(r);
  here_ = static_cast<std::size_t>(std::find(processes_.begin(), processes_.end(), rank_) -
                                   processes_.begin());
  for (const int process : processes_) {
    if (process != rank_) (group_.can_read(process) ? any_read_ : any_messages_) = true;
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    share_out(b, owners);
    Sum& sum = on_way_[b];
    sum.packed_parts.resize(process_of_.size() * processes_.size());
    sum.received.resize(process_of_.size());
    sum.packed_sums.resize(processes_.size());
  }
  place_pieces();
}

int RemoteReplicas::first_of(std::size_t process) const {
  return static_cast<int>(std::find(process_of_.begin(), process_of_.end(), processes_[process]) -
                          process_of_.begin());
}

void RemoteReplicas::sum_as_tree() {
  ReplicaGroup::sum_as_tree();
  if (are_subtrees(process_of_)) senders_.resize(processes_.size());
}

/// Whether a replica, or all of its process that it sends for, have no gradient.
bool RemoteReplicas::is_absent(int replica) {
  for (int r = replica; r < replicas(); r += static_cast<int>(senders_.size())) {
    if (!member(r).absent) return false;
  }
  return true;
}

bool RemoteReplicas::is_absent(const Sum& sum, int replica) {
  if (is_here(replica)) return is_absent(replica);
  const Parcel& received = sum.received[at(replica)];
  return group_.can_read(process_of_[at(replica)]) ? received.addresses.front() == 0
                                                   : received.floats.front() == 0;
}

/// Joins the replicas here, of which the first sends the sum.
void RemoteReplicas::join_here(std::size_t bucket) {
  const int first = first_here();
  if (senders_.size() == process_of_.size() || is_absent(first)) return;
  std::vector<const float*> parts;
  for (std::size_t g = buckets_[bucket].first; g < buckets_[bucket].last; ++g) {
    parts.clear();
    for (int r = first; r < replicas(); ++r) {
      if (is_here(r)) parts.push_back(member(r).absent ? nullptr : member(r).gradients[g].data());
    }
    add_up_parts(parts, member(first).gradients[g]);
  }
}

void RemoteReplicas::use_bfloat16() {
  ReplicaGroup::use_bfloat16();
  place_pieces();
}

void RemoteReplicas::reset() {
  ReplicaGroup::reset();
  const std::lock_guard lock(mutex_);
  std::fill(step_of_.begin(), step_of_.end(), steps_);
  bucket_events_.clear();
}

std::vector<BucketEvent> RemoteReplicas::bucket_events() {
  const std::lock_guard lock(mutex_);
  return bucket_events_;
}

/// Gradients that all need are divided evenly, one after another; the others go to their owners.
void RemoteReplicas::share_out(std::size_t bucket, const std::vector<int>& owners) {
  std::vector<Share>& shares = shares_.emplace_back(processes_.size());
  const auto [first, last] = buckets_[bucket];
  std::size_t all = 0;
  for (std::size_t g = first; g < last; ++g) all += owners[g] < 0 ? sizes_[g] : 0;
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    Share& share = shares[p];
    const std::size_t from = all * p / processes_.size(), to = all * (p + 1) / processes_.size();
    std::size_t begin = 0;
    for (std::size_t g = first; g < last; ++g) {
      if (owners[g] >= 0) continue;
      const std::size_t end = begin + sizes_[g];
      const std::size_t here = std::max(begin, from), behind = std::min(end, to);
      if (here < behind) share.pieces.push_back({g, here - begin, behind - here});
      begin = end;
    }
    share.handed_on_pieces = share.pieces.size();
    for (std::size_t g = first; g < last; ++g) {
      if (owners[g] >= 0 && process_of_[at(owners[g])] == processes_[p])
        share.pieces.push_back({g, 0, sizes_[g]});
    }
  }
}

/// Behind the float that says whether there is any gradient, the packed pieces come first.
void RemoteReplicas::place_pieces() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (Share& share : shares_[b]) {
      share.packed_floats = share.other_floats = 0;
      for (Piece& piece : share.pieces) {
        if (is_packed(piece))
          piece.place = 1 + std::exchange(share.packed_floats, share.packed_floats + piece.count);
      }
      for (Piece& piece : share.pieces) {
        if (!is_packed(piece))
          piece.place = 1 + share.packed_floats +
                        std::exchange(share.other_floats, share.other_floats + piece.count);
      }
    }
    const std::size_t each = as_bfloat16_ && any_messages_ ? sizeof(std::uint16_t) : sizeof(float);
    on_way_[b].bytes = 0;
    for (std::size_t g = buckets_[b].first; g < buckets_[b].last; ++g)
      on_way_[b].bytes += static_cast<std::int64_t>(sizes_[g] * each);
  }
}

bool RemoteReplicas::is_packed(const Piece& piece) const {
  return as_bfloat16_ || piece.count < kOwnMessage;
}

void RemoteReplicas::bucket_completed() { messages_.wake(); }

bool RemoteReplicas::is_complete(std::size_t bucket) {
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < replicas(); ++r) {
    if (is_here(r) && !member(r).absent && member(r).missing[bucket] > 0) return false;
  }
  return true;
}

void RemoteReplicas::reduce(int replica, bool contributes) {
  if (buckets_.empty()) return;
  std::int64_t step = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!contributes) member(replica).absent = true;  // until the step ends
    step = step_of_[at(replica)]++;
  }
  if (!contributes) bucket_completed();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return aborted_ || steps_ > step; });
  if (aborted_) throw ChannelAborted();
}

/// The messages of one tag are sent and received in the order of the buckets.
bool RemoteReplicas::go_on() {
  if (buckets_.empty()) return false;
  const auto before = std::array{sent_.load(), summed_, expected_, taken_};
  while (sent_ < std::min(buckets_.size(), taken_ + kMostUnderWay) && is_complete(sent_)) {
    if (sent_ == 0) {
      for (std::size_t b = 0; b < buckets_.size(); ++b) expect_parts(b);
    }
    on_way_[sent_].left = steady_seconds();
    send_parts(sent_);
    ++sent_;
  }
  for (; summed_ < sent_ && is_done(on_way_[summed_].parts); ++summed_) add_up(summed_);
  // The sums replace what was sent.
  for (; expected_ < sent_ && is_done(on_way_[expected_].part_sends); ++expected_)
    expect_sums(expected_);
  for (; taken_ < std::min(summed_, expected_) && is_done(on_way_[taken_].sums); ++taken_) {
    take_over(taken_);
    on_way_[taken_].taken = steady_seconds();
  }
  const bool moved = before != std::array{sent_.load(), summed_, expected_, taken_};
  if (taken_ < buckets_.size()) return moved;
  for (Sum& sum : on_way_) {
    if (!is_done(sum.sum_sends) || !is_done(sum.readers)) return moved;
  }
  finish();
  return true;
}

/// Sums our share over all replicas, in their order or as a tree, into the gradients of the first
/// replica here, and hands on what the others need.
void RemoteReplicas::add_up(std::size_t bucket) {
  Sum& sum = on_way_[bucket];
  const Share& share = shares_[bucket][here_];
  for (const int r : senders_) {
    if (!is_here(r) && !group_.can_read(process_of_[at(r)])) unpack(sum.received[at(r)]);
  }
  for (std::size_t k = 0; k < share.pieces.size(); ++k) add_up_piece(bucket, k);
  Parcel& parcel = sum.packed_sums[here_];
  parcel.floats.clear();
  parcel.addresses.assign(1, 0);
  for (const Piece& piece : share.handed_on()) {
    const std::span<float> floats = part(first_here(), piece);
    if (any_messages_ && is_packed(piece))
      parcel.floats.insert(parcel.floats.end(), floats.begin(), floats.end());
    if (any_read_) parcel.addresses.push_back(address_of(floats.data()));
  }
  pack(parcel);
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    if (p != here_) hand_on(bucket, p);
  }
}

/// Sums a piece of our share, in blocks that fit the cache.
void RemoteReplicas::add_up_piece(std::size_t bucket, std::size_t piece) {
  const Piece& whole = shares_[bucket][here_].pieces[piece];
  std::vector<const float*> parts;
  for (std::size_t begin = 0; begin < whole.count; begin += kReadFloats) {
    const Piece block{whole.gradient, whole.first + begin,
                      std::min(kReadFloats, whole.count - begin), whole.place + begin};
    parts.clear();
    for (const int r : senders_) {
      const Parcel& received = on_way_[bucket].received[at(r)];
      if (is_absent(on_way_[bucket], r)) {
        if (as_tree_) parts.push_back(nullptr);
      } else if (is_here(r)) {
        parts.push_back(part(r, block).data());
      } else if (const int peer = process_of_[at(r)]; group_.can_read(peer)) {
        read_[at(r)].resize(kReadFloats);
        const std::span<float> floats = std::span(read_[at(r)]).first(block.count);
        read(peer, received.addresses[1 + piece] + begin * sizeof(float), floats);
        parts.push_back(floats.data());
      } else {
        parts.push_back(received.floats.data() + block.place);
      }
    }
    if (!parts.empty()) add_up_parts(parts, part(first_here(), block));
  }
}

/// Writes the sums that are here into the gradients of all replicas here.
void RemoteReplicas::take_over(std::size_t bucket) {
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    const Share& share = shares_[bucket][p];
    if (p != here_) take_sums(on_way_[bucket], p, share);
    for (int r = first_here() + 1; r < replicas(); ++r) {
      if (!is_here(r)) continue;
      for (const Piece& piece : p == here_ ? std::span(share.pieces) : share.handed_on())
        std::ranges::copy(part(first_here(), piece), part(r, piece).begin());
    }
  }
}

void RemoteReplicas::finish() {
  {
    const std::lock_guard lock(mutex_);
    for (int r = 0; r < replicas(); ++r) restart(member(r));
    // An asynchronous round has many steps.
    for (std::size_t b = 0; b < on_way_.size() && bucket_events_.size() < kMostEvents; ++b) {
      const Sum& sum = on_way_[b];
      bucket_events_.push_back({0, 0, static_cast<int>(b), sum.bytes, sum.left, sum.taken});
    }
    sent_ = 0;
    summed_ = expected_ = taken_ = 0;
    ++steps_;
  }
  changed_.notify_all();
}

bool RemoteReplicas::is_done(Requests& requests) { return are_done(group_.processes(), requests); }

}  // namespace pipetrain
