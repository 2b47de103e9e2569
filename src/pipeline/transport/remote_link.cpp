#include "pipeline/transport/remote_link.h"

#include <map>
#include <utility>

#include "base/error.h"
#include "base/index.h"

namespace pipetrain {

void RemoteLink::allocate(const LinkEnd& receiver) {
  buffers_.allocate(receiver, number_, edge_.slots);
}

/// Registers the expected messages, in the order of the lists.
void RemoteLink::start_round(LinkRound round) {
  program_ = round.program;
  channel_.reset(program_->micro_batches);
  place_of_.assign(at(program_->micro_batches), {});
  std::map<int, MessageThread::Inbox> inboxes;  // by device
  for (const LinkRound::Receive& receive : round.receives) {
    const int device = receive.receiver->device();
    std::vector<ExchangedSpan> spans = receive.receiver->received(
        number_, receive.micro_batch, buffers_.at(device, receive.slot).data());
    if (spans.empty()) continue;  // a micro-batch of a shape that transfers nothing
    MessageThread::Inbox& inbox = inboxes[device];
    inbox.link = number_;
    inbox.channel = &channel_;
    inbox.held.resize(buffers_.slots(device));
    inbox.arrivals.push_back({receive.micro_batch, process_of_device_[at(receive.from_device)],
                              receive.slot, std::move(spans)});
    place_of_[at(receive.micro_batch)] = {device, receive.slot};  // its inbox is numbered later
  }
  std::map<int, int> numbers;
  for (auto& [device, inbox] : inboxes) numbers[device] = messages_.add(std::move(inbox));
  for (Place& place : place_of_) {
    if (place.slot >= 0) place.inbox = numbers[place.inbox];
  }
}

void RemoteLink::send(LinkEnd& sender, int micro_batch, const std::byte* base, const StreamPoint*) {
  messages_.send(number_, micro_batch,
                 process_of_device_[at(program_->device_of(edge_.to, micro_batch))], channel_,
                 sender.sent(number_, micro_batch, base));
}

void RemoteLink::take(LinkEnd&, int micro_batch) { channel_.wait_released(micro_batch); }

double RemoteLink::receive(LinkEnd& receiver, int micro_batch) {
  PT_CHECK(place_of_[at(micro_batch)].slot >= 0, kInternal,
           "micro-batch {} is received without a message for it", micro_batch);
  double there_at = 0;
  channel_.receive(micro_batch, &there_at);
  receiver.read_buffer(number_, micro_batch,
                       buffers_.at(receiver.device(), place_of_[at(micro_batch)].slot).data());
  return there_at;
}

void RemoteLink::release(LinkEnd&, int micro_batch, const StreamPoint* read) {
  channel_.release(micro_batch, read);
  const Place& place = place_of_[at(micro_batch)];
  if (place.inbox >= 0) messages_.release(place.inbox, place.slot);
}

}  // namespace pipetrain
