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
  std::size_t left = requests.size();
  while (!is_done(requests)) {
    if (requests.size() < std::exchange(left, requests.size())) messages_.say_moved();
    group_.check_failure();
    if (is_aborted()) throw ChannelAborted();
    if (steady_seconds() - begin < kPollSeconds) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

/// Posts the exchange of weights: floats, or for processes that can read ours, their addresses.
void RemoteReplicas::post_weights(std::vector<OwnedWeights>& mine, WeightRequests& requests) {
  Processes& processes = group_.processes();
  weight_addresses_.resize(mine.size());
  for (std::size_t k = 0; k < mine.size(); ++k) {
    std::uint64_t& address = weight_addresses_[k];
    const int owner = mine[k].owner, from = tag(owner, kWeights);
    if (!is_here(owner)) {
      const int peer = process_of_[at(owner)];
      const std::span<std::byte> to = std::as_writable_bytes(mine[k].values);
      if (group_.can_read(peer)) {
        requests.addresses.push_back(processes.post_receive(&address, sizeof address, peer, from));
      } else {
        post_receive_in_parts(processes, to.data(), to.size(), peer, from, requests.floats);
      }
      continue;
    }
    const std::span<const float> values = member(owner).weights[k].values;
    const std::span<const std::byte> bytes = std::as_bytes(values);
    address = address_of(values.data());
    for (const int peer : processes_) {
      if (peer == rank_) continue;
      if (group_.can_read(peer)) {
        requests.sends.push_back(processes.post_send(&address, sizeof address, peer, from));
      } else {
        post_send_in_parts(processes, bytes.data(), bytes.size(), peer, from, requests.sends);
      }
    }
  }
}

/// Their owner changes them only after its next reduce(), which waits for all replicas.
void RemoteReplicas::read_weights(std::vector<OwnedWeights>& mine) {
  for (std::size_t k = 0; k < mine.size(); ++k) {
    const int peer = process_of_[at(mine[k].owner)];
    if (peer != rank_ && group_.can_read(peer)) read(peer, weight_addresses_[k], mine[k].values);
  }
}

/// The first replica here fetches the weights of other processes for all replicas here.
void RemoteReplicas::share_weights(int replica, std::vector<OwnedWeights> weights) {
  std::vector<OwnedWeights>& mine = member(replica).weights = std::move(weights);
  meet();
  if (replica == first_here()) {
    WeightRequests requests;
    try {
      post_weights(mine, requests);
      wait_for(requests.addresses);
      read_weights(mine);
      wait_for(requests.floats);
      wait_for(requests.sends);
    } catch (...) {
      for (const Requests& receives : {requests.addresses, requests.floats}) {
        for (const Processes::Request request : receives) group_.processes().cancel(request);
      }
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
