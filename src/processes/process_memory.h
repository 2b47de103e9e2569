// Reading the memory of another process on this host with process_vm_readv: one copy, without the
// help of the other. Linux allows it between processes of a user, unless a security module or a
// container forbids it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pipetrain {

/// `process`: the process ID; `from`: an address in it. Returns 0 or an error number: ESRCH if the
/// process has ended, EPERM if reading it is forbidden.
int read_process_memory(std::int64_t process, std::uint64_t from, void* to, std::size_t bytes);

}  // namespace pipetrain
