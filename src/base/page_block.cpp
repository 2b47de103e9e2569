#include "base/page_block.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "base/parallel_blocks.h"
#include "base/units.h"

namespace pipetrain {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// MADV_POPULATE_WRITE of Linux 5.14, missing in older headers.
constexpr int kPopulateWrite = 23;

void touch(std::byte* data, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (std::size_t at = 0; at < bytes; at += page)
    std::atomic_ref(reinterpret_cast<unsigned char&>(data[at])).fetch_or(0);
}

}  // namespace

PageBlock::PageBlock(std::size_t bytes, bool huge_pages) : bytes_(bytes) {
  if (bytes == 0) return;
  const std::size_t alignment = huge_pages ? kHugePage : 0;
  mapped_bytes_ = bytes + alignment;
  void* memory = mapped_bytes_ < bytes ? MAP_FAILED
                                       : ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  PT_CHECK(memory != MAP_FAILED, kResource, "not enough memory: {} more were asked for",
           bytes_text(bytes));
  mapping_ = memory;
  data_ = static_cast<std::byte*>(memory);
  if (!huge_pages) return;
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  data_ += (kHugePage - address % kHugePage) % kHugePage;
  // No effect if the system has none.
  ::madvise(data_, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
}

PageBlock::~PageBlock() {
  if (mapping_) ::munmap(mapping_, mapped_bytes_);
}

void PageBlock::swap(PageBlock& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
}

void PageBlock::use_small_pages(std::size_t begin, std::size_t bytes) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = (begin + page - 1) / page * page, last = (begin + bytes) / page * page;
  if (first < last) ::madvise(data_ + first, last - first, MADV_NOHUGEPAGE);
}

void PageBlock::take() const {
  in_parallel_blocks(bytes_, [&](std::size_t begin, std::size_t bytes) {
    if (::madvise(data_ + begin, bytes, kPopulateWrite) != 0) touch(data_ + begin, bytes);
  });
}

void PageBlock::release() const {
  if (data_) ::madvise(data_, bytes_, MADV_DONTNEED);
}

}  // namespace pipetrain
