#include "tensor/distinct_constants.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/checksum.h"

namespace pipetrain {

DistinctConstants::Found DistinctConstants::add(const HostTensor& constant) {
  const auto* data = static_cast<const std::byte*>(constant.view().data);
  const std::size_t bytes = constant.type().bytes();
  // Enough to tell most tensors of a network apart: only equal ones are read as a whole.
  constexpr std::size_t kFirst = 4096;
  const std::uint32_t checksum = crc32c(std::span(data, std::min(bytes, kFirst)));
  std::vector<Known>& alike = known_[{bytes, checksum}];
  const auto found = std::ranges::find_if(alike, [&](const Known& one) {
    return one.data == data || bytes == 0 || std::memcmp(one.data, data, bytes) == 0;
  });
  if (found != alike.end()) return {found->index, false};
  alike.push_back({data, count_});
  return {count_++, true};
}

}  // namespace pipetrain
