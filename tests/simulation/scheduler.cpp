#include "simulation/scheduler.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace __cxxabiv1 {
struct __cxa_eh_globals;
extern "C" __cxa_eh_globals* __cxa_get_globals() noexcept;
}  // namespace __cxxabiv1

namespace pipetrain::simulation {
namespace {

constexpr std::size_t kStackBytes = 512 << 10;
constexpr std::uint64_t kMostSwitches = 5'000'000;
constexpr std::int64_t kNever = -1;

/// The resume points of a fiber or the scheduler, by the compiler's setjmp builtins, which need no
/// system call. No other registers of a fiber are live across a jump.
using JumpPlace = void* [5];
[[gnu::noinline, gnu::noipa, noreturn]] void jump_to(void** place) { __builtin_longjmp(place, 1); }

/// The exceptions that a thread handles, as the C++ ABI keeps them.
struct HandledExceptions {
  void* caught = nullptr;
  unsigned uncaught = 0;
};

enum class State { kReady, kLock, kWait, kSleep, kJoin, kDone };
const char* const kWords[] = {
    "is ready", "waits for a mutex", "waits for a wake-up", "sleeps", "joins", "is done"};

struct Fiber {
  std::uint64_t number = 0;
  int process = 0;
  char name[16] = {};
  ucontext_t context;
  JumpPlace jump;
  bool begun = false;
  State state = State::kReady;
  const void* waits_on = nullptr;
  std::int64_t deadline = kNever;
  std::int64_t stopped_until = 0;
  bool timed_out = false;
  std::uint64_t priority = 0;
  HandledExceptions exceptions;
  int error_number = 0;
  void* (*function)(void*) = nullptr;
  void* argument = nullptr;
  void* stack = nullptr;
};

/// How a seed chooses the next thread.
enum class Policy { kRandom, kPriorities };

struct Simulation {
  std::uint64_t seed = 0, random = 0;
  Faults faults;
  Policy policy = Policy::kRandom;
  int switch_one_in = 1;
  std::uint64_t priority_changes = 0;  // one in so many switches
  int clock_scale = 0;
  int spurious_one_in = 0;
  std::int64_t now = 0;
  std::uint64_t switches = 0;
  std::vector<std::unique_ptr<Fiber>> fibers;
  Fiber* current = nullptr;
  JumpPlace scheduler;
  HandledExceptions outside;
};

Simulation* simulation = nullptr;
std::vector<void*> free_stacks;

HandledExceptions& handled_exceptions() {
  return *reinterpret_cast<HandledExceptions*>(__cxxabiv1::__cxa_get_globals());
}

std::uint64_t next_random() {
  // splitmix64 (Steele, Lea and Flood 2014).
  std::uint64_t z = simulation->random += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

bool one_in(std::uint64_t count) { return count > 0 && next_random() % count == 0; }

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "seed %llu: %s after %llu switches, at %.6f s\n",
               static_cast<unsigned long long>(simulation->seed), what,
               static_cast<unsigned long long>(simulation->switches),
               static_cast<double>(simulation->now) * 1e-9);
  for (const auto& fiber : simulation->fibers) {
    if (fiber->state == State::kDone) continue;
    std::fprintf(stderr, "  thread %llu (%s, process %d) %s%s",
                 static_cast<unsigned long long>(fiber->number), fiber->name, fiber->process,
                 kWords[static_cast<int>(fiber->state)],
                 fiber.get() == simulation->current ? ", runs" : "");
    if (fiber->waits_on) std::fprintf(stderr, " at %p", fiber->waits_on);
    if (fiber->deadline != kNever)
      std::fprintf(stderr, " until %.6f s", static_cast<double>(fiber->deadline) * 1e-9);
    std::fputc('\n', stderr);
  }
  std::fflush(stderr);
  ::_exit(1);
}

void crashed(int number) {
  char text[64];
  std::snprintf(text, sizeof text, "signal %d", number);
  if (simulation) give_up(text);
  std::fprintf(stderr, "%s outside of a simulation\n", text);
  ::_exit(1);
}

void* take_stack() {
  if (!free_stacks.empty()) {
    void* stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
  }
  void* stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) std::abort();
  ::mprotect(stack, 4096, PROT_NONE);  // an overflow is a crash
  return stack;
}

/// Leaves a fiber for the scheduler, and returns when it is chosen again.
[[gnu::noinline, gnu::noipa]] void leave() {
  if (__builtin_setjmp(simulation->current->jump) == 0) jump_to(simulation->scheduler);
}

void suspend() {
  Fiber& fiber = *simulation->current;
  fiber.exceptions = handled_exceptions();
  fiber.error_number = errno;
  leave();
  errno = simulation->current->error_number;
  handled_exceptions() = simulation->current->exceptions;
}

