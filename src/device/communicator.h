// Devices that exchange data among themselves, each as one rank of a group: NCCL, behind the
// plugin. A rank need not know where the others are; an id that all of them were given brings them
// together, so that they may be threads of a process or processes of several machines.
//
//   rank 0:  begin_group  send a to 1  receive b from 1  end_group ─┐ both streams go on when both
//   rank 1:  begin_group  receive a from 0  send b to 0  end_group ─┘ groups have been reached
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

namespace pipetrain {

class Device;
class Stream;

/// What brings the ranks of one communicator together.
using CommunicatorId = std::array<char, 128>;

/// One rank of a communicator. All calls for one device come from one thread. Nothing waits:
/// exchanges are work of a stream, and what the host has to do for them is done when is_settled() says
/// so. Work between begin_group() and end_group() goes on together; groups of all communicators
/// must come in one order on all ranks.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual void begin_group() = 0;
  virtual void send(Stream& stream, const void* from, std::size_t bytes, int peer) = 0;
  virtual void receive(Stream& stream, void* to, std::size_t bytes, int peer) = 0;
  /// Replaces the values of every rank by their sum over all ranks, the same bits everywhere.
  virtual void all_reduce(Stream& stream, float* values, std::size_t count) = 0;
  virtual void end_group() = 0;
  /// Whether the host's part of the calls so far is over. Error (kDevice) when this rank or
  /// another one has failed.
  virtual bool is_settled() = 0;
  /// Gives everything up, so that streams that wait for other ranks go on. Nothing but the
  /// destructor may be called afterwards.
  virtual void abort() noexcept = 0;
};

/// What a communicator is for: values between stages, or sums over the replicas of one.
enum class CommunicatorUse { kEdges, kSums };

/// What makes communicators of devices.
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
