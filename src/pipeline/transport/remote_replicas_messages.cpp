// What replicas in several processes send each other of their gradients, and read.
#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/index.h"
#include "pipeline/transport/narrow_floats.h"
#include "pipeline/transport/remote_replicas.h"
#include "processes/message_parts.h"

namespace pipetrain {

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
  post_send(parcel.narrow.data(), std::span(parcel.narrow).size_bytes(), peer, tag, requests);
}

void RemoteReplicas::post_receive(Parcel& parcel, std::size_t floats, int peer, int tag,
                                  Requests& requests) {
  if (!as_bfloat16_)
    return post_receive(parcel.floats.data(), floats * sizeof(float), peer, tag, requests);
  parcel.narrow.resize(floats);
  post_receive(parcel.narrow.data(), std::span(parcel.narrow).size_bytes(), peer, tag, requests);
}

void RemoteReplicas::post_addresses(std::vector<std::uint64_t>& addresses, int peer, int tag,
                                    Requests& requests) {
  post_send(addresses.data(), std::span(addresses).size_bytes(), peer, tag, requests);
}

void RemoteReplicas::expect_addresses(std::vector<std::uint64_t>& addresses, std::size_t count,
                                      int peer, int tag, Requests& requests) {
  addresses.resize(count);
  post_receive(addresses.data(), std::span(addresses).size_bytes(), peer, tag, requests);
}

/// A process that has ended is usually reported by the launcher, which ends all others, or by
/// another process, which knows why. Only after a while is it reported here.
void RemoteReplicas::read(int peer, std::uint64_t from, std::span<float> to) {
  constexpr double kReportSeconds = 3;
  try {
    group_.read(peer, from, to.data(), to.size_bytes());
  } catch (const Error&) {
    for (const double begin = steady_seconds(); steady_seconds() - begin < kReportSeconds;) {
      group_.listen();
      group_.check_failure();
      if (is_aborted()) throw ChannelAborted();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    throw;
  }
}

/// Converts what is sent to bfloat16, if it is sent so.
void RemoteReplicas::pack(Parcel& parcel) const {
  if (as_bfloat16_) pack_bfloat16(parcel.floats, parcel.narrow);
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
    const int peer = process_of_[at(r)];
    if (group_.can_read(peer)) {
      expect_addresses(received.addresses, 1 + share.pieces.size(), peer, tag(r, kParts),
                       sum.parts);
      continue;
    }
    received.floats.resize(1 + share.packed_floats + share.other_floats);
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
  join_here(bucket);
  for (const int r : senders_) {
    for (std::size_t p = 0; is_here(r) && p < processes_.size(); ++p) {
      if (p != here_) send_part(bucket, r, p);
    }
  }
}

void RemoteReplicas::send_part(std::size_t bucket, int replica, std::size_t process) {
  Sum& sum = on_way_[bucket];
  Parcel& parcel = sum.packed_parts[at(replica) * processes_.size() + process];
  const Share& share = shares_[bucket][process];
  const int peer = processes_[process];
  const bool absent = is_absent(replica);
  if (group_.can_read(peer)) {
    std::vector<std::uint64_t>& addresses = parcel.addresses;
    addresses.assign(1, absent ? 0 : 1);
    for (const Piece& piece : share.pieces)
      addresses.push_back(address_of(part(replica, piece).data()));
    return post_addresses(addresses, peer, tag(replica, kParts), sum.part_sends);
  }
  std::vector<float>& packed = parcel.floats;
  packed.assign(1, absent ? 0.0F : 1.0F);
  for (const Piece& piece : share.pieces) {
    if (is_packed(piece))
      packed.insert(packed.end(), part(replica, piece).begin(), part(replica, piece).end());
  }
  pack(parcel);
  post_send(parcel, peer, tag(replica, kParts), sum.part_sends);
  for (const Piece& piece : share.pieces) {
    if (!is_packed(piece))
      post_send(part(replica, piece).data(), part(replica, piece).size_bytes(), peer,
                tag(replica, kParts), sum.part_sends);
  }
}

/// Sends our sums to another process. One that reads them answers when it is done. It gets the
/// message even if it needs no sums, since it also tells that process that its parts were read.
void RemoteReplicas::hand_on(std::size_t bucket, std::size_t process) {
  Sum& sum = on_way_[bucket];
  Parcel& parcel = sum.packed_sums[here_];
  const int peer = processes_[process], from = tag(first_here(), kSums);
  if (group_.can_read(peer)) {
    post_addresses(parcel.addresses, peer, from, sum.sum_sends);
    sum.readers.push_back(
        group_.processes().post_receive(nullptr, 0, peer, tag(first_of(process), kTaken)));
    return;
  }
  if (!parcel.floats.empty()) post_send(parcel, peer, from, sum.sum_sends);
  for (const Piece& piece : shares_[bucket][here_].handed_on()) {
    const std::span<float> floats = part(first_here(), piece);
    if (!is_packed(piece)) post_send(floats.data(), floats.size_bytes(), peer, from, sum.sum_sends);
  }
}

/// Posts the receives of the sums of other processes.
void RemoteReplicas::expect_sums(std::size_t bucket) {
  Sum& sum = on_way_[bucket];
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    if (p == here_) continue;
    const int from = tag(first_of(p), kSums);
    if (const int peer = processes_[p]; group_.can_read(peer)) {
      expect_addresses(sum.packed_sums[p].addresses, 1 + shares_[bucket][p].handed_on_pieces, peer,
                       from, sum.sums);
      continue;
    }
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

/// Writes the sums of another process into the gradients of the first replica here.
void RemoteReplicas::take_sums(Sum& sum, std::size_t process, const Share& share) {
  Parcel& parcel = sum.packed_sums[process];
  if (const int peer = processes_[process]; group_.can_read(peer)) {
    for (std::size_t k = 0; k < share.handed_on_pieces; ++k)
      read(peer, parcel.addresses[1 + k], part(first_here(), share.pieces[k]));
    sum.readers.push_back(
        group_.processes().post_send(nullptr, 0, peer, tag(first_here(), kTaken)));
    return;
  }
  if (share.packed_floats > 0) unpack(parcel);
  const float* from = parcel.floats.data();
  for (const Piece& piece : share.handed_on()) {
    if (!is_packed(piece)) continue;
    std::copy_n(from, piece.count, part(first_here(), piece).begin());
    from += piece.count;
  }
}

}  // namespace pipetrain
