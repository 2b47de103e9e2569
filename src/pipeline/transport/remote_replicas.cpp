#include "pipeline/transport/remote_replicas.h"

#include <algorithm>
#include <chrono>
#include <thread>
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
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    share_out(b, owners);
    Sum& sum = on_way_[b];
    sum.packed_parts.resize(process_of_.size() * processes_.size());
    sum.received.resize(process_of_.size());
    sum.packed_sums.resize(processes_.size());
  }
  place_pieces();
}

int RemoteReplicas::first_here() const {
  int first = 0;
  while (!is_here(first)) ++first;
  return first;
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
    on_way_[b].bytes = 0;
    for (std::size_t g = buckets_[b].first; g < buckets_[b].last; ++g)
      on_way_[b].bytes += static_cast<std::int64_t>(
          sizes_[g] * (as_bfloat16_ ? sizeof(std::uint16_t) : sizeof(float)));
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
    if (!is_done(sum.sum_sends)) return moved;
  }
  finish();
  return true;
}

void RemoteReplicas::post_send(const void* from, std::size_t bytes, int peer, int tag,
                               Requests& requests) {
  post_send_in_parts(group_.processes(), static_cast<const std::byte*>(from), bytes, peer, tag,
                     requests, Processes::kEagerBytes);
}

void RemoteReplicas::post_receive(void* to, std::size_t bytes, int peer, int tag,
                                  Requests& requests) {
  post_receive_in_parts(group_.processes(), static_cast<std::byte*>(to), bytes, peer, tag, requests,
                        Processes::kEagerBytes);
}

void RemoteReplicas::post_send(Parcel& parcel, int peer, int tag, Requests& requests) {
  if (!as_bfloat16_)
    return post_send(parcel.floats.data(), std::span(parcel.floats).size_bytes(), peer, tag,
                     requests);
  pack_bfloat16(parcel.floats, parcel.narrow);
  post_send(parcel.narrow.data(), std::span(parcel.narrow).size_bytes(), peer, tag, requests);
}

void RemoteReplicas::post_receive(Parcel& parcel, std::size_t floats, int peer, int tag,
                                  Requests& requests) {
  if (!as_bfloat16_)
    return post_receive(parcel.floats.data(), floats * sizeof(float), peer, tag, requests);
  parcel.narrow.resize(floats);
  post_receive(parcel.narrow.data(), std::span(parcel.narrow).size_bytes(), peer, tag, requests);
}

/// What has arrived as bfloat16, as floats.
void RemoteReplicas::unpack(Parcel& parcel) const {
  if (as_bfloat16_) unpack_bfloat16(parcel.narrow, parcel.floats);
}

/// Posts the receives of the other replicas' parts of our share.
void RemoteReplicas::expect_parts(std::size_t bucket) {
  Sum& sum = on_way_[bucket];
  const Share& share = shares_[bucket][here_];
  for (const int r : senders_) {
    if (is_here(r)) continue;
    Parcel& received = sum.received[at(r)];
    received.floats.resize(1 + share.packed_floats + share.other_floats);
    const int peer = process_of_[at(r)];
    post_receive(received, 1 + share.packed_floats, peer, tag(r, kParts), sum.parts);
    for (const Piece& piece : share.pieces) {
      if (!is_packed(piece))
        post_receive(received.floats.data() + piece.place, piece.count * sizeof(float), peer,
                     tag(r, kParts), sum.parts);
    }
  }
}

/// Sends the other processes their shares of the replicas here.
void RemoteReplicas::send_parts(std::size_t bucket) {
  Sum& sum = on_way_[bucket];
  join_here(bucket);
  for (const int r : senders_) {
    if (!is_here(r)) continue;
    for (std::size_t p = 0; p < processes_.size(); ++p) {
      if (p == here_) continue;
      Parcel& parcel = sum.packed_parts[at(r) * processes_.size() + p];
      std::vector<float>& packed = parcel.floats;
      // The first says whether the replica has any gradient.
      packed.assign(1, is_absent(r) ? 0.0F : 1.0F);
      for (const Piece& piece : shares_[bucket][p].pieces) {
        if (is_packed(piece))
          packed.insert(packed.end(), part(r, piece).begin(), part(r, piece).end());
      }
      post_send(parcel, processes_[p], tag(r, kParts), sum.part_sends);
      for (const Piece& piece : shares_[bucket][p].pieces) {
        if (!is_packed(piece))
          post_send(part(r, piece).data(), part(r, piece).size_bytes(), processes_[p],
                    tag(r, kParts), sum.part_sends);
      }
    }
  }
}

/// Sums our share over all replicas, in their order or as a tree, into the gradients of the first
/// replica here, and hands on what the others need.
void RemoteReplicas::add_up(std::size_t bucket) {
  Sum& sum = on_way_[bucket];
  const Share& share = shares_[bucket][here_];
  for (const int r : senders_) {
    if (!is_here(r)) unpack(sum.received[at(r)]);
  }
  std::vector<const float*> parts;
  for (const Piece& piece : share.pieces) {
    parts.clear();
    for (const int r : senders_) {
      const std::vector<float>& received = sum.received[at(r)].floats;
      const bool absent = is_here(r) ? is_absent(r) : received.front() == 0;
      const float* from = is_here(r) ? part(r, piece).data() : received.data() + piece.place;
      if (!absent || as_tree_) parts.push_back(absent ? nullptr : from);
    }
    if (!parts.empty()) add_up_parts(parts, part(first_here(), piece));
  }
  Parcel& parcel = sum.packed_sums[here_];
  std::vector<float>& packed = parcel.floats;
  packed.clear();
  for (const Piece& piece : share.handed_on()) {
    const std::span<float> floats = part(first_here(), piece);
    if (is_packed(piece)) packed.insert(packed.end(), floats.begin(), floats.end());
  }
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    if (p == here_) continue;
    if (!packed.empty()) post_send(parcel, processes_[p], tag(first_here(), kSums), sum.sum_sends);
    for (const Piece& piece : share.handed_on()) {
      const std::span<float> floats = part(first_here(), piece);
      if (!is_packed(piece))
        post_send(floats.data(), floats.size_bytes(), processes_[p], tag(first_here(), kSums),
                  sum.sum_sends);
    }
  }
}

