#include "processes/process_group.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "processes/message_parts.h"

namespace pipetrain {

ProcessGroup::ProcessGroup(Processes& processes)
    : processes_(processes),
      rank_(processes.rank()),
      size_(processes.size()),
      readable_(at(processes.size()), 0) {
  for (int peer = 0; peer < size_; ++peer) {
    peers_.push_back(peer == rank_ ? nullptr : std::make_unique<Peer>());
    if (peer == rank_) continue;
    Peer& one = *peers_.back();
    one.heard = one.got_on = steady_seconds();
    one.request = processes_.post_receive(&one.incoming, sizeof one.incoming, peer, kNoticeTag);
  }
  const std::vector<std::string> hosts = all_gather(processes_.host());
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) peers_[at(peer)]->host = hosts[at(peer)];
  }
}

ProcessGroup::~ProcessGroup() = default;

std::string ProcessGroup::name_of(int rank) const {
  if (rank == rank_) return fmt::format("process {}", rank);
  const std::string host = host_of(rank);
  return fmt::format("process {}{}{}", rank, host.empty() ? "" : " on ", printable(host));
}

std::string ProcessGroup::host_of(int rank) const {
  return rank == rank_ ? processes_.host() : peers_[at(rank)]->host;
}

namespace {

/// What a process sends to others so that they can find out whether they can read its memory: in
/// another container, its process ID may be that of another process.
struct MemoryProbe {
  std::int64_t process = 0;   // process ID; 0: it may not be read
  std::uint64_t address = 0;  // of `value`
  std::uint64_t value = 0;    // random
};

/// Valid as long as the process lives.
MemoryProbe memory_probe() {
  static const std::uint64_t value = [] {
    std::random_device random;
    return (std::uint64_t{random()} << 32) | random();
  }();
  return {getpid(), reinterpret_cast<std::uint64_t>(&value), value};
}

/// If the security module Yama restricts ptrace, a process must allow others to read it. Open MPI
/// does the same.
void allow_reading(bool allows) { prctl(PR_SET_PTRACER, allows ? PR_SET_PTRACER_ANY : 0, 0, 0, 0); }

}  // namespace

void ProcessGroup::find_readable_processes() {
  const auto on_one_host = [&](int a, int b) { return a != b && host_of(a) == host_of(b); };
  bool has_neighbors = false;
  for (int peer = 0; peer < size_; ++peer) has_neighbors |= on_one_host(rank_, peer);
  const bool may = processes_.may_read_memory() && has_neighbors;
  if (may) allow_reading(true);
  ByteWriter mine;
  mine.put(may ? memory_probe() : MemoryProbe());
  std::vector<MemoryProbe> probes;
  for (const std::string& bytes : all_gather(mine.take()))
    probes.push_back(ByteReader(bytes).get<MemoryProbe>());
  std::string reads(at(size_), 0);
  for (int peer = 0; peer < size_; ++peer) {
    const MemoryProbe& probe = probes[at(peer)];
    if (!may || !on_one_host(rank_, peer) || probe.process == 0) continue;
    std::uint64_t value = ~probe.value;
    const int error = processes_.read_memory(probe.process, probe.address, &value, sizeof value);
    reads[at(peer)] = error == 0 && value == probe.value ? 1 : 0;
  }
  const std::vector<std::string> all = all_gather(reads);
  const auto both = [&](int a, int b) { return all[at(a)][at(b)] != 0 && all[at(b)][at(a)] != 0; };
  bool any = false;
  for (int a = 0; a < size_; ++a) {
    if (both(a, rank_)) readable_[at(a)] = probes[at(a)].process;
    any = any || both(a, rank_);
    for (int b = 0; b < a; ++b) {
      if (on_one_host(a, b)) hosts_read_ = hosts_read_.value_or(true) && both(a, b);
    }
  }
  if (may && !any) allow_reading(false);
}

void ProcessGroup::read(int peer, std::uint64_t from, void* to, std::size_t bytes) {
  const int error = processes_.read_memory(readable_[at(peer)], from, to, bytes);
  PT_CHECK(error != ESRCH, kDevice, "{} has ended", name_of(peer));
  PT_CHECK(error == 0, kDevice, "the memory of {} cannot be read: {}", name_of(peer),
           std::strerror(error));
}

void ProcessGroup::tell(int peer, const Notice& notice) {
  outgoing_.push_back({notice, 0, peer});
  Outgoing& out = outgoing_.back();
  out.request = processes_.post_send(&out.notice, sizeof out.notice, peer, kNoticeTag);
}

void ProcessGroup::take_in(int rank) {
  Peer& peer = *peers_[at(rank)];
  const Notice notice = peer.incoming;
  peer.request = processes_.post_receive(&peer.incoming, sizeof peer.incoming, rank, kNoticeTag);
  peer.heard = steady_seconds();
  const std::string text(notice.text, ::strnlen(notice.text, sizeof notice.text));
  if (notice.failed != 0) {
    peer.failed = true;
    if (!failure_) failure_ = Failure{rank, static_cast<ErrorKind>(notice.kind), text};
    return;
  }
  if (text.empty() || notice.progress != peer.progress) peer.got_on = peer.heard;
  peer.waits_for = text;
  peer.progress = notice.progress;
}

