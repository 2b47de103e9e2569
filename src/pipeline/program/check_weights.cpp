// Rules on weight versions: which one each micro-batch reads, and whether its copy still exists
// then.
#include <algorithm>
#include <vector>

#include "pipeline/program/checker.h"

namespace pipetrain {

std::vector<int> Checker::versions_on_first_stage(const ReplicaRows& rows) const {
  std::vector<int> versions(at(program_.micro_batches), 0);
  std::vector<int> latest(at(program_.replicas(0)), 0);
  for_each([&](std::size_t d, std::size_t, const Instruction& instruction) {
    if (instruction.stage != 0) return;
    const int replica = rows.on(0, static_cast<int>(d)) - rows.row(0, 0);
    if (instruction.kind == Kind::kUpdate) ++latest[at(replica)];
    if (instruction.kind == Kind::kForward)
      versions[at(instruction.micro_batch)] = latest[at(replica)];
  });
  return versions;
}

void Checker::check_versions(const ReplicaRows& rows) const {
  const bool asynchronous = is_asynchronous(program_.rule);
  const std::vector<int> vertical =
      program_.rule == UpdateRule::kVertical ? versions_on_first_stage(rows) : std::vector<int>();
  // The contents of a replica's copies: version v is in copy v mod copies until overwritten.
  std::vector<std::vector<int>> held(at(rows.count()));
  std::vector<int> latest(at(rows.count()), 0);
  for (int row = 0; row < rows.count(); ++row) {
    const int stage = rows.stage_of(row);
    // At most one copy per version is needed, which keeps the table small.
    const int copies =
        std::min(program_.versions_per_stage[at(stage)], program_.updates(stage) + 1);
    held[at(row)].assign(at(copies), -1);
    held[at(row)][0] = 0;
  }
  std::vector<int> read(asynchronous ? micro_batch_keys() : 0, -1);
  // The version that all micro-batches of a group read, by the first of them.
  std::vector<std::vector<int>> group_version(at(program_.stages));
  for (int stage = 0; stage < program_.stages; ++stage) {
    group_version[at(stage)].assign(at(program_.updates(stage)), -1);
  }
  const auto must_read = [&](const Instruction& instruction, int newest) {
    switch (program_.rule) {
      case UpdateRule::kStash:
        return instruction.kind == Kind::kForward
                   ? newest
                   : read[micro_batch_key(instruction.stage, instruction.micro_batch)];
      case UpdateRule::kVertical:
        return vertical[at(instruction.micro_batch)];
      case UpdateRule::kDoubleBuffer:
        return std::max(0, instruction.micro_batch / program_.micro_batches_per_update - 1);
      default:
        return 0;
    }
  };
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    const auto require = [&](int version) {
      if (instruction.version == version) return;
      fail(CheckRule::kVersions, "{} has weight version {}, must be {}", where(d, i),
           instruction.version, version);
    };
    if (!is_compute(instruction.kind) && instruction.kind != Kind::kUpdate) return;
    const int stage = instruction.stage;
    const std::size_t row = at(rows.on(stage, static_cast<int>(d)));
    std::vector<int>& copies = held[row];
    if (instruction.kind == Kind::kUpdate) {
      require(++latest[row]);
      copies[at(instruction.version) % copies.size()] = instruction.version;
      return;
    }
    const int version = must_read(instruction, latest[row]);
    require(version);
    if (version > latest[row]) {
      fail(CheckRule::kVersions, "{} reads weight version {}, but the newest on device {} is {}",
           where(d, i), version, d, latest[row]);
    }
    const int kept = copies[at(version) % copies.size()];
    if (kept != version) {
      fail(CheckRule::kVersions,
           "{} reads weight version {}, which version {} has overwritten: stage {} has {} copies",
           where(d, i), version, kept, stage, copies.size());
    }
    if (!asynchronous) return;
    read[micro_batch_key(stage, instruction.micro_batch)] = version;
    int& shared =
        group_version[at(stage)][at(instruction.micro_batch / program_.group_size(stage))];
    if (shared >= 0 && shared != version) {
      fail(CheckRule::kVersions,
           "{} reads weight version {}, but other micro-batches of its update read version {}",
           where(d, i), version, shared);
    }
    shared = version;
  });
}

}  // namespace pipetrain
