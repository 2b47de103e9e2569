// Small models and weights for the tests of how tensors are classified and copied.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>

#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/parameters.h"

namespace pipetrain::test {

inline HostTensor equal_elements(Shape shape, float value) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  for (float& x : out.span<float>()) x = value;
  return out;
}

/// Numbers without a pattern, as random ones are.
inline HostTensor scattered(Shape shape) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  float last = 0.3F;
  for (float& x : out.span<float>()) x = (last = 3.9F * last * (1 - last)) - 0.5F;
  return out;
}

inline OnnxModel parsed(const OnnxBuilder& builder) {
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

/// With an input x of 4 x 5 x 5, and an output y.
inline OnnxBuilder image_builder() {
  OnnxBuilder builder("test");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}, {"", 5}, {"", 5}});
  builder.output("y", DType::kFloat32, {});
  return builder;
}

inline TensorUse use_of(const std::map<std::string, TensorRule>& rules, const std::string& name) {
  return rules.at(name).use;
}

}  // namespace pipetrain::test
