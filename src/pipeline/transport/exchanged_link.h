// A link by exchange (exchange.h) into buffers of the receiver: the sender's memory is free as soon
// as the data has left.
#pragma once

#include <vector>

#include "pipeline/transport/exchange.h"
#include "pipeline/transport/link.h"
#include "pipeline/transport/receive_buffers.h"

namespace pipetrain {

class ExchangedLink final : public Link {
 public:
  ExchangedLink(int number, const LinkEdge& edge, Exchange& exchange)
      : number_(number), edge_(edge), exchange_(exchange) {}

  void allocate(const LinkEnd& receiver) override;
  void start_round(LinkRound round) override;
  void send(LinkEnd& sender, int micro_batch, const std::byte* base,
            const StreamPoint* written) override;
  void send_nothing(LinkEnd& sender, int micro_batch) override;
  void take(LinkEnd& sender, int micro_batch) override;
  /// Streams wait for the data; threads only until the exchange is issued.
  bool is_released(int) override { return true; }
  void expect(LinkEnd& receiver, int micro_batch) override;
  double receive(LinkEnd& receiver, int micro_batch) override;
  bool is_there(int) override { return true; }
  void release(LinkEnd& receiver, int micro_batch, const StreamPoint* read) override;

 private:
  int operation_of(int micro_batch) const;
  ReceiveBuffer& buffer_of(const LinkEnd& receiver, int micro_batch);

  const int number_;
  const LinkEdge edge_;
  Exchange& exchange_;  // aborts itself
  ReceiveBuffers buffers_;
  int program_edge_ = -1;
  std::vector<int> slot_of_;  // [micro-batches]; -1: none is received here
};

}  // namespace pipetrain