void ProcessGroup::listen_locked() {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && processes_.test(peers_[at(rank)]->request)) take_in(rank);
  }
  outgoing_.remove_if([&](const Outgoing& out) { return processes_.test(out.request); });
}

void ProcessGroup::listen() {
  const std::lock_guard lock(mutex_);
  if (!left_) listen_locked();
}

std::optional<ProcessGroup::Failure> ProcessGroup::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ProcessGroup::check_failure() const {
  const std::optional<Failure> failed = failure();
  if (!failed) return;
  Error error(failed->kind, failed->text);
  error.add_frame("in " + name_of(failed->rank));
  throw Error(error);
}

void ProcessGroup::interrupt() { interrupted_ = true; }

/// What another process has reported, or that it is silent, is the better reason; both are known
/// before the interruption.
void ProcessGroup::check_interrupted() const {
  if (!interrupted_) return;
  check_failure();
  check_silence();
  PT_FAIL(kDevice, "another stage failed");
}

void ProcessGroup::check() {
  listen();
  check_failure();
  check_interrupted();
  check_silence();
}

void ProcessGroup::keep(std::shared_ptr<void> memory) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(memory));
}

void PollPause::rest() {
  constexpr double kPollSeconds = 0.002;
  if (since_ == 0) since_ = steady_seconds();
  if (steady_seconds() - since_ < kPollSeconds) return std::this_thread::yield();
  std::this_thread::sleep_for(pause_);
  pause_ = std::min(2 * pause_, std::chrono::microseconds(200));
}

/// Waits for the requests of a message. If that is interrupted, their memory is kept.
void ProcessGroup::wait_for(std::shared_ptr<Message>& message) {
  PollPause pause;
  waits_ = true;
  try {
    for (const Processes::Request request : message->requests) {
      while (!processes_.test(request)) {
        check();
        pause.rest();
      }
    }
    message->requests.clear();
    waits_ = false;
  } catch (...) {
    waits_ = false;
    keep(std::move(message));
    throw;
  }
}

std::shared_ptr<ProcessGroup::Message> ProcessGroup::post(std::string bytes, int peer) {
  check_interrupted();
  auto message = std::make_shared<Message>();
  message->count = bytes.size();
  message->bytes = std::move(bytes);
  message->requests.push_back(
      processes_.post_send(&message->count, sizeof message->count, peer, kValuesTag));
  post_send_in_parts(processes_, reinterpret_cast<const std::byte*>(message->bytes.data()),
                     message->bytes.size(), peer, kValuesTag, message->requests);
  return message;
}

void ProcessGroup::send(std::string bytes, int peer) {
  std::shared_ptr<Message> message = post(std::move(bytes), peer);
  wait_for(message);
}

std::string ProcessGroup::receive(int peer) {
  check_interrupted();
  auto message = std::make_shared<Message>();
  message->requests.push_back(
      processes_.post_receive(&message->count, sizeof message->count, peer, kValuesTag));
  wait_for(message);
  message->bytes.resize(message->count);
  post_receive_in_parts(processes_, reinterpret_cast<std::byte*>(message->bytes.data()),
                        message->bytes.size(), peer, kValuesTag, message->requests);
  wait_for(message);
  return std::move(message->bytes);
}

std::vector<std::string> ProcessGroup::gather(std::string_view mine) {
  if (!leads()) {
    send(std::string(mine), 0);
    return {};
  }
  std::vector<std::string> all = {std::string(mine)};
  for (int peer = 1; peer < size_; ++peer) all.push_back(receive(peer));
  return all;
}

std::string ProcessGroup::broadcast(std::string_view mine) {
  if (!leads()) return receive(0);
  for (int peer = 1; peer < size_; ++peer) send(std::string(mine), peer);
  return std::string(mine);
}

std::vector<std::string> ProcessGroup::exchange_all(std::string_view mine) {
  std::vector<std::shared_ptr<Message>> sent;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) sent.push_back(post(std::string(mine), peer));
  }
  try {
    std::vector<std::string> all;
    for (int peer = 0; peer < size_; ++peer)
      all.push_back(peer == rank_ ? std::string(mine) : receive(peer));
    for (std::shared_ptr<Message>& message : sent) wait_for(message);
    return all;
  } catch (...) {
    for (std::shared_ptr<Message>& message : sent) keep(std::move(message));
    throw;
  }
}

std::vector<std::string> ProcessGroup::all_gather(std::string_view mine) {
  if (messages_to_gather() == 1) return exchange_all(mine);
  ByteWriter together;
  for (const std::string& one : gather(mine)) together.put_text(one);
  const std::string bytes = broadcast(together.take());
  ByteReader reader(bytes);
  std::vector<std::string> all;
  while (!reader.at_end()) all.emplace_back(reader.get_text());
  return all;
}

