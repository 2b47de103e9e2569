#include "pipeline/transport/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/index.h"
#include "pipeline/transport/channel.h"
#include "processes/process_group.h"

namespace pipetrain {

struct Exchange::Rank {
  int number = 0;
  Device* device = nullptr;
  std::thread thread;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Communicator> edges;
  std::vector<std::unique_ptr<Communicator>> sums;        // as Exchange::sums_; null: not one of it
  std::vector<std::unique_ptr<StreamPoint>> begun, done;  // [groups]
  std::deque<Open> open;
  int rounds = 0;  // finished
  int epoch = 0;   // of its connections; 0: none
};

Exchange::Exchange(Collectives& collectives, std::vector<Device*> devices, std::vector<int> ranks,
                   const std::vector<std::vector<int>>& placement, double timeout_seconds,
                   std::function<void(std::exception_ptr)> failed, ProcessGroup* processes)
    : collectives_(collectives),
      devices_(std::move(devices)),
      rank_of_device_(std::move(ranks)),
      timeout_seconds_(timeout_seconds),
      failed_(std::move(failed)),
      processes_(processes) {
  const int count = *std::max_element(rank_of_device_.begin(), rank_of_device_.end()) + 1;
  for (int number = 0; number < count; ++number) {
    ranks_.push_back(std::make_unique<Rank>());
    ranks_.back()->number = number;
  }
  for (std::size_t d = 0; d < devices_.size(); ++d)
    ranks_[at(rank_of_device_[d])]->device = devices_[d];
  for (const auto& replicas : placement) {
    std::set<int> set;
    for (const int device : replicas) set.insert(rank_of_device_[at(device)]);
    const std::vector<int> sorted(set.begin(), set.end());
    const bool apart = sorted.size() > 1 && sorted.size() == replicas.size();
    if (apart && std::find(sums_.begin(), sums_.end(), sorted) == sums_.end())
      sums_.push_back(sorted);
  }
  sums_ids_.resize(sums_.size());
  for (auto& rank : ranks_) {
    rank->sums.resize(sums_.size());
    if (!rank->device) continue;
    rank->thread = std::thread([this, one = rank.get()] { work(*one); });
  }
}

Exchange::~Exchange() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& rank : ranks_) {
    if (rank->device) rank->thread.join();
  }
}

void Exchange::start_round(const Program& program, bool keep) {
  std::shared_ptr<const CommunicationPlan> plan;
  if (keep) plan = kept_[&program];
  if (!plan)
    plan = std::make_shared<CommunicationPlan>(plan_communication(program, rank_of_device_));
  if (keep) kept_[&program] = plan;
  std::vector<CommunicatorId> ids;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_ || epoch_ == 0) ids.resize(1 + sums_.size());
  }
  if (!processes_ || processes_->leads()) {
    for (CommunicatorId& id : ids) id = collectives_.make_id();
  }
  if (processes_ && !ids.empty()) {
    const std::string bytes =
        processes_->broadcast({ids.front().data(), ids.size() * sizeof(CommunicatorId)});
    bytes.copy(ids.front().data(), bytes.size());
  }
  {
    const std::lock_guard lock(mutex_);
    program_ = &program;
    plan_ = std::move(plan);
    parts_.assign(plan_->operations.size(), {});
    for (std::size_t o = 0; o < parts_.size(); ++o)
      parts_[o].resize(plan_->operations[o].devices.size());
    if (!ids.empty()) {
      ++epoch_;
      edges_id_ = ids.front();
      sums_ids_.assign(ids.begin() + 1, ids.end());
    }
    aborted_ = reported_ = false;
    ++round_;
  }
  changed_.notify_all();
}

Exchange::Part& Exchange::part(int operation, int device) {
  const auto& devices = plan_->operations[at(operation)].devices;
  const auto found = std::find(devices.begin(), devices.end(), device);
  return parts_[at(operation)][static_cast<std::size_t>(found - devices.begin())];
}

void Exchange::offer(int operation, int device, std::vector<ExchangedSpan> spans,
                     const StreamPoint* after) {
  {
    const std::lock_guard lock(mutex_);
    Part& mine = part(operation, device);
    PT_CHECK(!mine.offered, kInternal, "device {} offers an exchange twice", device);
    mine.offered = true;
    mine.spans = std::move(spans);
    mine.after = after;
  }
  changed_.notify_all();
}

const StreamPoint* Exchange::wait(int operation, int device) {
  std::unique_lock lock(mutex_);
  const Part& mine = part(operation, device);
  changed_.wait(lock, [&] { return aborted_ || mine.done; });
  if (aborted_) throw ChannelAborted();
  return mine.done;
}

void Exchange::finish(int device) {
  std::unique_lock lock(mutex_);
  const Rank& rank = *ranks_[at(rank_of_device_[at(device)])];
  changed_.wait(lock, [&] { return rank.rounds >= round_; });
}

void Exchange::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_all();
}

void Exchange::stop_if_aborted() {
  const std::lock_guard lock(mutex_);
  if (aborted_) throw ChannelAborted();
}

