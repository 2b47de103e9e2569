// The interface for sending an edge's values from one stage to another: in shared memory or by
// copies (local_link.h), by an exchange between devices (exchanged_link.h), or by messages between
// processes (remote_link.h). The threads of the two devices use a link as follows:
//
//   sender:    send ………………………………………………………………… take → overwrites the micro-batch's memory
//   receiver:  expect …… receive → instructions that read the micro-batch …… release
//
// Micro-batches are addressed by number: the replicas of a stage send theirs in any order.
#pragma once

#include <cstddef>
#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

class Stream;
class StreamPoint;
struct ExchangedSpan;

/// What one stage sends to another for every micro-batch.
struct LinkEdge {
  int from = 0, to = 0;  // stages
  bool gradient = false;
  int slots = 0;  // receive buffers: the most micro-batches that a program holds at once
};

/// A device with a stage at one end of a link. Edges are numbered by Transport.
class LinkEnd {
 public:
  virtual ~LinkEnd() = default;
  virtual int device() const = 0;
  /// The stream on which its stages compute; null: in host memory.
  virtual Stream* stream() const = 0;
  /// The values of a micro-batch in the sending stage's memory.
  virtual std::vector<ExchangedSpan> sent(int edge, int micro_batch,
                                          const std::byte* base) const = 0;
  /// The size of a receive buffer for any micro-batch, and where the values of a micro-batch lie in
  /// it. received() waits until the shape of the micro-batch is known.
  virtual std::size_t buffer_bytes(int edge) const = 0;
  virtual std::vector<ExchangedSpan> received(int edge, int micro_batch,
                                              std::byte* buffer) const = 0;
  /// Passes a micro-batch's values to the receiving stage: in a receive buffer, or in the sender's
  /// memory, complete after the point `written` of its stream (null: now).
  virtual void read_buffer(int edge, int micro_batch, std::byte* buffer) = 0;
  virtual void read_sent(int edge, int micro_batch, const std::byte* base,
                         const StreamPoint* written) = 0;
};

/// The transfers of a link in one round.
struct LinkRound {
  const Program* program = nullptr;
  int program_edge = -1;  // index into Program::edges; -1: the program does not use it
  struct Receive {
    LinkEnd* receiver = nullptr;
    int micro_batch = 0;
    int slot = 0;  // receive buffer
    int from_device = 0;
  };
  /// Of this process, those of a device in the order of its list.
  std::vector<Receive> receives;
};

class Link {
 public:
  virtual ~Link() = default;
  /// Allocates the receive buffers of a device, one per slot of the edge.
  virtual void allocate(const LinkEnd& /*receiver*/) {}
  /// Resets the link after a round, aborted or not.
  virtual void start_round(LinkRound round) = 0;
  /// Wakes all waiting threads with ChannelAborted, now and later, until start_round().
  virtual void abort() {}

  /// Publishes a micro-batch's values. `base`: memory that the sending stage's kernels wrote;
  /// `written`: from which point of its stream on they are there; null: now.
  virtual void send(LinkEnd& sender, int micro_batch, const std::byte* base,
                    const StreamPoint* written) = 0;
  /// Instead of send() for a micro-batch of a shape that transfers nothing, at its send
  /// instruction.
  virtual void send_nothing(LinkEnd& /*sender*/, int /*micro-batch*/) {}
  /// Waits until a micro-batch's memory may be overwritten by what the sender does next. Throws
  /// ChannelAborted.
  virtual void take(LinkEnd& sender, int micro_batch) = 0;
  /// Whether take() would return at once.
  virtual bool is_released(int micro_batch) = 0;

  /// Called when a device begins to wait for this link, and when it no longer does.
  virtual void begin_wait() {}
  virtual void end_wait() {}

  /// Announces a free buffer for a micro-batch; called at its receive instruction.
  virtual void expect(LinkEnd& /*receiver*/, int /*micro-batch*/) {}
  /// Waits for a micro-batch and passes it to the receiving stage. Returns its arrival time
  /// (steady_seconds). Throws ChannelAborted.
  virtual double receive(LinkEnd& receiver, int micro_batch) = 0;
  /// Whether receive() would return at once.
  virtual bool is_there(int micro_batch) = 0;
  /// Says that a micro-batch has been read for the last time: `read`, at which point of the
  /// receiver's stream; null: now.
  virtual void release(LinkEnd& receiver, int micro_batch, const StreamPoint* read) = 0;
};

}  // namespace pipetrain
