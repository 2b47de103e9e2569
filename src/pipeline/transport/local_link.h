// A link between stages of one process: the sender publishes the address of its values, and the
// receiver reads or copies them.
#pragma once

#include "pipeline/transport/channel.h"
#include "pipeline/transport/link.h"

namespace pipetrain {

class LocalLink final : public Link {
 public:
  /// With a latency the link is emulated.
  LocalLink(int edge, double latency_seconds) : edge_(edge), channel_(latency_seconds) {}

  void start_round(LinkRound round) override { channel_.reset(round.program->micro_batches); }
  void abort() override { channel_.abort(); }
  void send(LinkEnd& sender, int micro_batch, const std::byte* base,
            const StreamPoint* written) override;
  void take(LinkEnd& sender, int micro_batch) override;
  bool is_released(int micro_batch) override { return channel_.is_released(micro_batch); }
  double receive(LinkEnd& receiver, int micro_batch) override;
  bool is_there(int micro_batch) override { return channel_.is_there(micro_batch); }
  void release(LinkEnd& receiver, int micro_batch, const StreamPoint* read) override;

 private:
  const int edge_;
  Channel channel_;
};

}  // namespace pipetrain
