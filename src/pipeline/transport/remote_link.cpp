#include "pipeline/transport/remote_link.h"

#include <map>
#include <utility>

#include "base/index.h"

namespace pipetrain {

void RemoteLink::allocate(const LinkEnd& receiver) {
  buffers_.allocate(receiver, number_, edge_.slots);
}

/// Tells the thread that moves values what will come, in the order of the lists.
void RemoteLink::start_round(LinkRound round) {
  program_ = round.program;
  channel_.reset(program_->units);
  place_of_.assign(at(program_->units), {});
  std::map<int, MessageThread::Inbox> inboxes;  // by device
  for (const LinkRound::Receive& receive : round.receives) {
    const int device = receive.receiver->device();
    std::vector<ExchangedPiece> pieces =
        receive.receiver->received(number_, receive.unit, buffers_.at(device, receive.slot).data());
    if (pieces.empty()) continue;  // a unit of a shape that hands over nothing
    MessageThread::Inbox& inbox = inboxes[device];
    inbox.link = number_;
    inbox.channel = &channel_;
    inbox.held.resize(buffers_.slots(device));
    inbox.arrivals.push_back({receive.unit, process_of_device_[at(receive.from_device)],
                              receive.slot, std::move(pieces)});
    place_of_[at(receive.unit)] = {device, receive.slot};  // its inbox has no number yet
  }
  std::map<int, int> numbers;
  for (auto& [device, inbox] : inboxes) numbers[device] = messages_.add(std::move(inbox));
  for (Place& place : place_of_) {
    if (place.slot >= 0) place.inbox = numbers[place.inbox];
  }
}

void RemoteLink::send(LinkEnd& sender, int unit, const std::byte* base, const StreamPoint*) {
  messages_.send(number_, unit, process_of_device_[at(program_->device_of(edge_.to, unit))],
                 channel_, sender.sent(number_, unit, base));
}

void RemoteLink::take(LinkEnd&, int unit) { channel_.wait_released(unit); }

double RemoteLink::receive(LinkEnd& receiver, int unit) {
  double there_at = 0;
  channel_.receive(unit, &there_at);
  receiver.read_buffer(number_, unit,
                       buffers_.at(receiver.device(), place_of_[at(unit)].slot).data());
  return there_at;
}

void RemoteLink::release(LinkEnd&, int unit, const StreamPoint* read) {
  channel_.release(unit, read);
  const Place& place = place_of_[at(unit)];
  if (place.inbox >= 0) messages_.release(place.inbox, place.slot);
}

}  // namespace pipetrain
