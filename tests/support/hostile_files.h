// The class that writes the hostile models (hostile_models.h): files that fail to read in
// hostile_models.cpp, those that only a later pass may refuse in hostile_nodes.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnx_io/encode.h"
#include "support/hostile_models.h"
#include "support/onnx_parts.h"

namespace pipetrain {

inline constexpr std::int64_t kHuge = std::int64_t{1} << 40;

/// Writes hostile models into a directory and lists them.
class HostileFiles {
 public:
  explicit HostileFiles(std::filesystem::path directory) : directory_(std::move(directory)) {
    std::filesystem::create_directories(directory_);
  }

  std::vector<HostileModel> write();

 private:
  using OnnxAttributes = std::vector<OnnxAttribute>;
  using Edit = std::function<void(ModelParts&)>;

  void add(const std::string& name, std::string_view bytes, const std::string& message,
           bool fails_to_read = true);

  void edited(const std::string& name, const std::string& message, const Edit& edit);

  // The weight replaced by another encoding of it.
  void weight(const std::string& name, const std::string& message, const std::string& tensor);

  void other_formats();
  void damaged_bytes();

  static std::string fmt_name(const std::string& stem, int number);

  // A node with a sub-graph with a node with a sub-graph …
  static std::string nested_if(int depth);

  void deep_nesting();
  void headers();
  void graphs();
  void values();
  void attributes();
  void tensors();
  void external_tensors();
  void functions();
  void too_many();

  // One node between x (1, 4) and y that reads well and means harm, or nothing.
  void later(const std::string& name, std::vector<std::string> nodes,
             const std::vector<std::pair<std::string, HostTensor>>& constants = {});

  void for_later_passes();
  void wrong_nodes();
  void wrong_shapes_and_ranges();
  void wrong_windows();
  void wrong_extents();

  // An image (1, 2, 8, 8) through one Conv with a weight of (4, 2, 3, 3).
  void conv(const std::string& name, const OnnxAttributes& with);

  void pool(const std::string& name, const OnnxAttributes& with);

  std::filesystem::path directory_;
  std::vector<HostileModel> out_;
};

}  // namespace pipetrain
