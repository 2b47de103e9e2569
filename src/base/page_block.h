// Memory taken straight from the system, page by page. The first touch of a page is slow: the
// system zeroes it then, and where it is itself a guest its host may have to find the memory first.
// So all threads of a stage take the pages of its block together, before any kernel runs.
#pragma once

#include <cstddef>

namespace pipetrain {

/// A block of zeroed memory that begins at a page. Movable, not copyable.
class PageBlock {
 public:
  PageBlock() = default;
  /// Error (kResource) when the system does not give so much address space.
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

  /// Takes all pages with the calling thread's OpenMP team. What the block holds stays.
  void take() const;

 private:
  void swap(PageBlock& other) noexcept;

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace pipetrain
