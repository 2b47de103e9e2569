#include "pipeline/transport/remote_replicas.h"

#include <algorithm>
#include <thread>

#include "base/index.h"

namespace pipetrain {

namespace {

int count_here(const ProcessGroup& group, const std::vector<int>& process_of) {
  return static_cast<int>(std::count(process_of.begin(), process_of.end(), group.rank()));
}

}  // namespace

RemoteReplicas::RemoteReplicas(ProcessGroup& group, MessageThread& messages,
                               std::vector<int> process_of, int first_tag,
                               const std::vector<std::size_t>& sizes, BucketFloats buckets)
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
    Sum& sum = on_way_[b];
    for (std::size_t g = buckets_[b].first; g < buckets_[b].last; ++g) sum.floats += sizes_[g];
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
}

std::array<std::size_t, 2> RemoteReplicas::share_of(std::size_t bucket, std::size_t process) const {
  const std::size_t floats = on_way_[bucket].floats;
  return {floats * process / processes_.size(), floats * (process + 1) / processes_.size()};
}

void RemoteReplicas::each_part(int replica, std::size_t bucket, std::array<std::size_t, 2> floats,
                               const std::function<void(std::span<float>)>& body) {
  std::size_t begin = 0;
  for (std::size_t g = buckets_[bucket].first; g < buckets_[bucket].last; ++g) {
    const std::size_t end = begin + sizes_[g];
    const std::size_t from = std::max(begin, floats[0]), to = std::min(end, floats[1]);
    if (from < to) body(member(replica).gradients[g].subspan(from - begin, to - from));
    begin = end;
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
    send_parts(sent_);
    ++sent_;
  }
  for (; summed_ < sent_ && is_done(on_way_[summed_].parts); ++summed_) add_up(summed_);
  for (; taken_ < summed_ && is_done(on_way_[taken_].totals); ++taken_) take_over(taken_);
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
  const auto receive = [&](std::vector<float>& to, std::size_t process, std::size_t more,
                           Requests& requests, int from_replica, Phase phase, int peer) {
    const auto [begin, end] = share_of(bucket, process);
    to.resize(more + end - begin);
    requests.push_back(processes.post_receive(to.data(), to.size() * sizeof(float), peer,
                                              tag(from_replica, phase)));
  };
  for (int r = 0; r < replicas(); ++r) {
    if (is_here(r)) continue;
    // A leading float says whether the replica has any gradient.
    receive(sum.received[at(r)], here_, 1, sum.parts, r, kParts, process_of_[at(r)]);
  }
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    if (p == here_) continue;
    // The first replica of a process represents it.
    const auto leader = static_cast<int>(
        std::find(process_of_.begin(), process_of_.end(), processes_[p]) - process_of_.begin());
    receive(sum.sums[p], p, 0, sum.totals, leader, kSums, processes_[p]);
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
      each_part(r, bucket, share_of(bucket, p),
                [&](std::span<float> part) { out.insert(out.end(), part.begin(), part.end()); });
      sum.sends.push_back(group_.processes().post_send(out.data(), out.size() * sizeof(float),
                                                       processes_[p], tag(r, kParts)));
    }
  }
}

/// Sums our share over all replicas, in their order, and sends it to the others.
void RemoteReplicas::add_up(std::size_t bucket) {
  Sum& sum = on_way_[bucket];
  std::vector<float>& total = sum.sums[here_];
  const std::array<std::size_t, 2> share = share_of(bucket, here_);
  total.resize(share[1] - share[0]);
  bool is_first = true;
  const auto add = [&](std::size_t offset, std::span<const float> part) {
    float* to = total.data() + offset;
    if (is_first) {
      std::copy(part.begin(), part.end(), to);
    } else {
      for (std::size_t i = 0; i < part.size(); ++i) to[i] += part[i];
    }
  };
  for (int r = 0; r < replicas(); ++r) {
    const std::vector<float>& received = sum.received[at(r)];
    if (is_here(r) ? member(r).absent : received.front() == 0) continue;
    std::size_t offset = 0;
    if (is_here(r)) {
      each_part(r, bucket, share, [&](std::span<float> part) {
        add(offset, part);
        offset += part.size();
      });
    } else {
      add(0, std::span(received).subspan(1));
    }
    is_first = false;
  }
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    if (p == here_) continue;
    sum.sends.push_back(group_.processes().post_send(total.data(), total.size() * sizeof(float),
                                                     processes_[p], tag(first_here(), kSums)));
  }
}

/// Writes the sum into the gradients of the replicas here.
void RemoteReplicas::take_over(std::size_t bucket) {
  for (int r = 0; r < replicas(); ++r) {
    if (!is_here(r)) continue;
    for (std::size_t p = 0; p < processes_.size(); ++p) {
      const float* from = on_way_[bucket].sums[p].data();
      each_part(r, bucket, share_of(bucket, p), [&](std::span<float> part) {
        std::copy_n(from, part.size(), part.begin());
        from += part.size();
      });
    }
  }
}

void RemoteReplicas::finish() {
  {
    const std::lock_guard lock(mutex_);
    for (int r = 0; r < replicas(); ++r) restart(member(r));
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
  while (!is_done(requests)) {
    group_.check_failure();
    if (is_aborted()) throw ChannelAborted();
    std::this_thread::yield();
  }
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
