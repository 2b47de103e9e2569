// A cache of measurements between runs, so that planning the same model again is fast.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace pipetrain {

struct KernelCost {
  double seconds = 0;
  std::size_t workspace_bytes = 0;
};

/// One file for all environments (device, threads, build); an entry is a node's text (op,
/// attributes, types).
class CostCache {
 public:
  /// Reads what there is. A file that cannot be read is ignored with a warning. An empty directory
  /// means no cache.
  CostCache(std::filesystem::path directory, std::string environment);

  std::optional<KernelCost> find(const std::string& key) const;
  void add(const std::string& key, KernelCost cost);
  /// Writes new entries; a failure is a warning, not an error.
  void save();

 private:
  std::filesystem::path path_;
  std::string environment_;
  std::map<std::string, KernelCost> known_;
  std::map<std::string, KernelCost> added_;
};

}  // namespace pipetrain
