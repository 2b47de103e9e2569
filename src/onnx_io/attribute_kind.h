// What an attribute of an ONNX file is: its declared kind, checked against its value.
#pragma once

#include <cstdint>
#include <string>

#include "onnx_io/model.h"

namespace pipetrain {

namespace onnx {
class Attribute;  // the schema's message; defined by the generated code
}

/// The kind of a number in the field `type`; kOther for those that no operator here has.
OnnxAttribute::Kind kind_of_type(std::int32_t type);

/// The kind that the attribute declares, which must be the one whose field is filled: Error
/// (kModel) that begins with `owner`.
OnnxAttribute::Kind checked_kind(const onnx::Attribute& attribute, const std::string& owner);

}  // namespace pipetrain
