// Encodes plain structs in the ONNX format.
#pragma once

#include <string>
#include <string_view>

#include "onnx_io/model.h"

namespace pipetrain {

/// Where an encoded tensor's bytes are, if not in the message itself.
struct ExternalPlace {
  std::string location;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// TensorProto with raw_data, or referring to `place`.
std::string encode_tensor(std::string_view name, const HostTensor& value,
                          const ExternalPlace* place = nullptr);
/// TensorProto whose bytes are at `place`.
std::string encode_external_tensor(std::string_view name, const TensorType& type,
                                   const ExternalPlace& place);
/// NodeProto; `function` and `opset` have no place in it.
std::string encode_node(const OnnxNode& node);
/// AttributeProto. Sub-graphs cannot be written: Error (kInternal).
std::string encode_attribute(const OnnxAttribute& attribute);
/// ValueInfoProto of a tensor.
std::string encode_value(const OnnxValue& value);
/// StringStringEntryProto.
std::string encode_pair(std::string_view key, std::string_view value);
/// OperatorSetIdProto.
std::string encode_opset(std::string_view domain, std::int64_t version);

}  // namespace pipetrain
