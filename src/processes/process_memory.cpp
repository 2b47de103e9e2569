#include "processes/process_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace pipetrain {

int read_process_memory(std::int64_t process, std::uint64_t from, void* to, std::size_t bytes) {
  auto* next = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const iovec here{next, bytes};
    const iovec there{reinterpret_cast<void*>(from), bytes};  // NOLINT: an address over there
    const ssize_t count = process_vm_readv(static_cast<pid_t>(process), &here, 1, &there, 1, 0);
    if (count < 0) return errno;
    if (count == 0) return EFAULT;
    next += count;
    from += static_cast<std::uint64_t>(count);
    bytes -= static_cast<std::size_t>(count);
  }
  return 0;
}

}  // namespace pipetrain
