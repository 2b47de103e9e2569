// Builds a fresh ONNX model, piece by piece, and writes it: for the model zoo and the tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onnx_io/encode.h"
#include "onnx_io/model.h"

namespace pipetrain {

struct BuiltModelOptions {
  std::int64_t opset = 17;
  std::int64_t ir_version = 8;
};

/// The caller ensures unique names; the model is not checked (read it back for that).
class OnnxBuilder {
 public:
  explicit OnnxBuilder(std::string graph_name, BuiltModelOptions options = {});

  void input(std::string name, DType dtype, std::vector<OnnxDim> dims);
  void output(std::string name, DType dtype, std::vector<OnnxDim> dims);
  void initializer(std::string name, HostTensor value);
  /// A tensor that `make` fills each time the model is written, so that large ones are in memory
  /// one at a time only.
  void initializer(std::string name, TensorType type, std::function<HostTensor()> make);
  void node(std::string op_type, std::vector<std::string> inputs, std::vector<std::string> outputs,
            std::vector<OnnxAttribute> attributes = {}, std::string name = {},
            std::string domain = {});
  void metadata(std::string key, std::string value);
  /// Imports another domain than the standard's.
  void import(std::string domain, std::int64_t version);

  /// The file as bytes, everything inside.
  std::string bytes() const;
  /// Writes the file atomically. If its tensors take more than `external_above` bytes together,
  /// those of floating-point numbers go to "<file name>.data" beside it; integers stay inside,
  /// since they say shapes. Error (kResource).
  void write(const std::filesystem::path& path, std::uint64_t external_above = 1'900'000'000) const;
  /// The same without tensor data: "<file name>.data" is a sparse file of zeros that takes no disk
  /// space. Such a model can be planned. Returns the size of the sparse file.
  std::uint64_t write_hollow(const std::filesystem::path& path) const;
  /// Bytes of all tensors.
  std::uint64_t tensor_bytes() const;

 private:
  struct Initializer {
    std::string name;
    TensorType type;
    HostTensor value;
    std::function<HostTensor()> make;  // empty: `value` is it

    HostTensor content() const { return make ? make() : value; }
  };
  /// Where each initializer is stored; inside the model if it has no place.
  using Places = std::vector<std::optional<ExternalPlace>>;

  Places places_outside(const std::string& data_name,
                        const std::function<bool(const Initializer&)>& is_outside) const;
  std::string encode(const Places& places) const;

  std::string graph_name_;
  BuiltModelOptions options_;
  std::vector<OnnxValue> inputs_;
  std::vector<OnnxValue> outputs_;
  std::vector<Initializer> initializers_;
  std::vector<OnnxNode> nodes_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::vector<std::pair<std::string, std::int64_t>> imports_;
};

}  // namespace pipetrain
