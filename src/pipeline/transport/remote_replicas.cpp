#include "pipeline/transport/remote_replicas.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/index.h"
#include "pipeline/transport/sum_tree.h"
#include "processes/message_parts.h"

namespace pipetrain {

namespace {

constexpr std::size_t kMostEvents = 4096;

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
  here_ = static_cast<std::size_t>(std::find(processes_.begin(), processes_.end(), rank_) -
                                   processes_.begin());
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    share_out(b, owners);
    Sum& sum = on_way_[b];
    for (std::size_t g = buckets_[b].first; g < buckets_[b].last; ++g)
      sum.bytes += static_cast<std::int64_t>(sizes_[g] * sizeof(float));
    sum.sent.resize(process_of_.size() * processes_.size());
    sum.received.resize(process_of_.size());
    sum.sums.resize(processes_.size());
  }
}

int RemoteReplicas::first_here() const {
  int first = 0;
  while (!is_here(first)) ++first;
  return first;
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
    share.handed_on = share.pieces.size();
    share.handed_on_floats = share.floats = to - from;
    for (std::size_t g = first; g < last; ++g) {
      if (owners[g] < 0 || process_of_[at(owners[g])] != processes_[p]) continue;
      share.pieces.push_back({g, 0, sizes_[g]});
      share.floats += sizes_[g];
    }
  }
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
  const auto before = std::array{sent_.load(), summed_, taken_};
  while (sent_ < buckets_.size() && is_complete(sent_)) {
    if (sent_ == 0) {
      for (std::size_t b = 0; b < buckets_.size(); ++b) expect(b);
    }
    on_way_[sent_].left = steady_seconds();
    send_parts(sent_);
    ++sent_;
  }
  for (; summed_ < sent_ && is_done(on_way_[summed_].parts); ++summed_) add_up(summed_);
  for (; taken_ < summed_ && is_done(on_way_[taken_].totals); ++taken_) {
    take_over(taken_);
    on_way_[taken_].taken = steady_seconds();
  }
  const bool moved = before != std::array{sent_.load(), summed_, taken_};
  if (taken_ < buckets_.size()) return moved;
  for (Sum& sum : on_way_) {
    if (!is_done(sum.sends)) return moved;
  }
  finish();
  return true;
}

/// Posts the receives of a bucket.
void RemoteReplicas::expect(std::size_t bucket) {
  Processes& processes = group_.processes();
  Sum& sum = on_way_[bucket];
  const auto receive = [&](std::vector<float>& to, std::size_t floats, Requests& requests,
                           int from_replica, Phase phase, int peer) {
    to.resize(floats);
    if (floats == 0) return;
    requests.push_back(processes.post_receive(to.data(), to.size() * sizeof(float), peer,
                                              tag(from_replica, phase)));
  };
  for (int r = 0; r < replicas(); ++r) {
    if (is_here(r)) continue;
    // A leading float says whether the replica has any gradient.
    receive(sum.received[at(r)], 1 + shares_[bucket][here_].floats, sum.parts, r, kParts,
            process_of_[at(r)]);
  }
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    if (p == here_) continue;
    // The first replica of a process represents it.
    const auto leader = static_cast<int>(
        std::find(process_of_.begin(), process_of_.end(), processes_[p]) - process_of_.begin());
    receive(sum.sums[p], shares_[bucket][p].handed_on_floats, sum.totals, leader, kSums,
            processes_[p]);
  }
}

/// Sends the other processes their shares of the replicas here.
void RemoteReplicas::send_parts(std::size_t bucket) {
  Sum& sum = on_way_[bucket];
  for (int r = 0; r < replicas(); ++r) {
    if (!is_here(r)) continue;
    for (std::size_t p = 0; p < processes_.size(); ++p) {
      if (p == here_) continue;
      std::vector<float>& out = sum.sent[at(r) * processes_.size() + p];
      out.assign(1, member(r).absent ? 0.0F : 1.0F);
      for (const Piece& piece : shares_[bucket][p].pieces) {
        const std::span<float> floats = part(r, piece);
        out.insert(out.end(), floats.begin(), floats.end());
      }
      sum.sends.push_back(group_.processes().post_send(out.data(), out.size() * sizeof(float),
                                                       processes_[p], tag(r, kParts)));
    }
  }
}

/// Sums our share over all replicas, in their order or as a tree, and hands on what the others
/// need.
void RemoteReplicas::add_up(std::size_t bucket) {
  Sum& sum = on_way_[bucket];
  std::vector<float>& total = sum.sums[here_];
  const Share& share = shares_[bucket][here_];
  total.resize(share.floats);
  std::size_t offset = 0;
  for (const Piece& piece : share.pieces) {
    std::vector<const float*> parts;
    for (int r = 0; r < replicas(); ++r) {
      const std::vector<float>& received = sum.received[at(r)];
      const bool absent = is_here(r) ? member(r).absent : received.front() == 0;
      const float* from = is_here(r) ? part(r, piece).data() : received.data() + 1 + offset;
      if (!absent || as_tree_) parts.push_back(absent ? nullptr : from);
    }
    float* to = total.data() + offset;
    offset += piece.count;
    if (as_tree_) {
      pipetrain::sum_as_tree(parts, piece.count, to);
      continue;
    }
    for (std::size_t p = 0; p < parts.size(); ++p) {
      if (p == 0) {
        std::copy_n(parts[0], piece.count, to);
      } else {
        for (std::size_t i = 0; i < piece.count; ++i) to[i] += parts[p][i];
      }
    }
  }
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    if (p == here_ || share.handed_on_floats == 0) continue;
    sum.sends.push_back(group_.processes().post_send(total.data(),
                                                     share.handed_on_floats * sizeof(float),
                                                     processes_[p], tag(first_here(), kSums)));
  }
}

/// Writes the sums that are here into the gradients of the replicas here.
void RemoteReplicas::take_over(std::size_t bucket) {
  for (int r = 0; r < replicas(); ++r) {
    if (!is_here(r)) continue;
    for (std::size_t p = 0; p < processes_.size(); ++p) {
      const float* from = on_way_[bucket].sums[p].data();
      const Share& share = shares_[bucket][p];
      const std::size_t there = p == here_ ? share.pieces.size() : share.handed_on;
      for (std::size_t k = 0; k < there; ++k) {
        std::copy_n(from, share.pieces[k].count, part(r, share.pieces[k]).begin());
        from += share.pieces[k].count;
      }
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
    summed_ = taken_ = 0;
    ++steps_;
  }
  changed_.notify_all();
}

bool RemoteReplicas::is_done(Requests& requests) {
  std::erase_if(requests,
                [&](Processes::Request request) { return group_.processes().test(request); });
  return requests.empty();
}

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
