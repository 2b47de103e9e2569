// Deterministic simulation of threads. simulate() runs a function and every thread that it starts
// as fibers of one thread: one runs at a time, and a seed decides at every lock, wait, wake-up and
// reading of the clock which one goes on. Time is virtual: it jumps when everybody waits.
//
// The code that runs is the production code as it is: posix_threads.cpp replaces the functions of
// the C library that threads, mutexes, condition variables and clocks are made of.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace pipetrain::simulation {

/// What a seed decides beside the order of threads.
struct Faults {
  /// How often, on average, one thread stops for a while: once per so many switches; 0: never.
  int switches_per_stop = 0;
  double longest_stop_seconds = 0.1;
  /// The process ends after so many switches, with kKilled and without another instruction; 0:
  /// never. For a child process.
  std::uint64_t killed_after = 0;
};

constexpr int kKilled = 137;

struct Outcome {
  std::uint64_t switches = 0;
  double seconds = 0;  // virtual
  int threads = 0;
};

/// Runs a function under a seed, to the end of all threads. Where no thread can go on, or nothing
/// ends, it reports the threads with the seed and ends the process, as after a crash.
Outcome simulate(std::uint64_t seed, const Faults& faults, const std::function<void()>& body);

/// A random number of the current seed, below `count`.
std::uint64_t draw(std::uint64_t count);
/// Whether the caller runs under simulate().
bool is_simulated();
/// Stops all threads whose root is that of the caller (see start_process()) for virtual seconds,
/// from the next switch on.
void stop_process(int process, double seconds);
/// From here on the calling thread and those that it starts belong to a process of that number.
void become_process(int process);
/// Lets the seed choose who goes on.
void switch_point();
/// The running thread waits without blocking: others come first, whatever their priority was.
void give_way();

// For posix_threads.cpp.
std::uint64_t create(void* (*function)(void*), void* argument);
void join(std::uint64_t thread);
void lock(int& word, const void* mutex);
bool try_lock(int& word);
void unlock(int& word, const void* mutex);
/// Returns false on timeout. `deadline`: virtual nanoseconds; negative: none.
bool wait(const void* condition, int& word, const void* mutex, std::int64_t deadline);
void wake(const void* condition, bool all);
std::int64_t clock_nanoseconds();
void sleep_until(std::int64_t nanoseconds);
void set_name(const char* name);

}  // namespace pipetrain::simulation
