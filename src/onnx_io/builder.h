// Builds a fresh ONNX model, piece by piece, and writes it: for the model zoo and the tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "onnx_io/model.h"

namespace pipetrain {

struct BuiltModelOptions {
  std::int64_t opset = 17;
  std::int64_t ir_version = 8;
};

/// Names are unique by the caller's care; what is built is not checked (read it back for that).
class OnnxBuilder {
 public:
  explicit OnnxBuilder(std::string graph_name, BuiltModelOptions options = {});

  void input(std::string name, DType dtype, std::vector<OnnxDim> dims);
  void output(std::string name, DType dtype, std::vector<OnnxDim> dims);
  void initializer(std::string name, HostTensor value);
  void node(std::string op_type, std::vector<std::string> inputs, std::vector<std::string> outputs,
            std::vector<OnnxAttribute> attributes = {}, std::string name = {},
            std::string domain = {});
  void metadata(std::string key, std::string value);
  /// Imports another domain than the standard's.
  void import(std::string domain, std::int64_t version);

  /// The file as bytes, everything inside.
  std::string bytes() const;
  /// Writes the file atomically. If its tensors take more than `external_above` bytes together,
  /// they go to "<file name>.data" beside it. Error (kResource).
  void write(const std::filesystem::path& path, std::uint64_t external_above = 1'900'000'000) const;

 private:
  std::string encode(const std::string& data_name, std::vector<std::uint64_t>* offsets) const;

  std::string graph_name_;
  BuiltModelOptions options_;
  std::vector<OnnxValue> inputs_;
  std::vector<OnnxValue> outputs_;
  std::vector<std::pair<std::string, HostTensor>> initializers_;
  std::vector<OnnxNode> nodes_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::vector<std::pair<std::string, std::int64_t>> imports_;
};

}  // namespace pipetrain
