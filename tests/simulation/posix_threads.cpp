// The functions that threads, mutexes, condition variables and clocks of the C++ library call.
// Defined in a program they take the place of the C library's. Under simulate() they are the
// scheduler's; elsewhere they call the C library's.
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>

#include "simulation/scheduler.h"

namespace {

using namespace pipetrain::simulation;

template <class Function>
Function* real(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}
#define PT_REAL(name)                              \
  ([] {                                            \
    static auto* const found = real(&name, #name); \
    return found;                                  \
  }())

/// Handles of simulated threads: no address of a real one.
constexpr std::uint64_t kFirstHandle = 0x51D0'0000;

int& word_of(pthread_mutex_t* mutex) { return mutex->__data.__lock; }

std::int64_t nanoseconds_of(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}
timespec timespec_of(std::int64_t nanoseconds) {
  return {nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
}

}  // namespace

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*function)(void*),
                   void* argument) noexcept {
  if (!is_simulated()) return PT_REAL(pthread_create)(thread, attributes, function, argument);
  *thread = kFirstHandle + create(function, argument);
  return 0;
}

int pthread_join(pthread_t thread, void** result) {
  if (!is_simulated()) return PT_REAL(pthread_join)(thread, result);
  join(thread - kFirstHandle);
  return 0;
}

int pthread_detach(pthread_t thread) noexcept {
  return is_simulated() ? 0 : PT_REAL(pthread_detach)(thread);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (!is_simulated()) return PT_REAL(pthread_mutex_lock)(mutex);
  lock(word_of(mutex), mutex);
  return 0;
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  if (!is_simulated()) return PT_REAL(pthread_mutex_trylock)(mutex);
  return try_lock(word_of(mutex)) ? 0 : EBUSY;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  if (!is_simulated()) return PT_REAL(pthread_mutex_unlock)(mutex);
  unlock(word_of(mutex), mutex);
  return 0;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (!is_simulated()) return PT_REAL(pthread_cond_wait)(condition, mutex);
  wait(condition, word_of(mutex), mutex, -1);
  return 0;
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* time) {
  if (!is_simulated()) return PT_REAL(pthread_cond_clockwait)(condition, mutex, clock, time);
  return wait(condition, word_of(mutex), mutex, nanoseconds_of(*time)) ? 0 : ETIMEDOUT;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* time) {
  if (!is_simulated()) return PT_REAL(pthread_cond_timedwait)(condition, mutex, time);
  return wait(condition, word_of(mutex), mutex, nanoseconds_of(*time)) ? 0 : ETIMEDOUT;
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (!is_simulated()) return PT_REAL(pthread_cond_signal)(condition);
  wake(condition, false);
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (!is_simulated()) return PT_REAL(pthread_cond_broadcast)(condition);
  wake(condition, true);
  return 0;
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (!is_simulated()) return PT_REAL(clock_gettime)(clock, time);
  *time = timespec_of(clock_nanoseconds());
  return 0;
}

int nanosleep(const timespec* time, timespec* left) {
  if (!is_simulated()) return PT_REAL(nanosleep)(time, left);
  sleep_until(clock_nanoseconds() + nanoseconds_of(*time));
  return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  if (!is_simulated()) return PT_REAL(clock_nanosleep)(clock, flags, time, left);
  sleep_until((flags & TIMER_ABSTIME) != 0 ? nanoseconds_of(*time)
                                           : clock_nanoseconds() + nanoseconds_of(*time));
  return 0;
}

int sched_yield() noexcept {
  if (!is_simulated()) return PT_REAL(sched_yield)();
  give_way();
  clock_nanoseconds();
  return 0;
}

int prctl(int option, ...) noexcept {
  va_list arguments;
  va_start(arguments, option);
  unsigned long values[4];
  for (unsigned long& value : values) value = va_arg(arguments, unsigned long);
  va_end(arguments);
  if (!is_simulated()) return PT_REAL(prctl)(option, values[0], values[1], values[2], values[3]);
  if (option == PR_SET_NAME) set_name(reinterpret_cast<const char*>(values[0]));
  return 0;
}

}  // extern "C"
