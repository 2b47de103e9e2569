#include "processes/letters.h"

#include <algorithm>
#include <utility>

#include "processes/message_parts.h"

namespace pipetrain {

Letters::Letters(ProcessGroup& group) : group_(group) {
  for (int rank = 0; rank < group.size(); ++rank) {
    const bool is_peer = rank != group.rank() && (group.leads() || rank == 0);
    if (is_peer) state_->peers.push_back({.rank = rank});
  }
  for (Peer& peer : state_->peers) expect(peer);
}

Letters::~Letters() {
  if (!is_closed()) group_.keep(state_);
}

/// Posts the receive of a letter's size.
void Letters::expect(Peer& peer) {
  peer.has_size = false;
  peer.incoming.requests = {group_.processes().post_receive(
      &peer.incoming.size, sizeof peer.incoming.size, peer.rank, ProcessGroup::kLettersTag)};
}

bool Letters::is_done(Message& message) { return are_done(group_.processes(), message.requests); }

void Letters::send(int peer, std::uint64_t size, std::string bytes) {
  Message& message = state_->outgoing.emplace_back();
  message.size = size;
  message.bytes = std::move(bytes);
  message.requests.push_back(group_.processes().post_send(&message.size, sizeof message.size, peer,
                                                          ProcessGroup::kLettersTag));
  post_send_in_parts(group_.processes(), reinterpret_cast<const std::byte*>(message.bytes.data()),
                     message.bytes.size(), peer, ProcessGroup::kLettersTag, message.requests,
                     Processes::kEagerBytes);
}

void Letters::post(int peer, std::string bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t size = bytes.size();
  send(peer, size, std::move(bytes));
}

/// Goes on with everything that is on its way.
void Letters::take_in() {
  state_->outgoing.remove_if([&](Message& message) { return is_done(message); });
  for (Peer& peer : state_->peers) {
    while (!peer.closed && is_done(peer.incoming)) {
      if (!peer.has_size) {
        if (peer.incoming.size == kEnd) {
          peer.closed = true;
          break;
        }
        peer.has_size = true;
        peer.incoming.bytes.resize(peer.incoming.size);
        post_receive_in_parts(group_.processes(),
                              reinterpret_cast<std::byte*>(peer.incoming.bytes.data()),
                              peer.incoming.bytes.size(), peer.rank, ProcessGroup::kLettersTag,
                              peer.incoming.requests, Processes::kEagerBytes);
        continue;
      }
      state_->arrived.push_back({peer.rank, std::move(peer.incoming.bytes)});
      expect(peer);
    }
  }
}

std::optional<Letter> Letters::next() {
  group_.check();
  const std::lock_guard lock(mutex_);
  take_in();
  if (state_->arrived.empty()) return {};
  Letter letter = std::move(state_->arrived.front());
  state_->arrived.pop_front();
  return letter;
}

bool Letters::is_closed() {
  const std::lock_guard lock(mutex_);
  return state_->outgoing.empty() && std::all_of(state_->peers.begin(), state_->peers.end(),
                                                 [](const Peer& peer) { return peer.closed; });
}

std::vector<Letter> Letters::close() {
  {
    const std::lock_guard lock(mutex_);
    for (const Peer& peer : state_->peers) send(peer.rank, kEnd, {});
  }
  std::vector<Letter> rest;
  PollPause pause;
  while (!is_closed()) {
    const std::size_t before = rest.size();
    while (std::optional<Letter> letter = next()) rest.push_back(*std::move(letter));
    if (rest.size() == before) pause.rest();
  }
  while (std::optional<Letter> letter = next()) rest.push_back(*std::move(letter));
  return rest;
}

}  // namespace pipetrain
