// How many plans cuDNN has for a graph, and their properties.
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace pipetrain {

/// Plans that cuDNN offers, and those kept: with the requested types, deterministic, and within the
/// workspace limit.
struct PlanCount {
  int offered = 0, kept = 0;
  std::set<std::string> names = {};  // of those kept
  std::set<int> notes = {};          // cudnnBackendNumericalNote_t of those kept
  std::int64_t workspace_bytes = 0;  // the maximum over those kept
};

}  // namespace pipetrain
