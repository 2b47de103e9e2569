// Reading the memory of another process of this host with process_vm_readv: one copy, without the
// help of the other. Linux allows it between processes of a user, unless a security module or a
// container forbids it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pipetrain {

/// What a process sends to others so that they can find out whether they can read its memory: in
/// another container, its process ID may be that of another process.
struct MemoryProbe {
  std::int64_t process = 0;   // its process ID
  std::uint64_t address = 0;  // of `value`
  std::uint64_t value = 0;    // random
};
/// Of this process, which other processes of the same user may read from now on. Valid as long as
/// the process lives.
MemoryProbe memory_probe();
bool can_read(const MemoryProbe& probe);
/// Copies memory of a process for which can_read() was true. Error (kDevice) when it has ended.
void read_process_memory(std::int64_t process, std::uint64_t from, void* to, std::size_t bytes);

}  // namespace pipetrain
