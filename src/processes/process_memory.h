// Reading the memory of another process of this host with process_vm_readv: one copy, without the
// help of the other. Linux allows it between processes of a user, unless a security module or a
// container forbids it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pipetrain {

/// What a process tells others, who find out with it whether they can read its memory: process
/// numbers mean something else in another container.
struct MemoryProbe {
  std::int64_t process = 0;
  std::uint64_t address = 0;  // of `value`
  std::uint64_t value = 0;
};
/// Of this process. It stands for as long as the process lives.
MemoryProbe memory_probe();
bool can_read(const MemoryProbe& probe);
/// Copies memory of a process that can_read(). Error (kDevice) when it is no longer there.
void read_process_memory(std::int64_t process, std::uint64_t from, void* to, std::size_t bytes);

}  // namespace pipetrain
