#include "partition/topology.h"

namespace pipetrain {

int Topology::group_size(int level) const {
  int size = 1;
  for (int l = 0; l <= level; ++l) size *= levels[static_cast<std::size_t>(l)].count;
  return size;
}

int Topology::devices() const { return group_size(static_cast<int>(levels.size()) - 1); }

int Topology::common_level(int device, int other) const {
  if (device == other) return -1;
  int level = 0;
  while (level + 1 < static_cast<int>(levels.size()) &&
         device / group_size(level) != other / group_size(level)) {
    ++level;
  }
  return level;
}

}  // namespace pipetrain
