// The machine model of the planner: devices in nested groups, with links per level.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace pipetrain {

/// One level of the hierarchy, innermost first: `count` groups of the level below (devices at the
/// lowest level), joined by links of this speed.
struct TopologyLevel {
  std::string name;  // "NVLink", "rail"
  int count = 1;
  double bytes_per_second = 0;  // of one link in one direction
  double latency_seconds = 0;   // of one message
  /// bytes_per_second of sums of gradients, where it differs: processes of one host may read each
  /// other's memory. 0: it does not.
  double all_reduce_bytes_per_second = 0;

  double all_reduce_rate() const {
    return all_reduce_bytes_per_second > 0 ? all_reduce_bytes_per_second : bytes_per_second;
  }
};

struct Topology {
  std::string name;
  std::vector<TopologyLevel> levels;
  /// Of one device; 0 where it is not known.
  std::size_t memory_bytes = 0;
  double flops_per_second = 0;         // that a well-shaped matrix product reaches
  double memory_bytes_per_second = 0;  // that a large copy reaches
  /// Relative speeds of the devices in their order, 1 for a full one; empty: all equal.
  std::vector<double> device_speed;

  /// Product of the counts.
  int devices() const;
  /// The innermost level whose groups hold both devices; -1 for one and the same device.
  int common_level(int device, int other) const;
  /// Devices in one group of a level: the product of the counts up to it.
  int group_size(int level) const;
};

}  // namespace pipetrain
