#include "support/memory_processes.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/index.h"
#include "processes/process_memory.h"

namespace pipetrain::test {

class MemoryWorld::One final : public Processes {
 public:
  One(MemoryWorld& world, int rank) : world_(world), rank_(rank) {}
  std::string name() const override { return "memory"; }
  std::string host() const override {
    return world_.hosts_.empty() ? "here" : world_.hosts_[at(rank_)];
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_.processes_.size()); }

  Request post_send(const void* from, std::size_t bytes, int peer, int tag) override {
    const std::lock_guard lock(world_.mutex_);
    const Request number = ++world_.last_;
    Pending pending{rank_, number, from, nullptr, bytes};
    if (world_.muted_[at(rank_)]) return number;
    if (bytes <= 64 && world_.random_() % 2 == 0) {
      if (bytes > 0) pending.copy.assign(static_cast<const char*>(from), bytes);
      pending.has_left = true;
      world_.done_[at(rank_)][number] = 0;
    }
    const Key key{rank_, peer, tag};
    world_.sent_[key].push_back(std::move(pending));
    world_.deliver(key);
    return number;
  }
  Request post_receive(void* to, std::size_t bytes, int peer, int tag) override {
    const std::lock_guard lock(world_.mutex_);
    const Request number = ++world_.last_;
    const Key key{peer, rank_, tag};
    world_.wanted_[key].push_back({rank_, number, nullptr, to, bytes});
    world_.deliver(key);
    return number;
  }
  bool test(Request number) override {
    const std::lock_guard lock(world_.mutex_);
    auto& done = world_.done_[at(rank_)];
    const auto found = done.find(number);
    if (found == done.end() || found->second-- > 0) return false;
    done.erase(found);
    return true;
  }
  void cancel(Request number) override {
    const std::lock_guard lock(world_.mutex_);
    for (auto& [key, wanted] : world_.wanted_)
      std::erase_if(wanted, [&](const Pending& one) { return one.number == number; });
  }
  bool may_read_memory() const override { return world_.shares_memory_[at(rank_)] != 0; }
  /// Sometimes late, so that a writer that does not wait is caught.
  int read_memory(std::int64_t /*process*/, std::uint64_t from, void* to,
                  std::size_t bytes) override {
    bool late = false;
    {
      const std::lock_guard lock(world_.mutex_);
      late = world_.random_() % 8 == 0;
    }
    if (late) std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (world_.reads_ == Reads::kEnded) return ESRCH;
    // What a process that has failed has given back. Sanitizers see the copy that follows.
    if (read_process_memory(getpid(), from, to, bytes) == EFAULT) return EFAULT;
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    if (world_.reads_ == Reads::kOthers) *static_cast<char*>(to) ^= 1;
    return 0;
  }
  void leave() override {}
  void abort(int) noexcept override {
    const std::lock_guard lock(world_.mutex_);
    ++world_.aborts_;
  }

 private:
  MemoryWorld& world_;
  int rank_;
};

MemoryWorld::MemoryWorld(int size, std::uint64_t seed)
    : random_(seed), done_(at(size)), muted_(at(size)), shares_memory_(at(size), seed % 2 == 0) {
  for (int rank = 0; rank < size; ++rank) processes_.push_back(std::make_unique<One>(*this, rank));
}
MemoryWorld::~MemoryWorld() = default;

Processes& MemoryWorld::process(int rank) { return *processes_[at(rank)]; }

void MemoryWorld::mute(int rank) {
  const std::lock_guard lock(mutex_);
  muted_[at(rank)] = true;
}
void MemoryWorld::delay_messages(int calls) {
  const std::lock_guard lock(mutex_);
  most_calls_ = static_cast<std::uint64_t>(calls);
}
int MemoryWorld::aborts() const {
  const std::lock_guard lock(mutex_);
  return aborts_;
}
std::uint64_t MemoryWorld::messages() const {
  const std::lock_guard lock(mutex_);
  return messages_;
}
std::uint64_t MemoryWorld::most_bytes() const {
  const std::lock_guard lock(mutex_);
  return most_bytes_;
}

std::uint64_t MemoryWorld::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void MemoryWorld::deliver(const Key& key) {
  auto& sent = sent_[key];
  auto& wanted = wanted_[key];
  while (!sent.empty() && !wanted.empty()) {
    const Pending& from = sent.front();
    const Pending& to = wanted.front();
    PT_CHECK(from.bytes == to.bytes, kInternal, "a message of {} bytes, where {} are expected",
             from.bytes, to.bytes);
    if (from.bytes > 0)
      std::memcpy(to.to, from.has_left ? from.copy.data() : from.from, from.bytes);
    const auto calls = [&] { return static_cast<int>(random_() % (most_calls_ + 1)); };
    if (!from.has_left) done_[at(from.rank)][from.number] = calls();
    done_[at(to.rank)][to.number] = calls();
    ++messages_;
    bytes_ += from.bytes;
    most_bytes_ = std::max<std::uint64_t>(most_bytes_, from.bytes);
    sent.pop_front();
    wanted.pop_front();
  }
}

}  // namespace pipetrain::test
