// Libraries in C get their memory here, and never a null pointer: oneDNN's products and the OpenMP
// runtime go on with one. A small request of operator new ends the program, too: nothing is left to
// unwind with, and a library that an exception interrupts (oneDNN's caches) crashes in its other
// threads. A large one throws; Buffer and PageBlock ask the system themselves and name what they are
// for.
#include "out_of_memory.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "base/error.h"
#include "base/parallel_blocks.h"
#include "base/safe_text.h"

namespace pipetrain {
namespace {

constexpr int kExitCode = static_cast<int>(ErrorKind::kResource);

std::atomic<std::size_t> asked_for{0};  // by the last request that failed

struct Text {
  char characters[32];
};
/// As bytes_text(), without memory.
Text bytes_in_place(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  Text text;
  std::snprintf(text.characters, sizeof text.characters, "%.3g %s", bytes, kUnits[unit]);
  return text;
}

/// Address space of the process in bytes; 0 if unknown.
double address_space() {
  char text[64] = {};
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t got = ::read(file, text, sizeof text - 1);
  ::close(file);
  return got > 0 ? std::strtod(text, nullptr) * static_cast<double>(::sysconf(_SC_PAGESIZE)) : 0;
}

/// What the process has of a limit, or what the machine has left.
void describe_memory(char* text, std::size_t size) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    std::snprintf(text, size, "the process uses %s of the %s that its limit allows (ulimit -v)",
                  bytes_in_place(address_space()).characters,
                  bytes_in_place(static_cast<double>(limit.rlim_cur)).characters);
    return;
  }
  struct sysinfo machine {};
  ::sysinfo(&machine);
  const double free = static_cast<double>(machine.freeram) * machine.mem_unit;
  const double all = static_cast<double>(machine.totalram) * machine.mem_unit;
  std::snprintf(text, size, "%s of the machine's %s are free", bytes_in_place(free).characters,
                bytes_in_place(all).characters);
}

void write_all(const char* text) {
  const char* const end = text + std::strlen(text);
  while (text < end) {
    const ssize_t done = ::write(STDERR_FILENO, text, static_cast<std::size_t>(end - text));
    if (done <= 0) return;
    text += done;
  }
}

/// One thread says why the process ends; others that fail meanwhile wait for its end.
void be_the_only_one_to_report() {
  static std::atomic<pid_t> reporting{0};
  const pid_t me = ::gettid();
  pid_t nobody = 0;
  if (reporting.compare_exchange_strong(nobody, me)) return;
  if (nobody == me) ::_exit(kExitCode);  // not even for the end is there enough
  for (;;) ::pause();
}

[[noreturn]] void end_without_memory(std::size_t bytes) {
  asked_for = bytes;
  report_out_of_memory();
  ::_exit(kExitCode);
}

[[noreturn]] void end_without_thread(int reason) {
  be_the_only_one_to_report();
  char memory[160], text[400];
  describe_memory(memory, sizeof memory);
  rlimit limit{};
  ::getrlimit(RLIMIT_NPROC, &limit);
  char processes[80] = "";
  if (limit.rlim_cur != RLIM_INFINITY)
    std::snprintf(processes, sizeof processes, ", at most %llu of the user may run (ulimit -u)",
                  static_cast<unsigned long long>(limit.rlim_cur));
  std::snprintf(text, sizeof text,
                "error: cannot start another thread: %s%s; %s; use fewer --threads or --stages\n",
                reason == EAGAIN ? "the system gives no more" : "not enough memory", processes,
                memory);
  write_all(text);
  ::_exit(kExitCode);
}

[[noreturn]] void on_terminate() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
    write_all("error: the program ended itself\nthis is a bug in pipetrain; please report it\n");
  } catch (const std::bad_alloc&) {
    ::_exit(report_out_of_memory());
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", safe_text(error.what()).c_str());
    ::_exit(static_cast<int>(error.kind()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\nthis is a bug in pipetrain; please report it\n", error.what());
  } catch (...) {
  }
  ::_exit(static_cast<int>(ErrorKind::kInternal));
}

}  // namespace

int report_out_of_memory() {
  be_the_only_one_to_report();
  char memory[160], text[300];
  describe_memory(memory, sizeof memory);
  const std::size_t bytes = asked_for;
  if (bytes > 0) {
    std::snprintf(text, sizeof text,
                  "error: not enough memory: %s more were asked for, and %s; use a smaller "
                  "--micro-batch-size\n",
                  bytes_in_place(static_cast<double>(bytes)).characters, memory);
  } else {
    std::snprintf(text, sizeof text, "error: not enough memory: %s\n", memory);
  }
  write_all(text);
  return kExitCode;
}

void report_terminations() {
  std::set_terminate(on_terminate);
  // Loads the library that ends threads, while there is memory for it.
  void* frame = nullptr;
  ::backtrace(&frame, 1);
}

}  // namespace pipetrain

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

template <class Function>
static Function* next_function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// The allocator of glibc under the names that it exports for this.
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) {
  void* memory = __libc_malloc(bytes);
  if (!memory) pipetrain::end_without_memory(bytes);
  return memory;
}
void* calloc(std::size_t count, std::size_t bytes) {
  void* memory = __libc_calloc(count, bytes);
  if (!memory) pipetrain::end_without_memory(count * bytes);
  return memory;
}
void* realloc(void* old, std::size_t bytes) {
  void* memory = __libc_realloc(old, bytes);
  if (!memory && bytes > 0) pipetrain::end_without_memory(bytes);
  return memory;
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  *memory = __libc_memalign(alignment, bytes);
  if (!*memory) pipetrain::end_without_memory(bytes);
  return 0;
}

// Code that oneDNN compiles goes into mappings, and it goes on without them. Large ones are this
// program's own or files, whose failure has better words.
void* mmap(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) {
  constexpr std::size_t kLarge = std::size_t{4} << 20;
  static const auto map = next_function<decltype(mmap)>("mmap");
  void* memory = map(address, bytes, protection, flags, file, offset);
  if (memory == MAP_FAILED && errno == ENOMEM && (flags & MAP_ANONYMOUS) != 0 && bytes < kLarge)
    pipetrain::end_without_memory(bytes);
  return memory;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) {
  static const auto create = next_function<decltype(pthread_create)>("pthread_create");
  const int result = create(thread, attributes, body, argument);
  if (result != 0 && !pipetrain::threads_are_optional) pipetrain::end_without_thread(result);
  return result;
}
}

void* operator new(std::size_t bytes) {
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  void* memory = __libc_malloc(bytes ? bytes : 1);
  if (memory) return memory;
  if (bytes < kLarge) pipetrain::end_without_memory(bytes);
  pipetrain::asked_for = bytes;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return __libc_malloc(bytes ? bytes : 1);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return __libc_malloc(bytes ? bytes : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

#endif
