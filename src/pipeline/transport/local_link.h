// A link between stages of one process that copies nothing, or lets the receiver copy: the sender
// publishes where its values lie.
#pragma once

#include "pipeline/transport/channel.h"
#include "pipeline/transport/link.h"

namespace pipetrain {

class LocalLink final : public Link {
 public:
  /// With a latency the link is rehearsed.
  LocalLink(int edge, double latency_seconds) : edge_(edge), channel_(latency_seconds) {}

  void start_round(LinkRound round) override { channel_.reset(round.program->units); }
  void abort() override { channel_.abort(); }
  void send(LinkEnd& sender, int unit, const std::byte* base, const StreamPoint* written) override;
  void take(LinkEnd& sender, int unit) override;
  bool is_released(int unit) override { return channel_.is_released(unit); }
  double receive(LinkEnd& receiver, int unit) override;
  bool is_there(int unit) override { return channel_.is_there(unit); }
  void release(LinkEnd& receiver, int unit, const StreamPoint* read) override;

 private:
  const int edge_;
  Channel channel_;
};

}  // namespace pipetrain
