// A link between stages of different processes, by messages (message_thread.h) into buffers of the
// receiver. Each side has a channel: the sender's entry is released when the message has left, the
// receiver's is published when the message has arrived.
#pragma once

#include <vector>

#include "pipeline/transport/channel.h"
#include "pipeline/transport/link.h"
#include "pipeline/transport/message_thread.h"
#include "pipeline/transport/receive_buffers.h"

namespace pipetrain {

class RemoteLink final : public Link {
 public:
  RemoteLink(int number, const LinkEdge& edge, std::vector<int> process_of_device,
             MessageThread& messages)
      : number_(number),
        edge_(edge),
        process_of_device_(std::move(process_of_device)),
        messages_(messages) {}

  void allocate(const LinkEnd& receiver) override;
  void start_round(LinkRound round) override;
  void abort() override { channel_.abort(); }
  void send(LinkEnd& sender, int micro_batch, const std::byte* base,
            const StreamPoint* written) override;
  void take(LinkEnd& sender, int micro_batch) override;
  bool is_released(int micro_batch) override { return channel_.is_released(micro_batch); }
  double receive(LinkEnd& receiver, int micro_batch) override;
  bool is_there(int micro_batch) override { return channel_.is_there(micro_batch); }
  void release(LinkEnd& receiver, int micro_batch, const StreamPoint* read) override;
  void begin_wait() override { messages_.begin_wait(); }
  void end_wait() override { messages_.end_wait(); }

 private:
  /// Where a micro-batch is received.
  struct Place {
    int inbox = -1;
    int slot = -1;
  };
  const int number_;
  const LinkEdge edge_;
  const std::vector<int> process_of_device_;
  MessageThread& messages_;
  Channel channel_;
  ReceiveBuffers buffers_;
  const Program* program_ = nullptr;
  std::vector<Place> place_of_;  // [micro-batches]
};

}  // namespace pipetrain
