#include "train/signals.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>

#include "pipeline/runtime/last_instructions.h"

namespace pipetrain {
namespace {

std::atomic<int> own_stop_number{0};
std::atomic<int>* stop_number = &own_stop_number;
std::atomic<bool> stop_came{false};  // to this process
std::atomic<bool> save_asked{false}, status_asked{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler may not wait");

constexpr std::array<int, 5> kNumbers = {SIGUSR1, SIGUSR2, SIGINT, SIGTERM, SIGHUP};
std::array<struct sigaction, kNumbers.size()> former;
std::array<bool, kNumbers.size()> watched{};

extern "C" void note_signal(int number) {
  const int error = errno;  // of the code that the signal interrupts
  if (number == SIGUSR1) {
    save_asked = true;
  } else if (number == SIGUSR2) {
    status_asked = true;
    dump_last_instructions();
  } else if (stop_came.exchange(true)) {
    ::_exit(128 + number);
  } else if (int none = 0; stop_number->compare_exchange_strong(none, number)) {
    say_that_run_will_stop();
  }
  errno = error;
}

void watch(std::size_t index) {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(kNumbers[index], nullptr, &former[index]);
  const bool stops = kNumbers[index] != SIGUSR1 && kNumbers[index] != SIGUSR2;
  if (stops && former[index].sa_handler == SIG_IGN) return;
  watched[index] = sigaction(kNumbers[index], &action, nullptr) == 0;
}

}  // namespace

Signals::Signals() {
  own_stop_number = 0;
  stop_came = save_asked = status_asked = false;
  watch(0);
  watch(1);
}

Signals::~Signals() {
  for (std::size_t i = 0; i < kNumbers.size(); ++i) {
    if (watched[i]) sigaction(kNumbers[i], &former[i], nullptr);
    watched[i] = false;
  }
}

void Signals::watch_stops() {
  for (std::size_t i = 2; i < kNumbers.size(); ++i) watch(i);
}

int Signals::stop() const { return *stop_number; }
bool Signals::take_save() { return save_asked.exchange(false); }
bool Signals::take_status() { return status_asked.exchange(false); }

void share_stop_request(std::atomic<int>& number) { stop_number = &number; }

void say_that_run_will_stop() {
  constexpr char kText[] = "\nfinishing the step and saving; a second signal stops at once\n";
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, kText, sizeof kText - 1);
}

const char* name_of_signal(int number) {
  return number == SIGINT ? "INT" : number == SIGTERM ? "TERM" : number == SIGHUP ? "HUP" : "?";
}

}  // namespace pipetrain
