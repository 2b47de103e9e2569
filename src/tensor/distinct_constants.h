// Constants by their bytes. The networks of all sizes of micro-batches read the same constants, but
// each network has tensors of its own for what it converts from another type or folds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace pipetrain {

class DistinctConstants {
 public:
  struct Found {
    std::size_t index;  // among the distinct ones, in the order of their addition
    bool added;         // no earlier one has these bytes
  };
  /// `constant` must outlive this object and keep its bytes.
  Found add(const HostTensor& constant);

 private:
  struct Known {
    const void* data;
    std::size_t index;
  };
  std::size_t count_ = 0;
  /// By bytes and checksum of the first ones.
  std::map<std::pair<std::size_t, std::uint32_t>, std::vector<Known>> known_;
};

}  // namespace pipetrain
