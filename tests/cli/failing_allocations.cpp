// Loaded before the program's libraries: lets one request for memory or for a thread fail, the n-th of the whole run.
//   PIPETRAIN_FAIL_NTH    which; 0 for none
//   PIPETRAIN_FAIL_KIND   "memory" (allocations and mappings) or "thread"
//   PIPETRAIN_FAIL_COUNT  a file that gets the number of requests at the end
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

std::atomic<long> requests{0};

long number_in(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::strtol(text, nullptr, 10) : 0;
}

bool counts_threads() {
  const char* kind = std::getenv("PIPETRAIN_FAIL_KIND");
  return kind && std::strcmp(kind, "thread") == 0;
}

bool fails(bool thread) {
  static const bool threads = counts_threads();
  static const long nth = number_in("PIPETRAIN_FAIL_NTH");
  if (thread != threads) return false;
  const bool now = ++requests == nth;
  if (now) errno = ENOMEM;
  return now;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

struct Report {
  ~Report() {
    const char* path = std::getenv("PIPETRAIN_FAIL_COUNT");
    const int file = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
    if (file >= 0) dprintf(file, "%ld\n", requests.load());
  }
} report;

}  // namespace

extern "C" {

void* __libc_malloc(std::size_t bytes) {
  static const auto real = next<void*(std::size_t)>("__libc_malloc");
  return fails(false) ? nullptr : real(bytes);
}
void* __libc_calloc(std::size_t count, std::size_t bytes) {
  static const auto real = next<void*(std::size_t, std::size_t)>("__libc_calloc");
  return fails(false) ? nullptr : real(count, bytes);
}
void* __libc_realloc(void* memory, std::size_t bytes) {
  static const auto real = next<void*(void*, std::size_t)>("__libc_realloc");
  return fails(false) ? nullptr : real(memory, bytes);
}
void* __libc_memalign(std::size_t alignment, std::size_t bytes) {
  static const auto real = next<void*(std::size_t, std::size_t)>("__libc_memalign");
  return fails(false) ? nullptr : real(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  static const auto real = next<void*(std::size_t, std::size_t)>("aligned_alloc");
  return fails(false) ? nullptr : real(alignment, bytes);
}
void* mmap(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) {
  static const auto real = next<void*(void*, std::size_t, int, int, int, off_t)>("mmap");
  return fails(false) ? MAP_FAILED : real(address, bytes, protection, flags, file, offset);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  static const auto real = next<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return fails(true) ? EAGAIN : real(thread, attributes, body, argument);
}
}