void ProcessGroup::fail_together(const std::optional<Error>& mine) {
  ByteWriter here;
  if (mine) {
    here.put(static_cast<std::int32_t>(mine->kind()));
    here.put_text(mine->what());
  }
  const std::vector<std::string> all = all_gather(here.take());
  failed_together_ = -1;
  for (int rank = size_ - 1; rank >= 0; --rank) {
    if (!all[at(rank)].empty()) failed_together_ = rank;
  }
  if (mine) throw Error(*mine);
  if (failed_together_ < 0) return;
  ByteReader reader(all[at(failed_together_)]);
  const auto kind = static_cast<ErrorKind>(reader.get<std::int32_t>());
  Error error(kind, std::string(reader.get_text()));
  error.add_frame("in " + name_of(failed_together_));
  throw Error(error);
}

void ProcessGroup::say_failed(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(said_failed_, true)) return;
  interrupted_ = true;
  Notice notice;
  notice.failed = 1;
  notice.kind = static_cast<std::int32_t>(error.kind());
  const std::string_view text = error.what();
  text.copy(notice.text, sizeof notice.text - 1);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) tell(peer, notice);
  }
}

bool ProcessGroup::wait_for_failures(double seconds) {
  const double end = steady_seconds() + seconds;
  for (;;) {
    try {
      const std::lock_guard lock(mutex_);
      listen_locked();
      // Those that were missed for too long will not answer.
      const auto is_lost = [&](int peer) {
        return patience_ > 0 && steady_seconds() - peers_[at(peer)]->heard > patience_;
      };
      bool all = true, lost = false;
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_ || (rank_ != 0 && peer != 0) || peers_[at(peer)]->failed) continue;
        if (is_lost(peer)) {
          lost = true;
        } else {
          all = false;
        }
      }
      if (all && std::all_of(outgoing_.begin(), outgoing_.end(),
                             [&](const Outgoing& out) { return is_lost(out.peer); }))
        return !lost;
    } catch (const Error&) {
      return false;  // they can no longer be heard
    }
    if (steady_seconds() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void ProcessGroup::say_alive(std::string_view waits_for, std::uint64_t progress) {
  const std::lock_guard lock(mutex_);
  say_alive_locked(waits_for, progress);
}

void ProcessGroup::say_alive_if_quiet(double seconds) {
  const std::lock_guard lock(mutex_);
  if (steady_seconds() - said_alive_ >= seconds) say_alive_locked({}, 0);
}

void ProcessGroup::say_alive_locked(std::string_view waits_for, std::uint64_t progress) {
  if (left_ || said_failed_) return;
  const double now = steady_seconds();
  // This process itself was suspended; that time is no silence of the others.
  const bool was_suspended = said_alive_ > 0 && now - said_alive_ > most_silence_ / 2;
  if (most_silence_ > 0 && was_suspended) hear_all_locked(now);
  said_alive_ = now;
  Notice notice;
  notice.progress = progress;
  if (waits_for.empty() && waits_) waits_for = "it waits for the other processes";
  waits_for.copy(notice.text, sizeof notice.text - 1);
  for (int peer = 0; peer < size_; ++peer) {
    // A process that does not receive is sent one heartbeat at most.
    const bool told = std::any_of(outgoing_.begin(), outgoing_.end(),
                                  [&](const Outgoing& out) { return out.peer == peer; });
    if (peer != rank_ && !told) tell(peer, notice);
  }
}

void ProcessGroup::expect_heartbeats(double seconds) {
  {
    const std::lock_guard lock(mutex_);
    heartbeat_silence_ = seconds;
  }
  expect_signs_of_life(seconds);
}

void ProcessGroup::expect_signs_of_life(double seconds) {
  const std::lock_guard lock(mutex_);
  most_silence_ = seconds > 0 ? seconds : heartbeat_silence_;
  if (seconds <= 0) return;  // a process that has been lost stays lost
  patience_ = most_silence_;
  hear_all_locked(steady_seconds());
}

void ProcessGroup::hear_all_locked(double now) {
  for (const auto& peer : peers_) {
    if (peer) peer->heard = peer->got_on = now;
  }
}

std::string ProcessGroup::describe_silence(double seconds) const {
  const double now = steady_seconds();
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const double silent = now - peers_[at(rank)]->heard;
    if (silent > seconds)
      return fmt::format("{} has been silent for {:.0f} s", name_of(rank), silent);
  }
  return {};
}

void ProcessGroup::check_silence(double longer_seconds) const {
  const std::lock_guard lock(mutex_);
  if (most_silence_ <= 0) return;
  const std::string text = describe_silence(most_silence_ + longer_seconds);
  PT_CHECK(text.empty(), kDevice, "{}", text);
}

std::string ProcessGroup::describe_hang(double seconds) const {
  const std::lock_guard lock(mutex_);
  const double now = steady_seconds();
  std::string text = describe_silence(seconds);
  if (!text.empty()) return text;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const Peer& peer = *peers_[at(rank)];
    if (now - peer.got_on <= seconds) return {};
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name_of(rank), peer.waits_for);
  }
  return text;
}

void ProcessGroup::leave() {
  all_gather("");
  const std::lock_guard lock(mutex_);
  left_ = true;
  for (const auto& peer : peers_) {
    if (peer) processes_.cancel(peer->request);
  }
  processes_.leave();
}

}  // namespace pipetrain
