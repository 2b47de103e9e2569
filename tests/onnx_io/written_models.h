// A directory of models that tests of the writer save, change and compare.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "onnx_io/encode.h"
#include "onnx_io/reader.h"
#include "onnx_io/writer.h"
#include "support/onnx_parts.h"
#include "support/temporary_directory.h"

namespace pipetrain::written_models {

namespace fs = std::filesystem;

inline std::string bytes_of(const std::vector<float>& values) {
  std::string out(values.size() * sizeof(float), '\0');
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

inline HostTensor float_tensor(const std::vector<float>& values) {
  return HostTensor::of<float>(Shape{static_cast<std::int64_t>(values.size())}, values);
}

inline HostTensor matrix(float value) {
  return HostTensor::of<float>({4, 4}, std::vector<float>(16, value));
}

class WriterTest : public ::testing::Test {
 protected:
  // A file with every way to store floats: names, types and payloads around the bytes under
  // test.
  static ModelParts all_encodings() {
    ModelParts parts = small_model();
    std::string unpacked;
    for (const char* part : {"\x25\x00\x00\x80\x3f", "\x25\x00\x00\x00\x40"}) {
      unpacked += std::string(part, 5);
    }
    // Doubles 1 and 2; halves 0x3c00 (1) and 0x4000 (2); bfloat16 0x3f80 and 0x4000.
    const std::string doubles("\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\x40", 16);
    const std::string halves = field(5, std::int64_t{0x3c00}) + field(5, std::int64_t{0x4000});
    const std::string packed_halves = field(5, std::string("\x80\x78\x80\x80\x01", 5));
    const std::string bfloats = field(5, std::int64_t{0x3f80}) + field(5, std::int64_t{0x4000});
    parts.initializers.push_back(tensor_part("raw", {2}, 1, raw_data(bytes_of({1, 2}))));
    parts.initializers.push_back(tensor_part("packed", {2}, 1, field(4, bytes_of({1, 2}))));
    parts.initializers.push_back(tensor_part("unpacked", {2}, 1, unpacked));
    parts.initializers.push_back(tensor_part("double", {2}, 11, field(10, doubles)));
    parts.initializers.push_back(
        tensor_part("half_raw", {2}, 10, raw_data(std::string("\0\x3c\0\x40", 4))));
    parts.initializers.push_back(tensor_part("half", {2}, 10, halves));
    parts.initializers.push_back(tensor_part("half_packed", {2}, 10, packed_halves));
    parts.initializers.push_back(tensor_part("bfloat", {2}, 16, bfloats));
    parts.initializers.push_back(encode_tensor("steps", HostTensor::scalar<std::int64_t>(3)));
    parts.nodes.push_back(node_part("Constant", {}, {"constant"},
                                    {OnnxAttribute::of_tensor("value", float_tensor({1, 2}))}));
    parts.nodes.push_back(node_part("Constant", {}, {"constant_list"},
                                    {OnnxAttribute::of_floats("value_floats", {1, 2})}));
    parts.nodes.push_back(node_part("Constant", {}, {"constant_scalar"},
                                    {OnnxAttribute::of_float("value_float", 1)}));
    parts.model_tail = field(100, "a field from the future") + field(14, encode_pair("k", "v"));
    return parts;
  }

  OnnxModel save(const ModelParts& parts, const std::string& name = "in.onnx") {
    put_file(directory_ / name, parts.bytes());
    return read_onnx(directory_ / name);
  }

  static std::vector<double> value(const OnnxModel& model, const std::string& name) {
    if (const OnnxInitializer* found = model.find_initializer(name)) {
      return found->value.to_doubles();
    }
    const auto node = std::ranges::find_if(
        model.nodes, [&](const OnnxNode& n) { return n.outputs.at(0) == name; });
    return constant_value(*node).to_doubles();
  }

  static ErrorKind kind_of_failure(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kAssertion;
  }

  std::ptrdiff_t count_entries() const {
    return std::distance(fs::directory_iterator(directory_.path()), fs::directory_iterator());
  }

  TemporaryDirectory directory_;
};

/// Names of the tensors of all_encodings().
inline const std::vector<std::string> kEncodings = {
    "raw",  "packed",      "unpacked", "double",   "half_raw",
    "half", "half_packed", "bfloat",   "constant", "constant_list"};

}  // namespace pipetrain::written_models
