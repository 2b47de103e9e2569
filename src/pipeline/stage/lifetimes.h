// Places buffers in memory so that those that live at the same time do not overlap.
#pragma once

#include <cstddef>
#include <vector>

namespace pipetrain {

/// Bytes that a tensor takes in an arena: whole cache lines.
constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// Packs buffers with lifetimes into one block: returns their offsets (multiples of 64) and the
/// block's size.
struct Lifetime {
  std::size_t bytes = 0;
  int first = 0, last = 0;  // inclusive
};
std::vector<std::size_t> pack(const std::vector<Lifetime>& buffers, std::size_t* total);

/// The same with an existing block of `inside_bytes` that already holds `taken`: buffers that fit
/// go there, the rest into a new block of size `total`.
struct PlacedLifetime {
  Lifetime lifetime;
  std::size_t offset = 0;
};
struct PackedPlace {
  bool inside = false;
  std::size_t offset = 0;
};
std::vector<PackedPlace> pack_into(const std::vector<Lifetime>& buffers,
                                   const std::vector<PlacedLifetime>& taken,
                                   std::size_t inside_bytes, std::size_t* total);

}  // namespace pipetrain
