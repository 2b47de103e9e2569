// Memory mapped directly from the operating system. The first touch of a page is slow: the system
// zeroes it, and in a virtual machine the host may have to allocate it first. So all threads of a
// stage populate its block in parallel before any kernel runs.
#pragma once

#include <cstddef>

namespace pipetrain {

/// A page-aligned block of zeroed memory. Movable, not copyable.
class PageBlock {
 public:
  PageBlock() = default;
  /// Error (kResource) when the mapping fails.
  explicit PageBlock(std::size_t bytes);
  PageBlock(PageBlock&& other) noexcept { swap(other); }
  PageBlock& operator=(PageBlock&& other) noexcept {
    swap(other);
    return *this;
  }
  PageBlock(const PageBlock&) = delete;
  PageBlock& operator=(const PageBlock&) = delete;
  ~PageBlock();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  /// Populates all pages with the calling thread's OpenMP team. The content is kept.
  void take() const;

 private:
  void swap(PageBlock& other) noexcept;

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace pipetrain