void Exchange::work(Rank& rank) {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || rank.rounds < round_; });
      if (stopping_) break;
    }
    std::exception_ptr error;
    try {
      run_round(rank);
    } catch (const ChannelAborted&) {
      release(rank);
    } catch (...) {
      error = std::current_exception();
    }
    if (error) {
      std::unique_lock lock(mutex_);
      const bool first = !std::exchange(reported_, true) && !aborted_;
      aborted_ = true;
      lock.unlock();
      changed_.notify_all();
      if (first) failed_(error);
      release(rank);  // last: it may have to wait until others have aborted, too
    }
    {
      const std::lock_guard lock(mutex_);
      rank.rounds = round_;
    }
    changed_.notify_all();
  }
  // Communicators are destroyed in the thread that used them.
  rank.edges.reset();
  rank.sums.clear();
  rank.begun.clear();
  rank.done.clear();
  rank.stream.reset();
}

/// Aborts the communicators, so that streams blocked on other ranks continue, and drops the
/// connections.
void Exchange::release(Rank& rank) {
  if (rank.edges) rank.edges->abort();
  for (auto& sum : rank.sums) {
    if (sum) sum->abort();
  }
  rank.edges.reset();
  for (auto& sum : rank.sums) sum.reset();
  rank.open.clear();
  try {
    if (rank.stream) rank.stream->synchronize();
  } catch (const Error&) {
    // The first failure has been reported.
  }
}

void Exchange::run_round(Rank& rank) {
  if (!rank.stream) rank.stream = rank.device->make_stream();
  if (rank.epoch != epoch_) connect(rank);
  const auto& groups = plan_->groups.size() > at(rank.number) ? plan_->groups[at(rank.number)]
                                                              : std::vector<std::vector<int>>();
  while (rank.done.size() < groups.size()) {
    rank.begun.push_back(rank.device->make_point());
    rank.done.push_back(rank.device->make_point());
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        const auto can_go_on = [&] { return aborted_ || all_offered(rank, groups[g]); };
        changed_.wait_for(lock, std::chrono::milliseconds(50), can_go_on);
        if (aborted_) throw ChannelAborted();
        if (can_go_on()) break;
      }
      look_after(rank);
    }
    issue(rank, g);
  }
  auto pause = std::chrono::microseconds(20);
  for (look_after(rank); !rank.open.empty(); look_after(rank)) {
    stop_if_aborted();
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(1'000));
  }
}

void Exchange::connect(Rank& rank) {
  release(rank);
  rank.edges = collectives_.connect(*rank.device, edges_id_, rank.number,
                                    static_cast<int>(ranks_.size()), CommunicatorUse::kEdges);
  settle(rank, *rank.edges, "the other devices to join");
  for (std::size_t s = 0; s < sums_.size(); ++s) {
    const auto found = std::find(sums_[s].begin(), sums_[s].end(), rank.number);
    if (found == sums_[s].end()) continue;
    rank.sums[s] =
        collectives_.connect(*rank.device, sums_ids_[s], static_cast<int>(found - sums_[s].begin()),
                             static_cast<int>(sums_[s].size()), CommunicatorUse::kSums);
    settle(rank, *rank.sums[s], "the other replicas to join");
  }
  rank.epoch = epoch_;
}

