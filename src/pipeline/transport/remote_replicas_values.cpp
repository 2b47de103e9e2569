// What replicas in several processes tell each other besides their gradients.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "pipeline/transport/remote_replicas.h"
#include "processes/message_parts.h"

namespace pipetrain {

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

/// Posts the weights that each process owns: floats, or where another process reads them.
void RemoteReplicas::post_weights(std::vector<OwnedWeights>& mine, Requests& receives,
                                  Requests& sends) {
  Processes& processes = group_.processes();
  weight_addresses_.resize(mine.size());
  for (std::size_t k = 0; k < mine.size(); ++k) {
    std::uint64_t& address = weight_addresses_[k];
    const int owner = mine[k].owner, from = tag(owner, kWeights);
    if (!is_here(owner)) {
      const int peer = process_of_[at(owner)];
      const std::span<std::byte> to = std::as_writable_bytes(mine[k].values);
      if (group_.can_read(peer)) {
        receives.push_back(processes.post_receive(&address, sizeof address, peer, from));
      } else {
        post_receive_in_parts(processes, to.data(), to.size(), peer, from, receives);
      }
      continue;
    }
    const std::span<const std::byte> values = std::as_bytes(member(owner).weights[k].values);
    address = address_of(member(owner).weights[k].values.data());
    for (const int peer : processes_) {
      if (peer == rank_) continue;
      if (group_.can_read(peer)) {
        sends.push_back(processes.post_send(&address, sizeof address, peer, from));
      } else {
        post_send_in_parts(processes, values.data(), values.size(), peer, from, sends);
      }
    }
  }
}

/// Reads the weights of other processes, which do not change them before all have read them.
void RemoteReplicas::read_weights(std::vector<OwnedWeights>& mine) {
  for (std::size_t k = 0; k < mine.size(); ++k) {
    const int peer = process_of_[at(mine[k].owner)];
    if (peer != rank_ && group_.can_read(peer)) read(peer, weight_addresses_[k], mine[k].values);
  }
  Requests words;
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    const int peer = processes_[p];
    if (peer == rank_ || !group_.can_read(peer)) continue;
    words.push_back(group_.processes().post_send(nullptr, 0, peer, tag(first_here(), kWeights)));
    words.push_back(group_.processes().post_receive(nullptr, 0, peer, tag(first_of(p), kWeights)));
  }
  wait_for(words);
}

/// Waits for kLostSeconds, or throws what others report.
void RemoteReplicas::wait_for_reports() {
  for (const double begin = steady_seconds(); steady_seconds() - begin < kLostSeconds;) {
    group_.check_failure();
    if (is_aborted()) throw ChannelAborted();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// The first replica here takes the weights of other processes over for all of them.
void RemoteReplicas::share_weights(int replica, std::vector<OwnedWeights> weights) {
  std::vector<OwnedWeights>& mine = member(replica).weights = std::move(weights);
  meet();
  if (replica == first_here()) {
    Requests receives, sends;
    try {
      post_weights(mine, receives, sends);
      wait_for(receives);
      read_weights(mine);
      wait_for(sends);
    } catch (const LostProcess&) {
      wait_for_reports();
      throw;
    } catch (...) {
      for (const Processes::Request request : receives) group_.processes().cancel(request);
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
