// Model files that are broken, or made to harm whoever opens them. Each must be refused with one
// sentence: the readers of bytes refuse some, later passes the rest.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pipetrain {

struct HostileModel {
  std::string name;
  std::filesystem::path path;
  /// Part of the sentence that is expected; empty where later passes word it.
  std::string message;
  /// True if reading alone must fail; false if the file reads well and training it is what fails.
  bool fails_to_read = true;
};

/// Writes every hostile model, and the data files that some need, beneath `directory`.
std::vector<HostileModel> hostile_files(const std::filesystem::path& directory);

}  // namespace pipetrain