[[gnu::noinline, gnu::noipa]] void resume(Fiber& fiber) {
  simulation->current = &fiber;
  if (__builtin_setjmp(simulation->scheduler) != 0) return;
  if (fiber.begun) jump_to(fiber.jump);
  fiber.begun = true;
  handled_exceptions() = {};
  ::setcontext(&fiber.context);
}

void wake_joiners(const Fiber& ended) {
  for (const auto& other : simulation->fibers) {
    if (other->state == State::kJoin && other->waits_on == &ended) other->state = State::kReady;
  }
}

void enter() {
  Fiber& fiber = *simulation->current;
  fiber.function(fiber.argument);
  fiber.state = State::kDone;
  wake_joiners(fiber);
  leave();
  std::abort();
}

Fiber& add_fiber(void* (*function)(void*), void* argument) {
  auto fiber = std::make_unique<Fiber>();
  fiber->number = simulation->fibers.size();
  fiber->process = simulation->current ? simulation->current->process : 0;
  std::snprintf(fiber->name, sizeof fiber->name, "thread");
  fiber->priority = next_random();
  fiber->function = function;
  fiber->argument = argument;
  fiber->stack = take_stack();
  ::getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  ::makecontext(&fiber->context, enter, 0);
  simulation->fibers.push_back(std::move(fiber));
  return *simulation->fibers.back();
}

/// Whose time has come is ready.
void expire() {
  for (const auto& fiber : simulation->fibers) {
    if (fiber->deadline == kNever || fiber->deadline > simulation->now) continue;
    if (fiber->state != State::kWait && fiber->state != State::kSleep) continue;
    fiber->timed_out = true;
    fiber->deadline = kNever;
    fiber->state = State::kReady;
  }
}

/// The next time at which a thread that waits now could go on.
std::int64_t next_time() {
  std::int64_t next = kNever;
  for (const auto& fiber : simulation->fibers) {
    std::int64_t time = kNever;
    if (fiber->state == State::kReady) time = std::max(fiber->stopped_until, simulation->now);
    if ((fiber->state == State::kWait || fiber->state == State::kSleep) &&
        fiber->deadline != kNever)
      time = std::max(fiber->deadline, fiber->stopped_until);
    if (time != kNever && (next == kNever || time < next)) next = time;
  }
  return next;
}

/// The thread that goes on; null: all have ended.
Fiber* choose() {
  std::array<Fiber*, 64> ready;
  for (;;) {
    expire();
    std::size_t count = 0;
    bool ended = true;
    for (const auto& fiber : simulation->fibers) {
      ended = ended && fiber->state == State::kDone;
      if (fiber->state != State::kReady || fiber->stopped_until > simulation->now) continue;
      if (count < ready.size()) ready[count++] = fiber.get();
    }
    if (ended) return nullptr;
    if (count == 0) {
      const std::int64_t next = next_time();
      if (next == kNever) give_up("no thread can go on");
      simulation->now = std::max(next, simulation->now);
      continue;
    }
    Fiber* chosen = ready[next_random() % count];
    if (simulation->policy == Policy::kPriorities) {
      for (std::size_t i = 0; i < count; ++i) {
        if (ready[i]->priority > chosen->priority) chosen = ready[i];
      }
      if (one_in(simulation->priority_changes)) chosen->priority = next_random();
    }
    if (one_in(static_cast<std::uint64_t>(simulation->faults.switches_per_stop))) {
      const double longest = simulation->faults.longest_stop_seconds;
      const double share = static_cast<double>(next_random() % 1'000) / 1e3;
      chosen->stopped_until =
          simulation->now + static_cast<std::int64_t>(1e9 * longest * share * share * share);
      continue;
    }
    return chosen;
  }
}

void run_all() {
  while (Fiber* fiber = choose()) {
    if (++simulation->switches > kMostSwitches) give_up("no end");
    if (simulation->switches == simulation->faults.killed_after) ::_exit(kKilled);
    resume(*fiber);
  }
}

void choose_policy() {
  Simulation& s = *simulation;
  s.policy = next_random() % 3 == 0 ? Policy::kPriorities : Policy::kRandom;
  s.switch_one_in = 1 << (2 * (next_random() % 4));
  s.priority_changes = std::uint64_t{4} << (2 * (next_random() % 6));
  s.clock_scale = static_cast<int>(next_random() % 5);
  s.spurious_one_in = next_random() % 2 == 0 ? 0 : 50;
  if (next_random() % 2 == 0) s.faults.switches_per_stop = 0;
}

void release_stacks() {
  for (const auto& fiber : simulation->fibers) free_stacks.push_back(fiber->stack);
}

}  // namespace