/// Posts the receives of the sums of other processes.
void RemoteReplicas::expect_sums(std::size_t bucket) {
  Sum& sum = on_way_[bucket];
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    if (p == here_) continue;
    // The first replica of a process represents it.
    const auto leader = static_cast<int>(
        std::find(process_of_.begin(), process_of_.end(), processes_[p]) - process_of_.begin());
    const int from = tag(leader, kSums);
    std::size_t packed = 0;
    for (const Piece& piece : shares_[bucket][p].handed_on())
      packed += is_packed(piece) ? piece.count : 0;
    Parcel& parcel = sum.packed_sums[p];
    parcel.floats.resize(packed);
    if (packed > 0) post_receive(parcel, packed, processes_[p], from, sum.sums);
    for (const Piece& piece : shares_[bucket][p].handed_on()) {
      const std::span<float> floats = part(first_here(), piece);
      if (!is_packed(piece))
        post_receive(floats.data(), floats.size_bytes(), processes_[p], from, sum.sums);
    }
  }
}

/// Writes the sums that are here into the gradients of all replicas here.
void RemoteReplicas::take_over(std::size_t bucket) {
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    const Share& share = shares_[bucket][p];
    if (p != here_) {
      Parcel& parcel = on_way_[bucket].packed_sums[p];
      if (share.packed_floats > 0) unpack(parcel);
      const float* from = parcel.floats.data();
      for (const Piece& piece : share.handed_on()) {
        if (!is_packed(piece)) continue;
        std::copy_n(from, piece.count, part(first_here(), piece).begin());
        from += piece.count;
      }
    }
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

void RemoteReplicas::wait_for(Requests& requests) {
  // What is waited for longer gets on by itself, and others may need the core for that.
  constexpr double kPollSeconds = 0.02;
  const double begin = steady_seconds();
  while (!is_done(requests)) {
    group_.check_failure();
    if (is_aborted()) throw ChannelAborted();
    if (steady_seconds() - begin < kPollSeconds) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

/// The first replica here takes the weights of other processes over for all of them.
void RemoteReplicas::share_weights(int replica, std::vector<OwnedWeights> weights) {
  std::vector<OwnedWeights>& mine = member(replica).weights = std::move(weights);
  meet();
  if (replica == first_here()) {
    Processes& processes = group_.processes();
    Requests receives, sends;
    for (std::size_t k = 0; k < mine.size(); ++k) {
      const int owner = mine[k].owner;
      if (!is_here(owner)) {
        const std::span<std::byte> to = std::as_writable_bytes(mine[k].values);
        post_receive_in_parts(processes, to.data(), to.size(), process_of_[at(owner)],
                              tag(owner, kWeights), receives);
        continue;
      }
      const std::span<const std::byte> from = std::as_bytes(member(owner).weights[k].values);
      for (const int process : processes_) {
        if (process != rank_)
          post_send_in_parts(processes, from.data(), from.size(), process, tag(owner, kWeights),
                             sends);
      }
    }
    try {
      wait_for(receives);
      wait_for(sends);
    } catch (...) {
      for (const Processes::Request request : receives) processes.cancel(request);
      throw;
    }
  }
  meet();
  for (std::size_t k = 0; k < mine.size(); ++k) {
    const int from = is_here(mine[k].owner) ? mine[k].owner : first_here();
    if (from == replica) continue;
    const std::span<float> values = member(from).weights[k].values;
    std::copy(values.begin(), values.end(), mine[k].values.begin());
  }
  meet();
}

std::vector<std::string> RemoteReplicas::gather(int replica, std::string mine) {
  texts_[at(replica)] = std::move(mine);
  meet();
  if (replica == first_here()) {
    Processes& processes = group_.processes();
    std::vector<Processes::Request> requests, texts;
    std::vector<std::uint64_t>& sizes = text_sizes_;
    for (int r = 0; r < replicas(); ++r) {
      sizes[at(r)] = texts_[at(r)].size();
      if (!is_here(r)) {
        requests.push_back(processes.post_receive(&sizes[at(r)], sizeof sizes[0],
                                                  process_of_[at(r)], tag(r, kSizes)));
        continue;
      }
      for (const int process : processes_) {
        if (process == rank_) continue;
        requests.push_back(
            processes.post_send(&sizes[at(r)], sizeof sizes[0], process, tag(r, kSizes)));
        texts.push_back(processes.post_send(texts_[at(r)].data(), texts_[at(r)].size(), process,
                                            tag(r, kTexts)));
      }
    }
    wait_for(requests);
    for (int r = 0; r < replicas(); ++r) {
      if (is_here(r)) continue;
      texts_[at(r)].resize(sizes[at(r)]);
      texts.push_back(processes.post_receive(texts_[at(r)].data(), texts_[at(r)].size(),
                                             process_of_[at(r)], tag(r, kTexts)));
    }
    wait_for(texts);
  }
  meet();
  std::vector<std::string> all = texts_;
  meet();  // before the next ones are written
  return all;
}

}  // namespace pipetrain
