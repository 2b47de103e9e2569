// Schedules with one stage on a device, or on several that share its units.
#include <algorithm>

#include "pipeline/schedule/schedule_lists.h"

namespace pipetrain::schedule {
namespace {

/// Calls make(stage, units of a replica) for every device of a chain.
template <class Make>
Lists for_each_replica(const ScheduleOptions& options, Make&& make) {
  Lists lists;
  for (int s = 0; s < options.stages; ++s) {
    const int replicas = options.replicas[static_cast<std::size_t>(s)];
    for (int replica = 0; replica < replicas; ++replica) {
      std::vector<int> units;
      for (int k = replica; k < options.units; k += replicas) units.push_back(k);
      lists.push_back(make(s, units));
    }
  }
  return lists;
}

}  // namespace

Lists forward_chain(const ScheduleOptions& options) {
  return for_each_replica(options, [](int stage, const std::vector<int>& units) {
    List list;
    for (const int unit : units) list.push_back(forward(stage, unit));
    return list;
  });
}

Lists gpipe(const ScheduleOptions& options) {
  return for_each_replica(options, [](int stage, const std::vector<int>& units) {
    List list;
    for (const int unit : units) list.push_back(forward(stage, unit));
    for (const int unit : units) list.push_back(backward(stage, unit));
    return list;
  });
}

Lists one_forward_one_backward(const ScheduleOptions& options) {
  return for_each_replica(options, [&](int stage, const std::vector<int>& units) {
    const std::size_t ahead = std::min(
        units.size(), static_cast<std::size_t>(options.warm[static_cast<std::size_t>(stage)]));
    List list;
    for (std::size_t n = 0; n < ahead; ++n) list.push_back(forward(stage, units[n]));
    for (std::size_t n = ahead; n < units.size(); ++n) {
      list.push_back(forward(stage, units[n]));
      list.push_back(backward(stage, units[n - ahead]));
    }
    for (std::size_t n = units.size() - ahead; n < units.size(); ++n) {
      list.push_back(backward(stage, units[n]));
    }
    return list;
  });
}

Lists zero_bubble(const ScheduleOptions& options) {
  Lists lists;
  for (int s = 0; s < options.stages; ++s) {
    const int ahead = std::min(options.units, options.warm[static_cast<std::size_t>(s)]);
    // Weight gradients wait until as many units are held as the memory allows.
    const int lag = std::max(options.memory_units - 1 - ahead, 0);
    List list;
    int next_weight = 0;
    const auto backward_of = [&](int unit) {
      list.push_back(input_gradient(s, unit));
      if (unit >= lag) list.push_back(weight_gradient(s, next_weight++));
    };
    for (int k = 0; k < ahead; ++k) list.push_back(forward(s, k));
    for (int k = ahead; k < options.units; ++k) {
      list.push_back(forward(s, k));
      backward_of(k - ahead);
    }
    for (int k = options.units - ahead; k < options.units; ++k) backward_of(k);
    while (next_weight < options.units) list.push_back(weight_gradient(s, next_weight++));
    lists.push_back(std::move(list));
  }
  return lists;
}

Lists forward_groups(const Program& program) {
  Lists lists(static_cast<std::size_t>(program.devices));
  for (int first = 0; first < program.units; first += program.devices) {
    const int end = std::min(program.units, first + program.devices);
    for (int s = 0; s < program.stages; ++s) {
      for (int k = first; k < end; ++k) {
        lists[static_cast<std::size_t>(program.device_of(s, k))].push_back(forward(s, k));
      }
    }
  }
  return lists;
}

}  // namespace pipetrain::schedule
