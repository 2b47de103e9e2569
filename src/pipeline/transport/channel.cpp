#include "pipeline/transport/channel.h"

#include "base/clock.h"
#include "base/error.h"

namespace pipetrain {

void Channel::reset(int micro_batches) {
  const std::lock_guard lock(mutex_);
  entries_.assign(static_cast<std::size_t>(micro_batches), Entry{});
  aborted_ = false;
}

void Channel::send(int micro_batch, const std::byte* base, const StreamPoint* written) {
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = at(micro_batch);
    PT_CHECK(entry.state == State::kNothing, kInternal, "micro-batch {} is sent twice",
             micro_batch);
    entry = {base, written, steady_seconds() + latency_seconds_, State::kSent};
  }
  changed_.notify_all();
}

bool Channel::is_there(int micro_batch) {
  const std::lock_guard lock(mutex_);
  return aborted_ || at(micro_batch).state != State::kNothing;
}

bool Channel::is_released(int micro_batch) {
  const std::lock_guard lock(mutex_);
  return aborted_ || at(micro_batch).state == State::kReleased;
}

const std::byte* Channel::receive(int micro_batch, double* there_at, const StreamPoint** written) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return aborted_ || at(micro_batch).state != State::kNothing; });
  if (aborted_) throw ChannelAborted();
  const Entry entry = at(micro_batch);
  lock.unlock();
  if (latency_seconds_ > 0) wait_until(entry.there_at);
  if (there_at) *there_at = entry.there_at;
  if (written) *written = entry.done;
  return entry.base;
}

void Channel::release(int micro_batch, const StreamPoint* read) {
  {
    const std::lock_guard lock(mutex_);
    at(micro_batch).state = State::kReleased;
    at(micro_batch).done = read;
  }
  changed_.notify_all();
}

const StreamPoint* Channel::wait_released(int micro_batch) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return aborted_ || at(micro_batch).state == State::kReleased; });
  if (aborted_) throw ChannelAborted();
  return at(micro_batch).done;
}

void Channel::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_all();
}

void Barrier::arrive_and_wait() {
  std::unique_lock lock(mutex_);
  if (aborted_) throw ChannelAborted();
  const int generation = generation_;
  if (++arrived_ == count_) {
    arrived_ = 0;
    ++generation_;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return aborted_ || generation_ != generation; });
  if (generation_ == generation) throw ChannelAborted();
}

void Barrier::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_all();
}

void Barrier::reset() {
  const std::lock_guard lock(mutex_);
  arrived_ = 0;
  aborted_ = false;
}

}  // namespace pipetrain
