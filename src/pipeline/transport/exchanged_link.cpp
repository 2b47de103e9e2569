#include "pipeline/transport/exchanged_link.h"

#include "base/clock.h"
#include "base/error.h"

namespace pipetrain {

void ExchangedLink::allocate(const LinkEnd& receiver) {
  buffers_.allocate(receiver, number_, edge_.slots);
}

void ExchangedLink::start_round(LinkRound round) {
  program_edge_ = round.program_edge;
  slot_of_.assign(at(round.program->units), -1);
  for (const LinkRound::Receive& receive : round.receives)
    slot_of_[at(receive.unit)] = receive.slot;
}

/// The exchange that moves a unit's values.
int ExchangedLink::operation_of(int unit) const {
  PT_CHECK(program_edge_ >= 0, kInternal, "the schedule moves nothing from stage {} to stage {}",
           edge_.from, edge_.to);
  return exchange_.operation_of(program_edge_, unit);
}

ReceiveBuffer& ExchangedLink::buffer_of(const LinkEnd& receiver, int unit) {
  return buffers_.at(receiver.device(), slot_of_[at(unit)]);
}

void ExchangedLink::send(LinkEnd& sender, int unit, const std::byte* base,
                         const StreamPoint* written) {
  exchange_.offer(operation_of(unit), sender.device(), sender.sent(number_, unit, base), written);
}

void ExchangedLink::take(LinkEnd& sender, int unit) {
  sender.stream()->wait(*exchange_.wait(operation_of(unit), sender.device()));
}

/// As early as the program has the receive, so that what the device exchanges later need not wait.
void ExchangedLink::expect(LinkEnd& receiver, int unit) {
  ReceiveBuffer& buffer = buffer_of(receiver, unit);
  exchange_.offer(operation_of(unit), receiver.device(),
                  receiver.received(number_, unit, buffer.data()), buffer.free.get());
}

double ExchangedLink::receive(LinkEnd& receiver, int unit) {
  receiver.stream()->wait(*exchange_.wait(operation_of(unit), receiver.device()));
  receiver.read_buffer(number_, unit, buffer_of(receiver, unit).data());
  return steady_seconds();
}

/// Lets the next units be received where this one was.
void ExchangedLink::release(LinkEnd& receiver, int unit, const StreamPoint*) {
  if (slot_of_[at(unit)] < 0) return;
  receiver.stream()->record(*buffer_of(receiver, unit).free);
}

}  // namespace pipetrain
