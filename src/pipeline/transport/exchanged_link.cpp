#include "pipeline/transport/exchanged_link.h"

#include "base/clock.h"
#include "base/error.h"

namespace pipetrain {

void ExchangedLink::allocate(const LinkEnd& receiver) {
  buffers_.allocate(receiver, number_, edge_.slots);
}

void ExchangedLink::start_round(LinkRound round) {
  program_edge_ = round.program_edge;
  slot_of_.assign(at(round.program->micro_batches), -1);
  for (const LinkRound::Receive& receive : round.receives)
    slot_of_[at(receive.micro_batch)] = receive.slot;
}

/// The exchange that moves a micro-batch's values.
int ExchangedLink::operation_of(int micro_batch) const {
  PT_CHECK(program_edge_ >= 0, kInternal, "the schedule moves nothing from stage {} to stage {}",
           edge_.from, edge_.to);
  return exchange_.operation_of(program_edge_, micro_batch);
}

ReceiveBuffer& ExchangedLink::buffer_of(const LinkEnd& receiver, int micro_batch) {
  return buffers_.at(receiver.device(), slot_of_[at(micro_batch)]);
}

void ExchangedLink::send(LinkEnd& sender, int micro_batch, const std::byte* base,
                         const StreamPoint* written) {
  exchange_.offer(operation_of(micro_batch), sender.device(),
                  sender.sent(number_, micro_batch, base), written);
}

/// The other end has announced a buffer, and exchanges with others come after this one.
void ExchangedLink::send_nothing(LinkEnd& sender, int micro_batch) {
  exchange_.offer(operation_of(micro_batch), sender.device(), {}, nullptr);
}

void ExchangedLink::take(LinkEnd& sender, int micro_batch) {
  sender.stream()->wait(*exchange_.wait(operation_of(micro_batch), sender.device()));
}

/// Posted as early as the program allows, so that later exchanges of the device need not wait.
void ExchangedLink::expect(LinkEnd& receiver, int micro_batch) {
  ReceiveBuffer& buffer = buffer_of(receiver, micro_batch);
  exchange_.offer(operation_of(micro_batch), receiver.device(),
                  receiver.received(number_, micro_batch, buffer.data()), buffer.free.get());
}

double ExchangedLink::receive(LinkEnd& receiver, int micro_batch) {
  receiver.stream()->wait(*exchange_.wait(operation_of(micro_batch), receiver.device()));
  receiver.read_buffer(number_, micro_batch, buffer_of(receiver, micro_batch).data());
  return steady_seconds();
}

/// Frees the buffer for the next micro-batches.
void ExchangedLink::release(LinkEnd& receiver, int micro_batch, const StreamPoint*) {
  if (slot_of_[at(micro_batch)] < 0) return;
  receiver.stream()->record(*buffer_of(receiver, micro_batch).free);
}

}  // namespace pipetrain
