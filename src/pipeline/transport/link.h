// How one stage hands an edge's values to another, whatever carries them: in the same memory or by
// copies (local_link.h), by an exchange between devices (exchanged_link.h), by messages between
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

/// What one stage hands to another, for every micro-batch.
struct LinkEdge {
  int from = 0, to = 0;  // stages
  bool gradient = false;
  int slots = 0;  // receive buffers: micro-batches that a program has received at once, at most
};

/// A device of the program with a stage at one end of a link. Edges have the numbers that Transport
/// gives them.
class LinkEnd {
 public:
  virtual ~LinkEnd() = default;
  virtual int device() const = 0;
  /// Where its stages compute; null: in host memory.
  virtual Stream* stream() const = 0;
  /// The values of a micro-batch in the memory that the sending stage's kernels wrote.
  virtual std::vector<ExchangedSpan> sent(int edge, int micro_batch,
                                          const std::byte* base) const = 0;
  /// What a receive buffer needs to hold the values of any micro-batch, and where they lie in one.
  /// Waits until it is known of which shape the micro-batch is.
  virtual std::size_t buffer_bytes(int edge) const = 0;
  virtual std::vector<ExchangedSpan> received(int edge, int micro_batch,
                                              std::byte* buffer) const = 0;
  /// Makes the receiving stage read a micro-batch's values: in a receive buffer, or in the sender's
  /// memory, where they are from the point `written` of its stream on (null: now).
  virtual void read_buffer(int edge, int micro_batch, std::byte* buffer) = 0;
  virtual void read_sent(int edge, int micro_batch, const std::byte* base,
                         const StreamPoint* written) = 0;
};

/// What a link carries in one round.
struct LinkRound {
  const Program* program = nullptr;
  int program_edge = -1;  // index into Program::edges; -1: the program hands nothing over it
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
  /// Makes room for what a device receives, as many micro-batches at once as the edge has slots.
  virtual void allocate(const LinkEnd& /*receiver*/) {}
  /// Forgets the last round, aborted or not.
  virtual void start_round(LinkRound round) = 0;
  /// Wakes everybody with ChannelAborted, now and later, until start_round().
  virtual void abort() {}

  /// Publishes a micro-batch's values. `base`: memory that the sending stage's kernels wrote;
  /// `written`: from which point of its stream on they are there; null: now.
  virtual void send(LinkEnd& sender, int micro_batch, const std::byte* base,
                    const StreamPoint* written) = 0;
  /// Waits until a micro-batch's memory may be overwritten by what the sender does next. Throws
  /// ChannelAborted.
  virtual void take(LinkEnd& sender, int micro_batch) = 0;
  /// Whether take() would not wait for another thread.
  virtual bool is_released(int micro_batch) = 0;

  /// Says that the receiver has room for a micro-batch; at its receive instruction.
  virtual void expect(LinkEnd& /*receiver*/, int /*micro-batch*/) {}
  /// Waits for a micro-batch and makes the receiving stage read it. Returns the time
  /// (steady_seconds) since which it is there. Throws ChannelAborted.
  virtual double receive(LinkEnd& receiver, int micro_batch) = 0;
  /// Whether receive() would not wait for another thread.
  virtual bool is_there(int micro_batch) = 0;
  /// Says that a micro-batch has been read for the last time: `read`, at which point of the
  /// receiver's stream; null: now.
  virtual void release(LinkEnd& receiver, int micro_batch, const StreamPoint* read) = 0;
};

}  // namespace pipetrain
