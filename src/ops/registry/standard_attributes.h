// Which attributes the operators of the ONNX standard have.
#pragma once

#include <string_view>

namespace pipetrain {

/// False if the ONNX standard knows the operator and none of its versions from opset 7 on has this
/// attribute. As for ONNX Runtime, names that begin with "__" are the exporter's own.
bool may_have_attribute(std::string_view op_type, std::string_view attribute);

}  // namespace pipetrain
