// Rules on data between stages: every transfer exists, in its place, in order, and none deadlocks.
#include <map>
#include <tuple>
#include <vector>

#include "pipeline/program/checker.h"
#include "pipeline/program/progress.h"

namespace pipetrain {

void Checker::check_transfers() const {
  if (!program_.lowered) return;
  check_transfer_records();
  std::vector<Place> sends(program_.transfers.size()), receives(program_.transfers.size());
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    if (!is_transfer(instruction.kind)) return;
    const Transfer& transfer = program_.transfers[at(instruction.transfer)];
    const bool send = instruction.kind == Kind::kSend;
    if (instruction.micro_batch != transfer.micro_batch ||
        instruction.stage != (send ? transfer.from_stage : transfer.to_stage)) {
      fail(CheckRule::kTransfers, "{} does not match its transfer of micro-batch {} from {} to {}",
           where(d, i), transfer.micro_batch, transfer.from_stage, transfer.to_stage);
    }
    Place& place = (send ? sends : receives)[at(instruction.transfer)];
    if (place.exists()) {
      fail(CheckRule::kTransfers, "{} occurs twice, first as {}", where(d, i), where(place));
    }
    place = {static_cast<int>(d), static_cast<int>(i)};
  });
  for (std::size_t t = 0; t < sends.size(); ++t) {
    if (sends[t].exists() && receives[t].exists()) continue;
    const Transfer& transfer = program_.transfers[t];
    const bool no_send = !sends[t].exists();
    fail(CheckRule::kTransfers, "device {} has no {} for micro-batch {} from stage {} to stage {}",
         no_send ? transfer.from_device : transfer.to_device, no_send ? "send" : "receive",
         transfer.micro_batch, transfer.from_stage, transfer.to_stage);
  }
}

void Checker::check_transfer_records() const {
  std::vector<bool> seen(program_.edges.size() * at(program_.micro_batches), false);
  const auto key = [&](int edge, int micro_batch) {
    return at(edge) * at(program_.micro_batches) + at(micro_batch);
  };
  for (std::size_t t = 0; t < program_.transfers.size(); ++t) {
    const Transfer& transfer = program_.transfers[t];
    bool fits = inside(transfer.edge, program_.edges.size()) &&
                inside(transfer.micro_batch, at(program_.micro_batches));
    if (fits) {
      const Edge& edge = program_.edges[at(transfer.edge)];
      fits = transfer.from_stage == edge.from_stage && transfer.to_stage == edge.to_stage &&
             transfer.gradient == edge.gradient &&
             transfer.from_device == program_.device_of(edge.from_stage, transfer.micro_batch) &&
             transfer.to_device == program_.device_of(edge.to_stage, transfer.micro_batch) &&
             transfer.from_device != transfer.to_device &&
             !seen[key(transfer.edge, transfer.micro_batch)];
    }
    if (!fits) {
      fail(CheckRule::kTransfers,
           "transfer {} (micro-batch {} from stage {} to stage {}) matches no edge", t,
           transfer.micro_batch, transfer.from_stage, transfer.to_stage);
    }
    seen[key(transfer.edge, transfer.micro_batch)] = true;
  }
  for (std::size_t e = 0; e < program_.edges.size(); ++e) {
    const Edge& edge = program_.edges[e];
    for (int micro_batch = 0; micro_batch < program_.micro_batches; ++micro_batch) {
      if (!crosses_devices(edge, micro_batch)) continue;
      if (!seen[key(static_cast<int>(e), micro_batch)]) {
        fail(CheckRule::kTransfers, "micro-batch {} is never sent from stage {} to stage {}",
             micro_batch, edge.from_stage, edge.to_stage);
      }
    }
  }
}

bool Checker::crosses_devices(const Edge& edge, int micro_batch) const {
  return program_.device_of(edge.from_stage, micro_batch) !=
         program_.device_of(edge.to_stage, micro_batch);
}

void Checker::check_transfer_places(const ComputeTable& table) const {
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    if (!is_transfer(instruction.kind)) return;
    const Edge& edge = program_.edges[at(program_.transfers[at(instruction.transfer)].edge)];
    if (instruction.kind == Kind::kSend) {
      const Place producer = table.producer(edge, instruction.micro_batch);
      if (at(producer.index) > i) {
        fail(CheckRule::kTransferPlace, "{} comes before {}, which produces its data", where(d, i),
             where(producer));
      }
      return;
    }
    const Place consumer = table.consumer(edge, instruction.micro_batch);
    if (at(consumer.index) < i) {
      fail(CheckRule::kTransferPlace, "{} comes after {}, which reads its data", where(d, i),
           where(consumer));
    }
  });
  for (const Edge& edge : program_.edges) {
    for (int micro_batch = 0; micro_batch < program_.micro_batches; ++micro_batch) {
      if (crosses_devices(edge, micro_batch)) continue;
      const Place producer = table.producer(edge, micro_batch);
      const Place consumer = table.consumer(edge, micro_batch);
      if (producer.index > consumer.index) {
        fail(CheckRule::kTransferPlace, "{} comes after {}, which reads its data", where(producer),
             where(consumer));
      }
    }
  }
}

void Checker::check_channels() const {
  using Channel = std::tuple<int, int, bool>;
  std::map<Channel, std::vector<Place>> sends, receives;
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    if (!is_transfer(instruction.kind)) return;
    const Transfer& transfer = program_.transfers[at(instruction.transfer)];
    auto& ends = instruction.kind == Kind::kSend ? sends : receives;
    ends[{transfer.from_device, transfer.to_device, transfer.gradient}].push_back(
        {static_cast<int>(d), static_cast<int>(i)});
  });
  const auto transfer_at = [&](const Place& place) {
    return program_.device[at(place.device)][at(place.index)].transfer;
  };
  for (const auto& [channel, sent] : sends) {
    const std::vector<Place>& received = receives[channel];
    for (std::size_t n = 0; n < sent.size(); ++n) {
      if (transfer_at(sent[n]) == transfer_at(received[n])) continue;
      fail(CheckRule::kChannelOrder, "{} and {} are both number {} on their channel",
           where(sent[n]), where(received[n]), n);
    }
  }
}

void Checker::check_progress() const {
  const std::string one_lane = find_deadlock(program_, Lanes::kOne);
  if (one_lane.empty()) return;
  if (!program_.lowered) fail(CheckRule::kLanes, "deadlock: {}", one_lane);
  const std::string three_lanes = find_deadlock(program_, Lanes::kThree);
  if (!three_lanes.empty()) fail(CheckRule::kLanes, "deadlock: {}", three_lanes);
  fail(CheckRule::kRendezvous, "deadlock where sends wait for their receives: {}", one_lane);
}

}  // namespace pipetrain
