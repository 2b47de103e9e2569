#include "processes/process_memory.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "base/error.h"

namespace pipetrain {

namespace {

/// Returns whether all bytes could be read.
bool try_read(std::int64_t process, std::uint64_t from, void* to, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const iovec here{at, bytes};
    const iovec there{reinterpret_cast<void*>(from), bytes};  // NOLINT: an address over there
    const ssize_t count = process_vm_readv(static_cast<pid_t>(process), &here, 1, &there, 1, 0);
    if (count <= 0) return false;
    at += count;
    from += static_cast<std::uint64_t>(count);
    bytes -= static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace

MemoryProbe memory_probe() {
  static const std::uint64_t value = [] {
    std::random_device random;
    return (std::uint64_t{random()} << 32) | random();
  }();
  // Where the security module Yama restricts ptrace, a process has to permit it. As Open MPI does.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  return {getpid(), reinterpret_cast<std::uint64_t>(&value), value};
}

bool can_read(const MemoryProbe& probe) {
  std::uint64_t value = ~probe.value;
  return try_read(probe.process, probe.address, &value, sizeof value) && value == probe.value;
}

void read_process_memory(std::int64_t process, std::uint64_t from, void* to, std::size_t bytes) {
  PT_CHECK(try_read(process, from, to, bytes), kDevice,
           "the memory of process ID {} cannot be read: {}", process, std::strerror(errno));
}

}  // namespace pipetrain
