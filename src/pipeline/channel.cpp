#include "pipeline/channel.h"

#include "base/error.h"

namespace pipetrain {

void Channel::reset() {
  const std::lock_guard lock(mutex_);
  sent_ = released_ = 0;
  aborted_ = false;
}

void Channel::wait_released(int unit, int reuse) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return aborted_ || released_ > unit - reuse; });
  if (aborted_) throw ChannelAborted();
}

void Channel::send(int unit, const std::byte* base) {
  {
    const std::lock_guard lock(mutex_);
    PT_CHECK(unit == sent_ && sent_ - released_ < static_cast<int>(base_.size()), kInternal,
             "unit {} is sent when unit {} is due", unit, sent_);
    base_[static_cast<std::size_t>(unit) % base_.size()] = base;
    ++sent_;
  }
  changed_.notify_all();
}

const std::byte* Channel::receive(int unit) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return aborted_ || sent_ > unit; });
  if (aborted_) throw ChannelAborted();
  return base_[static_cast<std::size_t>(unit) % base_.size()];
}

void Channel::release(int unit) {
  {
    const std::lock_guard lock(mutex_);
    released_ = std::max(released_, unit + 1);
  }
  changed_.notify_all();
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
