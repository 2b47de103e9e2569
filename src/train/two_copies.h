// Two copies in memory that outlives its process. They take turns, so that one is whole whenever
// the process ends.
//
//   kept         1     2     3     4  killed
//   copy 0      [1]         [3]
//   copy 1            [2]         [4, partly]      → 3 is the newest that is whole
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>

namespace pipetrain {

class TwoCopies {
 public:
  /// Descriptors of files of memory, which it closes.
  explicit TwoCopies(std::array<int, 2> files);
  TwoCopies(TwoCopies&& other) noexcept;
  TwoCopies& operator=(TwoCopies&&) = delete;
  ~TwoCopies();

  /// Takes memory for copies of that many bytes. Error (kResource) when there is not enough.
  void reserve(std::size_t bytes);
  /// Has `write` fill the older copy with that many bytes. Returns the seconds that it took besides
  /// taking memory, which happens once. Error (kResource) when there is not enough.
  double keep(std::size_t bytes, const std::function<void(std::byte*)>& write);
  /// Copies that are damaged or that `keeps` does not want are the next to be overwritten.
  void keep_only(const std::function<bool(std::span<const std::byte>)>& keeps);
  /// Gives the memory back, and with it the copies.
  void forget();
  /// Shows the copies that are whole and unchanged, the newest first, until `look` returns true.
  void look_at(const std::function<bool(std::span<const std::byte>)>& look) const;

 private:
  struct Copy {
    int file = -1;
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  static void map(Copy& copy, std::size_t bytes);
  static std::span<const std::byte> content(const Copy& copy);
  static bool is_whole(const Copy& copy);

  std::array<Copy, 2> copies_;
};

}  // namespace pipetrain
