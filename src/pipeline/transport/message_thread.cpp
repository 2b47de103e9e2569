#include "pipeline/transport/message_thread.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "processes/message_parts.h"

namespace pipetrain {

MessageThread::MessageThread(ProcessGroup& group, std::function<void(std::exception_ptr)> failed,
                             std::function<std::pair<std::string, std::uint64_t>()> state,
                             std::function<bool()> computes, double timeout_seconds,
                             std::function<void()> notify)
    : group_(group),
      failed_(std::move(failed)),
      state_(std::move(state)),
      computes_(std::move(computes)),
      notify_(std::move(notify)),
      timeout_seconds_(timeout_seconds),
      period_seconds_(heartbeat_period(timeout_seconds)) {
  // Open MPI's limit on one host is 4 KiB with its headers.
  constexpr std::size_t kOnHostBytes = 3 << 10;
  const std::string here = group_.host_of(group_.rank());
  for (int peer = 0; peer < group_.size(); ++peer)
    eager_bytes_.push_back(group_.host_of(peer) == here ? kOnHostBytes : Processes::kEagerBytes);
  thread_ = std::thread([this] { work(); });
}

MessageThread::~MessageThread() {
  stop();
  group_.expect_signs_of_life(0);
}

bool MessageThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  return aborted_ || !open_.empty();
}

void MessageThread::expect_signs_of_life() { group_.expect_signs_of_life(timeout_seconds_); }

int MessageThread::tag_of(int link, int micro_batch) const {
  return tags_.first + link * tags_.of_link + micro_batch % tags_.of_link;
}

void MessageThread::start_round(const LinkTags& tags) {
  const std::lock_guard lock(mutex_);
  tags_ = tags;
  inboxes_.clear();
}

void MessageThread::add(MessageTask& task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(&task);
}

void MessageThread::wake() {
  {
    const std::lock_guard lock(mutex_);
    wakes_ = true;
  }
  changed_.notify_all();
}

int MessageThread::add(Inbox inbox) {
  int number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = static_cast<int>(inboxes_.size());
    inboxes_.push_back(std::move(inbox));
    wakes_ = true;
  }
  changed_.notify_all();
  return number;
}

void MessageThread::send(int link, int micro_batch, int peer, Channel& channel,
                         std::vector<ExchangedSpan> spans) {
  bool wakes = false;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw ChannelAborted();
    Message message;
    message.channel = &channel;
    message.micro_batch = micro_batch;
    for (const ExchangedSpan& span : spans) {
      post_send_in_parts(group_.processes(), span.data, span.bytes, peer, tag_of(link, micro_batch),
                         message.requests);
    }
    // Short messages leave at once.
    if (are_done(group_.processes(), message.requests)) {
      channel.release(micro_batch);
      return;
    }
    open_.push_back(std::move(message));
    ++sending_;
    wakes = wakes_after_post(/*needs_polling=*/true);
  }
  if (wakes) changed_.notify_all();
}

void MessageThread::release(int inbox, int slot) {
  bool wakes = false;
  {
    const std::lock_guard lock(mutex_);
    inboxes_[at(inbox)].held[at(slot)] = false;
    if (aborted_) return;
    wakes = wakes_after_post(post_receives(inboxes_[at(inbox)]));
  }
  if (wakes) changed_.notify_all();
}

/// Notes that a message has been posted. Returns whether the thread must be woken for it.
bool MessageThread::wakes_after_post(bool needs_polling) {
  posted_ = true;
  const bool wakes = needs_polling && polls_seldom_;
  wakes_ = wakes_ || wakes;
  return wakes;
}

void MessageThread::begin_wait() {
  {
    const std::lock_guard lock(mutex_);
    ++waiting_;
    wakes_ = true;
  }
  changed_.notify_all();
}

void MessageThread::end_wait() {
  const std::lock_guard lock(mutex_);
  --waiting_;
}

void MessageThread::finish_round() {
  std::unique_lock lock(mutex_);
  if (sending_ > 0) {
    wakes_ = true;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return aborted_ || sending_ == 0; });
  if (aborted_) throw ChannelAborted();
  // What a round that ended early still expected is never sent.
  inboxes_.clear();
  for (const Message& message : open_) {
    for (const Processes::Request request : message.requests) group_.processes().cancel(request);
  }
  open_.clear();
}

void MessageThread::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  group_.interrupt();
  changed_.notify_all();
}

