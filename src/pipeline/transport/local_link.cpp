#include "pipeline/transport/local_link.h"

#include "device/device.h"

namespace pipetrain {

void LocalLink::send(LinkEnd&, int micro_batch, const std::byte* base, const StreamPoint* written) {
  channel_.send(micro_batch, base, written);
}

void LocalLink::take(LinkEnd& sender, int micro_batch) {
  const StreamPoint* read = channel_.wait_released(micro_batch);
  if (read) sender.stream()->wait(*read);
}

double LocalLink::receive(LinkEnd& receiver, int micro_batch) {
  double there_at = 0;
  const StreamPoint* written = nullptr;
  const std::byte* base = channel_.receive(micro_batch, &there_at, &written);
  receiver.read_sent(edge_, micro_batch, base, written);
  return there_at;
}

void LocalLink::release(LinkEnd&, int micro_batch, const StreamPoint* read) {
  channel_.release(micro_batch, read);
}

}  // namespace pipetrain
