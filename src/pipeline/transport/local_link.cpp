#include "pipeline/transport/local_link.h"

#include "device/device.h"

namespace pipetrain {

void LocalLink::send(LinkEnd&, int unit, const std::byte* base, const StreamPoint* written) {
  channel_.send(unit, base, written);
}

void LocalLink::take(LinkEnd& sender, int unit) {
  const StreamPoint* read = channel_.wait_released(unit);
  if (read) sender.stream()->wait(*read);
}

double LocalLink::receive(LinkEnd& receiver, int unit) {
  double there_at = 0;
  const StreamPoint* written = nullptr;
  const std::byte* base = channel_.receive(unit, &there_at, &written);
  receiver.read_sent(edge_, unit, base, written);
  return there_at;
}

void LocalLink::release(LinkEnd&, int unit, const StreamPoint* read) {
  channel_.release(unit, read);
}

}  // namespace pipetrain
