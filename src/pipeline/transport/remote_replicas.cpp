#include "pipeline/transport/remote_replicas.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/index.h"

namespace pipetrain {

namespace {

int count_here(const ProcessGroup& group, const std::vector<int>& process_of) {
  return static_cast<int>(std::count(process_of.begin(), process_of.end(), group.rank()));
}

}  // namespace

RemoteReplicas::RemoteReplicas(ProcessGroup& group, std::vector<int> process_of, int first_tag,
                               const std::vector<std::size_t>& sizes)
    : ReplicaGroup(static_cast<int>(process_of.size()), sizes, std::size_t{1} << 20,
                   count_here(group, process_of)),
      group_(group),
      rank_(group.rank()),
      process_of_(std::move(process_of)),
      first_tag_(first_tag),
      sizes_(sizes),
      texts_(process_of_.size()),
      text_sizes_(process_of_.size()) {
  for (const int process : process_of_) {
    if (std::find(processes_.begin(), processes_.end(), process) == processes_.end())
      processes_.push_back(process);
  }
  here_ = static_cast<std::size_t>(std::find(processes_.begin(), processes_.end(), rank_) -
                                   processes_.begin());
  sent_.resize(process_of_.size() * processes_.size());
  received_.resize(process_of_.size());
  sums_.resize(processes_.size());
}

/// The part of a gradient that a process adds up.
std::span<float> RemoteReplicas::share_of(std::span<float> gradient, std::size_t process) const {
  const auto edge = [&](std::size_t p) { return gradient.size() * p / processes_.size(); };
  return gradient.subspan(edge(process), edge(process + 1) - edge(process));
}

std::size_t RemoteReplicas::share_floats(std::size_t process) const {
  std::size_t floats = 0;
  for (const std::size_t size : sizes_)
    floats += size * (process + 1) / processes_.size() - size * process / processes_.size();
  return floats;
}

void RemoteReplicas::wait_for(std::vector<Processes::Request>& requests) {
  auto pause = std::chrono::microseconds(10);
  while (!requests.empty()) {
    std::erase_if(requests,
                  [&](Processes::Request request) { return group_.processes().test(request); });
    if (requests.empty()) return;
    group_.check_failure();
    if (is_aborted()) throw ChannelAborted();
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(200));
  }
}

void RemoteReplicas::reduce(int replica, bool contributes) {
  member(replica).absent = !contributes;
  meet();  // all gradients of this process are complete
  int first = 0;
  while (!is_here(first)) ++first;
  if (replica == first) add_up();
  meet();
}

void RemoteReplicas::add_up() {
  Processes& processes = group_.processes();
  const int replicas = this->replicas();
  std::vector<Processes::Request> sends, receives;
  // A leading float says whether the replica has any gradient.
  for (int r = 0; r < replicas; ++r) {
    if (!is_here(r)) {
      received_[at(r)].resize(1 + share_floats(here_));
      receives.push_back(processes.post_receive(received_[at(r)].data(),
                                                received_[at(r)].size() * sizeof(float),
                                                process_of_[at(r)], tag(r, kParts)));
      continue;
    }
    for (std::size_t p = 0; p < processes_.size(); ++p) {
      if (p == here_) continue;
      std::vector<float>& out = sent_[at(r) * processes_.size() + p];
      out.assign(1, member(r).absent ? 0.0F : 1.0F);
      for (const std::span<float> gradient : member(r).gradients) {
        const std::span<float> part = share_of(gradient, p);
        out.insert(out.end(), part.begin(), part.end());
      }
      sends.push_back(processes.post_send(out.data(), out.size() * sizeof(float), processes_[p],
                                          tag(r, kParts)));
    }
  }
  wait_for(receives);

  std::vector<float>& sum = sums_[here_];
  sum.resize(share_floats(here_));
  std::size_t offset = 0;
  for (std::size_t g = 0; g < sizes_.size(); ++g) {
    std::vector<const float*> parts;
    std::size_t count = 0;
    for (int r = 0; r < replicas; ++r) {
      if (is_here(r)) {
        const std::span<float> part = share_of(member(r).gradients[g], here_);
        count = part.size();
        if (!member(r).absent) parts.push_back(part.data());
      } else if (received_[at(r)].front() != 0) {
        parts.push_back(received_[at(r)].data() + 1 + offset);
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      float value = parts[0][i];
      for (std::size_t p = 1; p < parts.size(); ++p) value += parts[p][i];
      sum[offset + i] = value;
    }
    offset += count;
  }

  // The first replica of a process represents it.
  const auto leader = [&](std::size_t p) {
    return static_cast<int>(std::find(process_of_.begin(), process_of_.end(), processes_[p]) -
                            process_of_.begin());
  };
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    if (p == here_) continue;
    sends.push_back(processes.post_send(sum.data(), sum.size() * sizeof(float), processes_[p],
                                        tag(leader(here_), kSums)));
    sums_[p].resize(share_floats(p));
    receives.push_back(processes.post_receive(sums_[p].data(), sums_[p].size() * sizeof(float),
                                              processes_[p], tag(leader(p), kSums)));
  }
  wait_for(receives);
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    const float* from = sums_[p].data();
    for (std::size_t g = 0; g < sizes_.size(); ++g) {
      std::size_t count = 0;
      for (int r = 0; r < replicas; ++r) {
        if (!is_here(r)) continue;
        const std::span<float> part = share_of(member(r).gradients[g], p);
        std::copy_n(from, part.size(), part.begin());
        count = part.size();
      }
      from += count;
    }
  }
  wait_for(sends);
}

std::vector<std::string> RemoteReplicas::gather(int replica, std::string mine) {
  texts_[at(replica)] = std::move(mine);
  meet();
  int first = 0;
  while (!is_here(first)) ++first;
  if (replica == first) {
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
