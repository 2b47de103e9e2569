#include "pipeline/stage/lifetimes.h"

#include <algorithm>
#include <numeric>

namespace pipetrain {

std::vector<PackedPlace> pack_into(const std::vector<Lifetime>& buffers,
                                   const std::vector<PlacedLifetime>& taken,
                                   std::size_t inside_bytes, std::size_t* total) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Large first: the small ones fit into what is left between them.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return buffers[a].bytes > buffers[b].bytes;
  });
  std::vector<PackedPlace> places(buffers.size());
  const auto lies_before = [](const PlacedLifetime& a, const PlacedLifetime& b) {
    return a.offset < b.offset;
  };
  std::vector<PlacedLifetime> inside = taken, outside;  // by offset
  std::sort(inside.begin(), inside.end(), lies_before);
  *total = 0;
  // The first gap between those of `placed` that live at the same time.
  const auto first_gap = [](const Lifetime& buffer, const std::vector<PlacedLifetime>& placed) {
    std::size_t offset = 0;
    for (const PlacedLifetime& other : placed) {
      if (other.lifetime.first > buffer.last || buffer.first > other.lifetime.last) continue;
      if (offset + aligned(buffer.bytes) <= other.offset) break;
      offset = std::max(offset, other.offset + aligned(other.lifetime.bytes));
    }
    return offset;
  };
  for (const std::size_t i : order) {
    const Lifetime& buffer = buffers[i];
    PackedPlace& place = places[i];
    place.offset = first_gap(buffer, inside);
    place.inside = buffer.bytes > 0 && place.offset + aligned(buffer.bytes) <= inside_bytes;
    if (!place.inside) {
      place.offset = first_gap(buffer, outside);
      *total = std::max(*total, place.offset + aligned(buffer.bytes));
    }
    std::vector<PlacedLifetime>& placed = place.inside ? inside : outside;
    const PlacedLifetime here{buffer, place.offset};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), here, lies_before), here);
  }
  return places;
}

std::vector<std::size_t> pack(const std::vector<Lifetime>& buffers, std::size_t* total) {
  std::vector<std::size_t> offsets;
  for (const PackedPlace& place : pack_into(buffers, {}, 0, total)) offsets.push_back(place.offset);
  return offsets;
}

}  // namespace pipetrain
