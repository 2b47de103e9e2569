#include "pipeline/runtime/last_instructions.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>

#include "base/clock.h"
#include "base/output_file.h"
#include "pipeline/program/palette.h"

namespace pipetrain {
namespace {

static_assert(std::atomic<double>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler may not wait");

alignas(DeviceLog) std::byte own_memory[kDeviceLogBytes];
alignas(DeviceLog) std::byte spare_memory[sizeof(DeviceLog)];
std::atomic<std::byte*> logs{own_memory};

DeviceLog& log_at(std::size_t device) {
  return *std::launder(reinterpret_cast<DeviceLog*>(logs.load() + device * sizeof(DeviceLog)));
}

/// Text of a fixed length, for signal handlers.
class Line {
 public:
  Line& text(const char* words) {
    while (*words && used_ < text_.size()) text_[used_++] = *words++;
    return *this;
  }
  Line& letter(char c) {
    if (used_ < text_.size()) text_[used_++] = c;
    return *this;
  }
  Line& number(std::int64_t value, int width = 1) {
    char digits[24];
    int count = 0;
    const bool negative = value < 0;
    std::uint64_t rest =
        negative ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
    do {
      digits[count++] = static_cast<char>('0' + rest % 10);
      rest /= 10;
    } while (rest > 0);
    while (count < width) digits[count++] = '0';
    if (negative) letter('-');
    while (count > 0) letter(digits[--count]);
    return *this;
  }
  /// With six decimals.
  Line& seconds(double value) {
    if (value < 0) letter('-');
    const double size = std::min(1e12, value < 0 ? -value : value);
    const auto micros = static_cast<std::int64_t>(size * 1e6 + 0.5);
    return number(micros / 1'000'000).letter('.').number(micros % 1'000'000, 6);
  }
  void write(int descriptor) {
    letter('\n');
    for (std::size_t at = 0; at < used_;) {
      const ssize_t done = ::write(descriptor, text_.data() + at, used_ - at);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) break;
      at += static_cast<std::size_t>(done);
    }
    used_ = 0;
  }

 private:
  std::array<char, 200> text_;
  std::size_t used_ = 0;
};

char dump_path[4096];
constexpr std::array<int, 5> kCrashes = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

extern "C" void dump_and_end(int number, siginfo_t*, void*) {
  const int saved = errno;
  dump_last_instructions();
  errno = saved;
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(number, &action, nullptr);
  ::raise(number);
}

/// Not where something else, a sanitizer or a debugger, looks after crashes.
void watch_crashes() {
  for (const int number : kCrashes) {
    struct sigaction action {
    }, former{};
    if (::sigaction(number, nullptr, &former) != 0 || former.sa_handler != SIG_DFL) continue;
    action.sa_sigaction = dump_and_end;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    ::sigaction(number, &action, nullptr);
  }
}

}  // namespace

void DeviceLog::begin_round() {
  rounds_.fetch_add(1, std::memory_order_relaxed);
  waits_for_.store(kNobody + kOffset, std::memory_order_relaxed);
}

void DeviceLog::begin(const Program& program, const Instruction& instruction, double seconds) {
  const std::uint64_t number = begun();
  Entry& entry = this->entry(number);
  const bool moves = instruction.transfer >= 0;
  const Transfer* transfer =
      moves ? &program.transfers[static_cast<std::size_t>(instruction.transfer)] : nullptr;
  entry = {.begin = seconds,
           .end = -1,
           .stage = instruction.stage,
           .micro_batch = instruction.micro_batch,
           .peer = !moves                            ? -1
                   : instruction.kind == Kind::kSend ? transfer->to_stage
                                                     : transfer->from_stage,
           .kind = instruction.kind,
           .gradient = moves && transfer->gradient};
  begun_.store(number + 1, std::memory_order_release);
}

void DeviceLog::wait_for(int whom, double seconds) {
  since_.store(seconds, std::memory_order_relaxed);
  waits_for_.store(whom + kOffset, std::memory_order_relaxed);
}

void DeviceLog::write(int descriptor, int device, double now) const {
  const std::uint64_t count = begun();
  if (count == 0) return;
  Line line;
  line.text("device ")
      .number(device)
      .text(": round ")
      .number(static_cast<std::int64_t>(rounds_.load(std::memory_order_relaxed)));
  const int whom = waits_for();
  if (whom == kFinished) {
    line.text(", at the end of its list");
  } else if (whom != kNobody) {
    line.text(", waits for ");
    if (whom == kEverybody) {
      line.text("all others");
    } else if (whom == kData) {
      line.text("data");
    } else {
      line.text("device ").number(whom);
    }
    line.text(" since ").seconds(now - waits_since()).text(" s");
  }
  line.write(descriptor);
  for (std::uint64_t i = count > kLength ? count - kLength : 0; i < count; ++i) {
    const Entry& entry = this->entry(i);
    line.text("  ").seconds(entry.begin - now).text(" s  ");
    if (entry.end < entry.begin) {
      line.text("not done");
    } else {
      line.seconds(entry.end - entry.begin).text(" s");
    }
    line.text("  ");
    // As to_text() writes it.
    if (entry.stage >= 0) line.number(entry.stage);
    line.letter(look_of(entry.kind).letter);
    if (entry.peer >= 0) line.letter(entry.gradient ? 'B' : 'F');
    if (entry.micro_batch >= 0) line.number(entry.micro_batch);
    if (entry.peer >= 0) line.letter(entry.kind == Kind::kSend ? '>' : '<').number(entry.peer);
    line.write(descriptor);
  }
}

void keep_device_logs_in(std::byte* memory) { logs = memory; }

DeviceLog& log_of_device(int device) {
  if (device >= 0 && static_cast<std::size_t>(device) < kLoggedDevices)
    return log_at(static_cast<std::size_t>(device));
  return *std::launder(reinterpret_cast<DeviceLog*>(spare_memory));
}

std::uint64_t instructions_begun() {
  std::uint64_t sum = 0;
  for (std::size_t device = 0; device < kLoggedDevices; ++device) sum += log_at(device).begun();
  return sum;
}

void dump_last_instructions_to(const std::filesystem::path& path) {
  const std::string text = std::filesystem::absolute(path).string();
  if (text.size() >= sizeof dump_path) return;
  std::memcpy(dump_path, text.c_str(), text.size() + 1);
  look_of(Kind::kForward);  // what it may set up, before a signal comes
  steady_seconds();
  watch_crashes();
}

void dump_last_instructions() {
  if (!dump_path[0]) return;
  const int descriptor = open_output_or_none(dump_path);
  if (descriptor < 0) return;
  write_last_instructions(descriptor);
  ::close(descriptor);
}

void write_last_instructions(int descriptor) {
  const double now = steady_seconds();
  for (std::size_t device = 0; device < kLoggedDevices; ++device)
    log_at(device).write(descriptor, static_cast<int>(device), now);
}

}  // namespace pipetrain
