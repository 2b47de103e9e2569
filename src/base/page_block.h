// Memory mapped directly from the operating system. The first touch of a page is slow: the system
// zeroes it, and in a virtual machine the host may have to allocate it first. take() shares that
// work among threads.
#pragma once

#include <cstddef>

namespace pipetrain {

/// A page-aligned block of zeroed memory. Movable, not copyable.
class PageBlock {
 public:
  PageBlock() = default;
  /// Memory is allocated where it is first touched, in huge pages if the system has them and
  /// `huge_pages` asks for them. Error (kResource) when the mapping fails.
  explicit PageBlock(std::size_t bytes, bool huge_pages = false);
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

  /// Pages that lie wholly in this range are allocated one by one, small, where they are touched.
  void use_small_pages(std::size_t begin, std::size_t bytes) const;
  /// Populates all pages with several threads (base/parallel_blocks.h). The content is kept.
  void take() const;
  /// Gives all pages back to the system. The content is zero afterwards.
  void release() const;

 private:
  void swap(PageBlock& other) noexcept;

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  void* mapping_ = nullptr;  // begins before data_ if huge pages need an alignment
  std::size_t mapped_bytes_ = 0;
};

}  // namespace pipetrain
