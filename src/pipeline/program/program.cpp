#include "pipeline/program/program.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace pipetrain {

bool is_compute(Kind kind) {
  switch (kind) {
    case Kind::kForward:
    case Kind::kBackward:
    case Kind::kBackwardInput:
    case Kind::kBackwardWeight:
    case Kind::kRecompute:
      return true;
    default:
      return false;
  }
}

bool is_transfer(Kind kind) { return kind == Kind::kSend || kind == Kind::kReceive; }

bool adds_gradient(Kind kind) { return kind == Kind::kBackward || kind == Kind::kBackwardWeight; }

int Program::replica_of(int stage, int micro_batch) const {
  const int count = replicas(stage);
  if (count == 1) return 0;
  return (route.empty() ? micro_batch : route[static_cast<std::size_t>(micro_batch)]) % count;
}

int Program::replica_on(int stage, int device) const {
  const auto& devices = placement[static_cast<std::size_t>(stage)];
  const auto found = std::find(devices.begin(), devices.end(), device);
  return found == devices.end() ? -1 : static_cast<int>(found - devices.begin());
}

int Program::group_size(int stage) const {
  switch (rule) {
    case UpdateRule::kNone:
    case UpdateRule::kSync:
      return micro_batches;
    case UpdateRule::kStash:
    case UpdateRule::kVertical:
      return replicas(stage);
    case UpdateRule::kDoubleBuffer:
      return micro_batches_per_update;
  }
  return micro_batches;
}

int Program::updates(int stage) const {
  if (rule == UpdateRule::kNone) return 0;
  const int size = group_size(stage);
  return (micro_batches + size - 1) / size;
}

bool is_asynchronous(UpdateRule rule) {
  return sends_whole_mini_batches(rule) || rule == UpdateRule::kDoubleBuffer;
}

bool sends_whole_mini_batches(UpdateRule rule) {
  return rule == UpdateRule::kStash || rule == UpdateRule::kVertical;
}

int turns_of_replicas(const std::vector<int>& replicas) {
  constexpr std::int64_t kMost = 1 << 14;
  std::int64_t turns = 1;
  for (const int count : replicas) {
    const std::int64_t together = std::lcm(turns, std::int64_t{count});
    if (together <= kMost) turns = together;
  }
  return static_cast<int>(turns);
}

std::vector<Edge> chain_edges(int stages, std::int64_t bytes_per_micro_batch) {
  std::vector<Edge> edges;
  for (int s = 0; s + 1 < stages; ++s) {
    edges.push_back({s, s + 1, bytes_per_micro_batch, /*gradient=*/false});
    edges.push_back({s + 1, s, bytes_per_micro_batch, /*gradient=*/true});
  }
  return edges;
}

namespace {

std::string transfer_text(const Program& program, const Instruction& instruction) {
  const bool send = instruction.kind == Kind::kSend;
  const auto index = static_cast<std::size_t>(instruction.transfer);
  if (instruction.transfer < 0 || index >= program.transfers.size()) {
    return fmt::format("{}{}?{}(transfer {})", instruction.stage, send ? 'S' : 'R',
                       instruction.micro_batch, instruction.transfer);
  }
  const Transfer& transfer = program.transfers[index];
  return fmt::format("{}{}{}{}{}{}", instruction.stage, send ? 'S' : 'R',
                     transfer.gradient ? 'B' : 'F', instruction.micro_batch, send ? '>' : '<',
                     send ? transfer.to_stage : transfer.from_stage);
}

}  // namespace

std::string to_text(const Program& program, const Instruction& instruction) {
  const auto plain = [&](char letter) {
    if (instruction.micro_batch < 0) return fmt::format("{}{}", instruction.stage, letter);
    return fmt::format("{}{}{}", instruction.stage, letter, instruction.micro_batch);
  };
  switch (instruction.kind) {
    case Kind::kForward:
      return plain('F');
    case Kind::kBackward:
      return plain('B');
    case Kind::kBackwardInput:
      return plain('I');
    case Kind::kBackwardWeight:
      return plain('W');
    case Kind::kRecompute:
      return plain('R');
    case Kind::kUpdate:
      return plain('U');
    case Kind::kReduce:
      return plain('A');
    case Kind::kGradientSync:
      return "G";
    case Kind::kSend:
    case Kind::kReceive:
      return transfer_text(program, instruction);
  }
  return "?";
}

std::string to_text(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::kNone:
      return "none";
    case UpdateRule::kSync:
      return "sync";
    case UpdateRule::kStash:
      return "stash";
    case UpdateRule::kVertical:
      return "vertical";
    case UpdateRule::kDoubleBuffer:
      return "double-buffer";
  }
  return "?";
}

}  // namespace pipetrain