/// Waits until the host's part of the last call is complete.
void Exchange::settle(Rank& rank, Communicator& communicator, const std::string& what) {
  const double asked = steady_seconds();
  auto pause = std::chrono::microseconds(10);
  while (!communicator.is_settled()) {
    stop_if_aborted();
    PT_CHECK(steady_seconds() - asked < timeout_seconds_, kDevice,
             "no progress for {:.0f} s: {} waits for {}", timeout_seconds_, rank.device->name(),
             what);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(1'000));
  }
}

bool Exchange::all_offered(const Rank& rank, const std::vector<int>& group) {
  return std::all_of(group.begin(), group.end(), [&](int operation) {
    const auto& devices = plan_->operations[at(operation)].devices;
    for (std::size_t d = 0; d < devices.size(); ++d) {
      if (rank_of_device_[at(devices[d])] == rank.number && !parts_[at(operation)][d].offered)
        return false;
    }
    return true;
  });
}

/// Says that a rank's stream has reached its parts of a group.
void Exchange::note_begun(const Rank& rank, std::size_t group) {
  const std::lock_guard lock(mutex_);
  for (const int operation : plan_->groups[at(rank.number)][group]) {
    const auto& devices = plan_->operations[at(operation)].devices;
    for (std::size_t d = 0; d < devices.size(); ++d) {
      if (rank_of_device_[at(devices[d])] == rank.number) parts_[at(operation)][d].begun = true;
    }
  }
}

/// Whether the streams of all devices of this process have reached their parts of a group.
bool Exchange::all_have_begun(const Rank& rank, std::size_t group) {
  const std::lock_guard lock(mutex_);
  const std::vector<int>& operations = plan_->groups[at(rank.number)][group];
  return std::all_of(operations.begin(), operations.end(), [&](int operation) {
    const auto& devices = plan_->operations[at(operation)].devices;
    for (std::size_t d = 0; d < devices.size(); ++d) {
      if (devices_[at(devices[d])] && !parts_[at(operation)][d].begun) return false;
    }
    return true;
  });
}

void Exchange::issue(Rank& rank, std::size_t group) {
  const std::vector<int>& operations = plan_->groups[at(rank.number)][group];
  const auto mine = [&](const CommunicationOperation& operation) {
    std::size_t d = 0;
    while (rank_of_device_[at(operation.devices[d])] != rank.number) ++d;
    return d;
  };
  // Parts of operations do not change once they are offered.
  for (const int o : operations) {
    const Part& part = parts_[at(o)][mine(plan_->operations[at(o)])];
    if (part.after) rank.stream->wait(*part.after);
  }
  rank.stream->record(*rank.begun[group]);
  Communicator* used = rank.edges.get();
  const bool sums = plan_->operations[at(operations.front())].transfer < 0;
  if (sums) {
    std::vector<int> set;
    for (const int device : plan_->operations[at(operations.front())].devices)
      set.push_back(rank_of_device_[at(device)]);
    std::sort(set.begin(), set.end());
    const auto found = std::find(sums_.begin(), sums_.end(), set);
    used = rank.sums[static_cast<std::size_t>(found - sums_.begin())].get();
  }
  with_context([&] { return "exchanging: " + describe(rank, operations.front()); },
               [&] {
                 used->begin_group();
                 for (const int o : operations) {
                   const CommunicationOperation& operation = plan_->operations[at(o)];
                   const std::size_t d = mine(operation);
                   for (const ExchangedSpan& span : parts_[at(o)][d].spans) {
                     if (span.bytes == 0) continue;
                     if (sums) {
                       used->all_reduce(*rank.stream, reinterpret_cast<float*>(span.data),
                                        span.bytes / sizeof(float));
                     } else if (d == 0) {
                       used->send(*rank.stream, span.data, span.bytes,
                                  rank_of_device_[at(operation.devices[1])]);
                     } else {
                       used->receive(*rank.stream, span.data, span.bytes,
                                     rank_of_device_[at(operation.devices[0])]);
                     }
                   }
                 }
                 used->end_group();
                 settle(rank, *used, "the other end of: " + describe(rank, operations.front()));
               });
  rank.stream->record(*rank.done[group]);
  rank.open.push_back({group});
  {
    const std::lock_guard lock(mutex_);
    for (const int o : operations)
      parts_[at(o)][mine(plan_->operations[at(o)])].done = rank.done[group].get();
  }
  changed_.notify_all();
}

void Exchange::look_after(Rank& rank) {
  if (rank.edges) rank.edges->is_settled();
  for (const auto& sum : rank.sums) {
    if (sum) sum->is_settled();
  }
  while (!rank.open.empty()) {
    Open& first = rank.open.front();
    const bool is_done = rank.done[first.group]->reached();
    const double now = steady_seconds();
    if (first.begun == 0 && (is_done || rank.begun[first.group]->reached())) {
      first.begun = now;
      note_begun(rank, first.group);
    }
    if (is_done) {
      rank.open.pop_front();
      continue;
    }
    if (first.begun > 0 && first.met == 0 && all_have_begun(rank, first.group)) first.met = now;
    const bool is_met = first.met > 0;
    const double waited = is_met ? now - first.met : first.begun > 0 ? now - first.begun : 0;
    // Another device here may still compute, and another process may be late for reasons of its
    // own, such as a slow disk. Whether it waits for an exchange that has failed is not known.
    constexpr double kPatience = 10;
    const bool is_late =
        waited >= timeout_seconds_ && waited < kPatience * timeout_seconds_ &&
        (!is_met || (processes_ && processes_->describe_hang(timeout_seconds_).empty()));
    PT_CHECK(waited < timeout_seconds_ || is_late, kDevice, "no progress for {:.0f} s: {}",
             timeout_seconds_ * std::floor(waited / timeout_seconds_),
             describe(rank, plan_->groups[at(rank.number)][first.group].front()));
    return;
  }
}

std::string Exchange::describe(const Rank& rank, int operation) const {
  const CommunicationOperation& one = plan_->operations[at(operation)];
  const auto name = [&](int device) {
    return devices_[at(device)] ? devices_[at(device)]->name()
                                : fmt::format("device {} of another process", device);
  };
  if (one.transfer < 0) {
    return fmt::format("stage {} on {} adds up gradients with its {} other replica{}", one.stage,
                       rank.device->name(), one.devices.size() - 1,
                       one.devices.size() == 2 ? "" : "s");
  }
  const Transfer& moved = program_->transfers[at(one.transfer)];
  const char* what = moved.gradient ? "gradients" : "activations";
  if (rank_of_device_[at(moved.to_device)] == rank.number) {
    return fmt::format("stage {} on {} waits for the {} of micro-batch {} from stage {} on {}",
                       moved.to_stage, name(moved.to_device), what, moved.micro_batch,
                       moved.from_stage, name(moved.from_device));
  }
  return fmt::format("stage {} on {} hands the {} of micro-batch {} to stage {} on {}",
                     moved.from_stage, name(moved.from_device), what, moved.micro_batch,
                     moved.to_stage, name(moved.to_device));
}

}  // namespace pipetrain