/// Posts receives whose buffer is free, in the order of the inbox. Returns whether one of them
/// needs polling.
bool MessageThread::post_receives(Inbox& inbox) {
  bool any = false;
  for (; inbox.posted < inbox.arrivals.size(); ++inbox.posted) {
    const Arrival& next = inbox.arrivals[inbox.posted];
    if (inbox.held[at(next.slot)]) break;
    inbox.held[at(next.slot)] = true;
    Message message;
    message.channel = inbox.channel;
    message.micro_batch = next.micro_batch;
    message.base = next.spans.empty() ? nullptr : next.spans.front().data;
    std::size_t bytes = 0;
    for (const ExchangedSpan& span : next.spans) {
      post_receive_in_parts(group_.processes(), span.data, span.bytes, next.peer,
                            tag_of(inbox.link, next.micro_batch), message.requests);
      bytes += span.bytes;
    }
    message.needs_polling = bytes > eager_bytes_[at(next.peer)];
    any = any || message.needs_polling;
    open_.push_back(std::move(message));
  }
  return any;
}

/// Completes finished messages; returns whether there were any.
bool MessageThread::look_at_messages() {
  bool done = false;
  for (std::size_t m = 0; m < open_.size();) {
    Message& message = open_[m];
    if (!are_done(group_.processes(), message.requests)) {
      ++m;
      continue;
    }
    done = true;
    if (message.base) {
      message.channel->send(message.micro_batch, message.base);
    } else {
      message.channel->release(message.micro_batch);
      if (--sending_ == 0) changed_.notify_all();
    }
    if (m + 1 < open_.size()) message = std::move(open_.back());
    open_.pop_back();
  }
  return done;
}

void MessageThread::say_alive() {
  const double now = steady_seconds();
  if (now - said_alive_ < period_seconds_) return;
  said_alive_ = now;
  const auto [waits_for, progress] = state_();
  group_.say_alive(waits_for, progress);
}

/// Does what can be done now. Returns whether there was anything.
bool MessageThread::get_on(bool& has_open_tasks) {
  std::vector<MessageTask*> tasks;
  bool moved = false;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || aborted_) return false;
    for (Inbox& inbox : inboxes_) post_receives(inbox);
    moved = look_at_messages();
    tasks = tasks_;
  }
  if (moved) say_moved();
  has_open_tasks = false;
  bool tasks_moved = false;
  for (MessageTask* task : tasks) {
    tasks_moved = task->go_on() || tasks_moved;
    has_open_tasks = has_open_tasks || task->is_open();
  }
  if (tasks_moved) say_moved();
  return moved || tasks_moved;
}

/// Waits for a moment, or for something to do. Returns false when the thread is to end.
bool MessageThread::rest(bool has_open_tasks) {
  using namespace std::chrono_literals;
  constexpr std::chrono::microseconds kShortest = 10us;
  // Slow links get on by themselves, and so does what is waited for longer than this.
  constexpr double kPollSeconds = 0.02;
  const double now = steady_seconds();
  std::unique_lock lock(mutex_);
  if (stopping_) return false;
  if (std::exchange(posted_, false) || wakes_) {
    moved_ = now;
    pause_ = kShortest;
  }
  if (std::exchange(wakes_, false)) return true;
  const bool moves = (has_open_tasks || !open_.empty()) && !aborted_;
  // Each look then takes the core from a stage. Before messages move there may be no stages yet.
  const bool computes = moves && computes_();
  if (moves && now - moved_ < kPollSeconds && !computes) {
    lock.unlock();
    std::this_thread::yield();
    return true;
  }
  const bool seldom = computes && waiting_ == 0 && !has_open_tasks &&
                      std::ranges::none_of(open_, &Message::needs_polling);
  const auto shortest = !moves ? 20'000us : seldom ? 2'000us : computes ? 100us : kShortest;
  const auto longest = !moves ? 20'000us : seldom ? 4'000us : computes ? 500us : 200us;
  pause_ = std::clamp<std::chrono::microseconds>(2 * pause_, shortest, longest);
  polls_seldom_ = !moves || seldom;
  changed_.wait_for(lock, pause_, [&] { return stopping_ || wakes_; });
  polls_seldom_ = false;
  return !stopping_;
}

void MessageThread::work() {
  // Whoever waits for a message may know more about a silent process, and looks every second.
  constexpr double kLongerSeconds = 2;
  prctl(PR_SET_NAME, "messages");
  prctl(PR_SET_TIMERSLACK, 1UL);
  bool has_open_tasks = false;
  do {
    std::exception_ptr error;
    try {
      say_alive();
      group_.listen();
      group_.check_failure();
      group_.check_silence(kLongerSeconds);
      if (get_on(has_open_tasks)) {
        moved_ = steady_seconds();
        pause_ = {};
      }
    } catch (...) {
      error = std::current_exception();
    }
    if (error) {
      std::unique_lock lock(mutex_);
      const bool first = !std::exchange(reported_, true) && !aborted_;
      lock.unlock();
      if (first) failed_(error);
    }
  } while (rest(has_open_tasks));
}

}  // namespace pipetrain
