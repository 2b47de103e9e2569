#include "ops/kernel/channel_block.h"

#include <algorithm>

namespace pipetrain {

std::int64_t channel_block(const TensorType& type) {
  switch (type.layout) {
    case Layout::kRowMajor:
    case Layout::kPaddedRows:
      return 1;
    case Layout::kBlocked8:
      return 8;
    case Layout::kBlocked16:
      return 16;
    case Layout::kChannelsLast:
      return std::max<std::int64_t>(1, type.shape[1]);
  }
  return 1;
}

bool fills_blocks(const Shape& shape, std::int64_t block) {
  return shape.rank() >= 3 && shape.rank() <= 5 && shape[1] % block == 0;
}

}  // namespace pipetrain
