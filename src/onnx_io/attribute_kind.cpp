#include "onnx_io/attribute_kind.h"

#include "base/error.h"
#include "pt_onnx.pb.h"

namespace pipetrain {

OnnxAttribute::Kind kind_of_type(std::int32_t type) {
  using Kind = OnnxAttribute::Kind;
  switch (type) {
    case 1:
      return Kind::kFloat;
    case 2:
      return Kind::kInt;
    case 3:
      return Kind::kString;
    case 4:
      return Kind::kTensor;
    case 5:
      return Kind::kGraph;
    case 6:
      return Kind::kFloats;
    case 7:
      return Kind::kInts;
    case 8:
      return Kind::kStrings;
    default:
      return Kind::kOther;
  }
}

OnnxAttribute::Kind checked_kind(const onnx::Attribute& attribute, const std::string& owner) {
  using Kind = OnnxAttribute::Kind;
  struct Filled {
    bool present;
    Kind kind;
  };
  const Filled fields[] = {
      {attribute.has_f(), Kind::kFloat},
      {attribute.has_i(), Kind::kInt},
      {attribute.has_s(), Kind::kString},
      {attribute.has_t(), Kind::kTensor},
      {attribute.has_g(), Kind::kGraph},
      {!attribute.floats().empty(), Kind::kFloats},
      {!attribute.ints().empty(), Kind::kInts},
      {!attribute.strings().empty(), Kind::kStrings},
      {!attribute.tensors().empty(), Kind::kOther},
      {!attribute.graphs().empty(), Kind::kOther},
  };
  const Filled* filled = nullptr;
  for (const Filled& field : fields) {
    if (!field.present) continue;
    PT_CHECK(!filled, kModel, "{}: attribute '{}' has values of two kinds, {} and {}", owner,
             printable(attribute.name()), name_of(filled->kind), name_of(field.kind));
    filled = &field;
  }
  if (attribute.type() == 0) return filled ? filled->kind : Kind::kOther;  // older files
  const Kind kind = kind_of_type(attribute.type());
  PT_CHECK(!filled || filled->kind == kind, kModel,
           "{}: attribute '{}' says that it is {}, but its value is {}", owner,
           printable(attribute.name()), name_of(kind), name_of(filled->kind));
  const bool needs_value = kind == Kind::kTensor || kind == Kind::kGraph;
  PT_CHECK(filled || !needs_value, kModel, "{}: attribute '{}' is {} without a value", owner,
           printable(attribute.name()), name_of(kind));
  return kind;
}

}  // namespace pipetrain
