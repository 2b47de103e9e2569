// How groups of sends, receives and sums of recorded devices meet, and what is checked of them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "support/recorded_devices.h"
#include "support/recorded_streams.h"

namespace pipetrain::test {
namespace {

/// Finds the ends that meet in groups that have been reached: of each rank the first part that is
/// not over (as `done` says), of each kind to each peer. Calls `meet` with the ends of each.
template <class Done, class Meet>
void find_meetings(const ExchangeGroups& reached, const Done& done, const Meet& meet) {
  using Key = std::tuple<const Meeting*, int, int, int>;
  std::map<Key, ExchangePart*> first;
  for (const auto& group : reached) {
    for (ExchangePart& part : group->parts) {
      if (done(part)) continue;
      first.try_emplace(Key(part.meeting.get(), static_cast<int>(part.kind), part.rank, part.peer),
                        &part);
    }
  }
  for (const auto& [key, part] : first) {
    const auto& [meeting, kind, rank, peer] = key;
    if (part->kind == ExchangePart::Kind::kSend) {
      const auto other =
          first.find(Key(meeting, static_cast<int>(ExchangePart::Kind::kReceive), peer, rank));
      if (other != first.end()) meet(std::vector<ExchangePart*>{part, other->second});
    } else if (part->kind == ExchangePart::Kind::kSum && rank == 0) {
      std::vector<ExchangePart*> all;
      for (int r = 0; r < meeting->ranks; ++r) {
        const auto other = first.find(Key(meeting, kind, r, -1));
        if (other != first.end()) all.push_back(other->second);
      }
      if (static_cast<int>(all.size()) == meeting->ranks) meet(all);
    }
  }
}

}  // namespace

void RecordedStreams::put(std::size_t stream, const std::shared_ptr<ExchangeGroup>& group) {
  {
    const std::lock_guard lock(mutex_);
    join_clocks(queues_[stream].clock, known_);
    const std::uint64_t number = next(stream);
    for (const ExchangePart& part : group->parts) {
      const bool writes = part.kind != ExchangePart::Kind::kSend;
      note(stream, number, {part.data, part.bytes, writes}, /*kernel=*/true,
           part.kind == ExchangePart::Kind::kSum    ? "a sum over replicas"
           : part.kind == ExchangePart::Kind::kSend ? "a send"
                                                    : "a receive");
    }
    queues_[stream].work.push_back({[] {}, nullptr, group, host_time_});
    issued_[group->device].push_back(group);
    ++groups_;
    stuck_ = false;
  }
  changed_.notify_all();
}

void RecordedStreams::called(const Device* device) {
  const std::lock_guard lock(mutex_);
  const auto found = callers_.try_emplace(device, std::this_thread::get_id()).first;
  if (found->second != std::this_thread::get_id())
    complain(device->name() + " is given exchanges by two threads");
}

std::shared_ptr<Meeting> RecordedStreams::meet(const CommunicatorId& id, int ranks) {
  const std::lock_guard lock(mutex_);
  auto& meeting = meetings_[std::string(id.data(), 16)];
  if (!meeting) meeting = std::make_shared<Meeting>(Meeting{ranks, 0, false});
  ++meeting->joined;
  if (meeting->ranks != ranks) complain("ranks join a communicator of different sizes");
  return meeting;
}

bool RecordedStreams::all_joined(const Meeting& meeting) {
  const std::lock_guard lock(mutex_);
  return meeting.aborted || meeting.joined >= meeting.ranks;
}

void RecordedStreams::abort(Meeting& meeting) {
  {
    const std::lock_guard lock(mutex_);
    meeting.aborted = true;
    exchanges_aborted_ = true;
  }
  changed_.notify_all();
}

void RecordedStreams::check_turns() {
  const std::lock_guard lock(mutex_);
  if (exchanges_aborted_) return;
  std::map<const Device*, std::size_t> next;
  for (bool moved = true; moved;) {
    moved = false;
    ExchangeGroups turns;
    for (auto& [device, groups] : issued_) {
      std::size_t& g = next[device];
      while (g < groups.size() &&
             std::all_of(groups[g]->parts.begin(), groups[g]->parts.end(),
                         [](const ExchangePart& part) { return part.could_be_done; }))
        ++g;
      if (g < groups.size()) turns.push_back(groups[g]);
    }
    find_meetings(
        turns, [](const ExchangePart& part) { return part.could_be_done; },
        [&](const std::vector<ExchangePart*>& ends) {
          for (ExchangePart* end : ends) end->could_be_done = true;
          moved = true;
        });
  }
  for (const auto& [device, groups] : issued_) {
    if (next[device] < groups.size())
      complain(device->name() + " issues its groups in an order in which they wait for others");
  }
}

void RecordedStreams::exchange() {
  ExchangeGroups reached;
  for (const Queue& queue : queues_) {
    if (queue.work.empty() || !queue.work.front().group) continue;
    reached.push_back(queue.work.front().group);
    for (ExchangePart& part : reached.back()->parts)
      part.reached = start_of(queue, queue.work.front());
  }
  const auto over = [](const ExchangePart& part) { return part.done || part.meeting->aborted; };
  bool moved = true;
  while (moved) {
    moved = false;
    find_meetings(reached, over, [&](const std::vector<ExchangePart*>& ends) {
      for (const ExchangePart* end : ends) {
        if (end->bytes != ends[0]->bytes)
          complain(fmt::format("{} bytes are exchanged for {}", ends[0]->bytes, end->bytes));
      }
      if (ends[0]->kind == ExchangePart::Kind::kSend) {
        std::memcpy(ends[1]->data, ends[0]->data, std::min(ends[0]->bytes, ends[1]->bytes));
      } else {
        add_up(ends);
      }
      double both = 0;
      for (const ExchangePart* end : ends) both = std::max(both, end->reached);
      for (ExchangePart* end : ends) {
        end->done = true;
        end->over = both + recorded_seconds(end->bytes);
      }
      exchanged_ += ends.size();
      moved = true;
    });
  }
}

void RecordedStreams::add_up(const std::vector<ExchangePart*>& ends) {
  const auto values = [&](std::size_t r) { return reinterpret_cast<float*>(ends[r]->data); };
  for (std::size_t i = 0; i < ends[0]->bytes / sizeof(float); ++i) {
    float sum = values(0)[i];
    for (std::size_t r = 1; r < ends.size(); ++r) sum += values(r)[i];
    for (std::size_t r = 0; r < ends.size(); ++r) values(r)[i] = sum;
  }
}

}  // namespace pipetrain::test
