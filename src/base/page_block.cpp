#include "base/page_block.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace pipetrain {
namespace {

constexpr std::size_t kChunk = std::size_t{4} << 20;  // bytes that a thread populates at a time

/// MADV_POPULATE_WRITE of Linux 5.14, missing in older headers.
constexpr int kPopulateWrite = 23;

void touch(std::byte* data, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (std::size_t at = 0; at < bytes; at += page)
    std::atomic_ref(reinterpret_cast<unsigned char&>(data[at])).fetch_or(0);
}

}  // namespace

PageBlock::PageBlock(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  PT_CHECK(memory != MAP_FAILED, kResource, "not enough memory: {} more were asked for",
           bytes_text(bytes));
  data_ = static_cast<std::byte*>(memory);
}

PageBlock::~PageBlock() {
  if (data_) ::munmap(data_, bytes_);
}

void PageBlock::swap(PageBlock& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
}

void PageBlock::take() const {
  const auto chunks = static_cast<std::int64_t>((bytes_ + kChunk - 1) / kChunk);
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t i = 0; i < chunks; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * kChunk;
    const std::size_t bytes = std::min(kChunk, bytes_ - at);
    if (::madvise(data_ + at, bytes, kPopulateWrite) != 0) touch(data_ + at, bytes);
  }
}

}  // namespace pipetrain
