#include "train/two_copies.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"

namespace pipetrain {
namespace {

/// What a copy begins with.
struct Head {
  std::atomic<std::uint64_t> number;  // the larger one is newer; 0: not whole
  std::uint64_t bytes;                // of the content, which follows
  std::uint32_t crc32c;               // of the content
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
constexpr std::size_t kHeadBytes = 64;
static_assert(sizeof(Head) <= kHeadBytes);

Head& head_of(std::byte* memory) { return *reinterpret_cast<Head*>(memory); }

std::size_t size_of(int file) {
  struct stat status {};
  return ::fstat(file, &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
}

}  // namespace

TwoCopies::TwoCopies(std::array<int, 2> files) {
  for (std::size_t i = 0; i < files.size(); ++i) copies_[i].file = files[i];
}

TwoCopies::TwoCopies(TwoCopies&& other) noexcept : copies_(std::exchange(other.copies_, {})) {}

TwoCopies::~TwoCopies() {
  for (const Copy& copy : copies_) {
    if (copy.memory) ::munmap(copy.memory, copy.bytes);
    if (copy.file >= 0) ::close(copy.file);
  }
}

void TwoCopies::forget() {
  for (Copy& copy : copies_) {
    if (copy.memory) ::munmap(copy.memory, copy.bytes);
    copy.memory = nullptr;
    copy.bytes = 0;
    [[maybe_unused]] const int ignored = ::ftruncate(copy.file, 0);
  }
}

/// Makes a copy's memory at least that large, and resident.
void TwoCopies::map(Copy& copy, std::size_t bytes) {
  if (bytes <= copy.bytes) return;
  if (copy.memory) ::munmap(copy.memory, copy.bytes);
  copy.memory = nullptr;
  copy.bytes = 0;
  int failure = ::posix_fallocate(copy.file, 0, static_cast<off_t>(bytes));
  void* memory = MAP_FAILED;
  if (failure == 0) {
    memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, copy.file, 0);
    if (memory == MAP_FAILED) failure = errno;
  }
  PT_CHECK(failure == 0, kResource, "a copy of the run's state in memory needs 2 x {}: {}",
           bytes_text(bytes), std::strerror(failure));
  copy.memory = static_cast<std::byte*>(memory);
  copy.bytes = bytes;
}

std::span<const std::byte> TwoCopies::content(const Copy& copy) {
  return {copy.memory + kHeadBytes, head_of(copy.memory).bytes};
}

bool TwoCopies::is_whole(const Copy& copy) {
  const Head& head = head_of(copy.memory);
  return head.number != 0 && head.bytes <= copy.bytes - kHeadBytes &&
         crc32c(content(copy)) == head.crc32c;
}

void TwoCopies::keep_only(const std::function<bool(std::span<const std::byte>)>& keeps) {
  for (Copy& copy : copies_) {
    const std::size_t bytes = size_of(copy.file);
    if (bytes <= kHeadBytes) continue;
    map(copy, bytes);
    if (!is_whole(copy) || !keeps(content(copy))) head_of(copy.memory).number = 0;
  }
}

void TwoCopies::reserve(std::size_t size) {
  const std::size_t bytes = kHeadBytes + size;
  for (Copy& copy : copies_) {
    // What an earlier process has left there is still needed.
    if (bytes > copy.bytes) map(copy, std::max(size_of(copy.file), bytes + bytes / 8));
  }
}

double TwoCopies::keep(std::size_t size, const std::function<void(std::byte*)>& write) {
  reserve(size);
  const double start = steady_seconds();
  const bool second = head_of(copies_[1].memory).number < head_of(copies_[0].memory).number;
  Copy& copy = copies_[second ? 1 : 0];
  const std::uint64_t newest = head_of(copies_[second ? 0 : 1].memory).number;
  Head& head = head_of(copy.memory);
  head.number.store(0, std::memory_order_seq_cst);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  write(copy.memory + kHeadBytes);
  head.bytes = size;
  head.crc32c = crc32c(content(copy));
  head.number.store(newest + 1, std::memory_order_seq_cst);
  return steady_seconds() - start;
}

void TwoCopies::look_at(const std::function<bool(std::span<const std::byte>)>& look) const {
  std::array<Copy, 2> copies = copies_;
  for (Copy& copy : copies) {
    copy.memory = nullptr;
    copy.bytes = 0;
    if (const std::size_t bytes = size_of(copy.file); bytes > kHeadBytes) map(copy, bytes);
  }
  const auto number = [](const Copy& copy) {
    return copy.memory ? head_of(copy.memory).number.load() : std::uint64_t{0};
  };
  if (number(copies[0]) < number(copies[1])) std::swap(copies[0], copies[1]);
  bool found = false;
  for (const Copy& copy : copies) {
    if (!found && copy.memory) found = is_whole(copy) && look(content(copy));
  }
  for (const Copy& copy : copies) {
    if (copy.memory) ::munmap(copy.memory, copy.bytes);
  }
}

}  // namespace pipetrain
