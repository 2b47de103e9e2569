// Communication between devices, each one rank of a group: NCCL, behind the plugin. Ranks find each
// other through a shared id, so they may be threads of one process or processes on several
// machines.
//
//   rank 0:  begin_group  send a to 1  receive b from 1  end_group ─┐ both streams continue once
//   rank 1:  begin_group  receive a from 0  send b to 0  end_group ─┘ both have reached their group
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

namespace pipetrain {

class Device;
class Stream;

/// The id that the ranks of one communicator share.
using CommunicatorId = std::array<char, 128>;

/// One rank of a communicator. All calls for one device come from one thread. No call blocks:
/// exchanges are enqueued on a stream, and is_settled() says when the host's part is complete.
/// Calls between begin_group() and end_group() are issued together. All ranks must issue the groups
/// of all communicators in the same order.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual void begin_group() = 0;
  virtual void send(Stream& stream, const void* from, std::size_t bytes, int peer) = 0;
  virtual void receive(Stream& stream, void* to, std::size_t bytes, int peer) = 0;
  /// Replaces the values of every rank by their sum over all ranks, the same bits everywhere.
  virtual void all_reduce(Stream& stream, float* values, std::size_t count) = 0;
  virtual void end_group() = 0;
  /// Whether the host's part of all calls so far is complete. Error (kDevice) when this rank or
  /// another one has failed.
  virtual bool is_settled() = 0;
  /// Aborts, so that streams blocked on other ranks continue. Only the destructor may be called
  /// afterwards.
  virtual void abort() noexcept = 0;
};

/// What a communicator is for: values between stages, or sums over the replicas of one.
enum class CommunicatorUse { kEdges, kSums };

/// Creates communicators.
class Collectives {
 public:
  virtual ~Collectives() = default;
  /// The library and its version.
  virtual std::string name() const = 0;
  virtual CommunicatorId make_id() = 0;
  /// Joins as one of `ranks`; the communicator may be used when it has is_settled.
  virtual std::unique_ptr<Communicator> connect(Device& device, const CommunicatorId& id, int rank,
                                                int ranks, CommunicatorUse use) = 0;
};

}  // namespace pipetrain