Outcome simulate(std::uint64_t seed, const Faults& faults, const std::function<void()>& body) {
  static const bool prepared = [] {
    static char memory[64 << 10];
    stack_t stack{};
    stack.ss_sp = memory;
    stack.ss_size = sizeof memory;
    ::sigaltstack(&stack, nullptr);
    struct sigaction action {};
    action.sa_handler = crashed;
    action.sa_flags = SA_ONSTACK | SA_NODEFER;
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
      ::sigaction(number, &action, nullptr);
    return true;
  }();
  if (!prepared || simulation) std::abort();
  Simulation here;
  here.seed = seed;
  here.random = seed * 0x2545f4914f6cdd1dULL + 1;
  here.faults = faults;
  here.now = 1'000'000'000;
  here.outside = handled_exceptions();
  simulation = &here;
  choose_policy();
  add_fiber(
      [](void* argument) -> void* {
        (*static_cast<const std::function<void()>*>(argument))();
        return nullptr;
      },
      const_cast<std::function<void()>*>(&body));
  run_all();
  handled_exceptions() = here.outside;
  release_stacks();
  simulation = nullptr;
  return {here.switches, static_cast<double>(here.now) * 1e-9 - 1,
          static_cast<int>(here.fibers.size())};
}

bool is_simulated() { return simulation != nullptr; }

std::uint64_t draw(std::uint64_t count) { return next_random() % count; }

void become_process(int process) { simulation->current->process = process; }

void stop_process(int process, double seconds) {
  for (const auto& fiber : simulation->fibers) {
    if (fiber->process == process)
      fiber->stopped_until = simulation->now + static_cast<std::int64_t>(1e9 * seconds);
  }
  suspend();
}

void switch_point() {
  if (simulation->switch_one_in == 1 ||
      one_in(static_cast<std::uint64_t>(simulation->switch_one_in)) ||
      simulation->policy == Policy::kPriorities)
    suspend();
}

std::uint64_t create(void* (*function)(void*), void* argument) {
  const std::uint64_t number = add_fiber(function, argument).number;
  switch_point();
  return number;
}

void join(std::uint64_t thread) {
  Fiber& other = *simulation->fibers[thread];
  while (other.state != State::kDone) {
    simulation->current->state = State::kJoin;
    simulation->current->waits_on = &other;
    suspend();
  }
  simulation->current->waits_on = nullptr;
}

void lock(int& word, const void* mutex) {
  switch_point();
  Fiber& fiber = *simulation->current;
  while (word != 0) {
    fiber.state = State::kLock;
    fiber.waits_on = mutex;
    suspend();
  }
  fiber.waits_on = nullptr;
  word = 1;
}

bool try_lock(int& word) {
  switch_point();
  if (word != 0) return false;
  word = 1;
  return true;
}

namespace {

void release(int& word, const void* mutex) {
  word = 0;
  for (const auto& fiber : simulation->fibers) {
    if (fiber->state == State::kLock && fiber->waits_on == mutex) fiber->state = State::kReady;
  }
}

}  // namespace

void unlock(int& word, const void* mutex) {
  release(word, mutex);
  switch_point();
}

bool wait(const void* condition, int& word, const void* mutex, std::int64_t deadline) {
  Fiber& fiber = *simulation->current;
  release(word, mutex);
  bool woken = true;
  if (!one_in(static_cast<std::uint64_t>(simulation->spurious_one_in))) {
    fiber.state = State::kWait;
    fiber.waits_on = condition;
    fiber.deadline = deadline;
    fiber.timed_out = false;
    suspend();
    fiber.deadline = kNever;
    fiber.waits_on = nullptr;
    woken = !fiber.timed_out;
  }
  lock(word, mutex);
  return woken;
}

void wake(const void* condition, bool all) {
  std::array<Fiber*, 64> waiting;
  std::size_t count = 0;
  for (const auto& fiber : simulation->fibers) {
    if (fiber->state == State::kWait && fiber->waits_on == condition && count < waiting.size())
      waiting[count++] = fiber.get();
  }
  const std::size_t only = count == 0 ? 0 : next_random() % count;
  for (std::size_t i = 0; i < count; ++i) {
    if (!all && i != only) continue;
    waiting[i]->state = State::kReady;
    waiting[i]->deadline = kNever;
  }
  switch_point();
}

void give_way() {
  Fiber& fiber = *simulation->current;
  fiber.priority = next_random() % (fiber.priority + 1);
}

std::int64_t clock_nanoseconds() {
  // Most things take less than a microsecond, few take long.
  const std::uint64_t random = next_random();
  simulation->now += static_cast<std::int64_t>(100 + random % 1'000);
  if ((random >> 32) % 16 == 0) {
    std::int64_t most = 10'000;
    for (int i = 0; i < simulation->clock_scale; ++i) most *= 5;
    simulation->now += static_cast<std::int64_t>((random >> 40) % static_cast<std::uint64_t>(most));
  }
  const std::int64_t now = simulation->now;
  switch_point();
  return now;
}

void sleep_until(std::int64_t nanoseconds) {
  Fiber& fiber = *simulation->current;
  fiber.state = State::kSleep;
  fiber.deadline = nanoseconds;
  suspend();
}

void set_name(const char* name) {
  Fiber& fiber = *simulation->current;
  std::snprintf(fiber.name, sizeof fiber.name, "%s", name);
}

}  // namespace pipetrain::simulation
