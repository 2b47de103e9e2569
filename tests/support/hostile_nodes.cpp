// Models that read well and mean harm, or nothing: nodes that a later pass must refuse.
#include <array>
#include <limits>

#include "onnx_io/encode.h"
#include "support/hostile_files.h"
#include "support/onnx_parts.h"

namespace pipetrain {
namespace {

HostTensor ints(const std::vector<std::int64_t>& values) {
  return HostTensor::of<std::int64_t>(Shape{static_cast<std::int64_t>(values.size())}, values);
}

OnnxAttribute int_attribute(const std::string& name, std::int64_t value) {
  return OnnxAttribute::of_int(name, value);
}
OnnxAttribute ints_attribute(const std::string& name, const std::vector<std::int64_t>& values) {
  return OnnxAttribute::of_ints(name, values);
}

/// One node that makes y.
std::vector<std::string> node_to_y(const std::string& op, std::vector<std::string> inputs,
                                   std::vector<OnnxAttribute> with) {
  return {node_part(op, std::move(inputs), {"y"}, std::move(with), "bad")};
}

std::vector<std::string> before(std::vector<std::string> nodes, const std::string& last) {
  nodes.push_back(last);
  return nodes;
}

}  // namespace

void HostileFiles::later(const std::string& name, std::vector<std::string> nodes,
                         const std::vector<std::pair<std::string, HostTensor>>& constants) {
  ModelParts parts = small_model();
  parts.nodes = std::move(nodes);
  for (const auto& [constant, value] : constants) {
    parts.initializers.push_back(encode_tensor(constant, value));
  }
  add(name, parts.bytes(), "", /*fails_to_read=*/false);
}

void HostileFiles::for_later_passes() {
  wrong_nodes();
  wrong_shapes_and_ranges();
  wrong_windows();
  wrong_extents();
}

void HostileFiles::wrong_nodes() {
  later("op_unknown", node_to_y("FooBar", {"x"}, {}));
  later("op_name_with_escapes", node_to_y("\x1b[31mFooBar\x07", {"x"}, {}));
  later("domain_unknown", {node_part("Conv", {"x"}, {"y"}, {}, "n0", "evil.corp")});
  later("if_node", {nested_if(3)}, {{"c", HostTensor::of<bool>({}, std::array{true})}});
  later("too_few_inputs", node_to_y("Gemm", {"x"}, {}));
  later("too_many_inputs", node_to_y("Relu", {"x", "W"}, {}));
  later("shapes_mismatch", node_to_y("MatMul", {"W", "x"}, {}));
  later("types_mismatch", node_to_y("MatMul", {"x", "k"}, {}),
        {{"k", HostTensor::of<std::int64_t>({4, 4}, std::vector<std::int64_t>(16, 1))}});
  later("axis_out_of_range", node_to_y("Concat", {"x", "x"}, {int_attribute("axis", 99)}));
  later("softmax_axis_out_of_range", node_to_y("Softmax", {"x"}, {int_attribute("axis", -99)}));
  later("axis_smallest",
        node_to_y("Softmax", {"x"},
                  {int_attribute("axis", std::numeric_limits<std::int64_t>::min())}));
  later("transpose_no_permutation",
        node_to_y("Transpose", {"x"}, {ints_attribute("perm", {0, 0})}));
  later("transpose_out_of_range",
        node_to_y("Transpose", {"x"}, {ints_attribute("perm", {1, 1000000})}));
  later("gather_axis", node_to_y("Gather", {"x", "k"}, {int_attribute("axis", 7)}),
        {{"k", ints({0})}});
  later("cast_to_nothing", node_to_y("Cast", {"x"}, {int_attribute("to", 999)}));
  later("attribute_of_another_kind",
        node_to_y("Softmax", {"x"}, {OnnxAttribute::of_string("axis", "one")}));
}

void HostileFiles::wrong_shapes_and_ranges() {
  for (const auto& [name, shape] : std::vector<std::pair<std::string, std::vector<std::int64_t>>>{
           {"reshape_two_minus_ones", {-1, -1}},
           {"reshape_wrong_count", {3, 3}},
           {"reshape_minus_7", {-7}},
           {"reshape_overflow", {std::int64_t{1} << 62, std::int64_t{1} << 62}}}) {
    later(name, node_to_y("Reshape", {"x", "k"}, {}), {{"k", ints(shape)}});
  }
  later("expand_bomb", node_to_y("Expand", {"x", "k"}, {}), {{"k", ints({kHuge, 1, 4})}});
  later("expand_mismatch", node_to_y("Expand", {"x", "k"}, {}), {{"k", ints({kHuge})}});
  later("expand_overflow", node_to_y("Expand", {"x", "k"}, {}),
        {{"k", ints({std::int64_t{1} << 62, std::int64_t{1} << 62, 1, 4})}});
  later("expand_negative", node_to_y("Expand", {"x", "k"}, {}), {{"k", ints({-2, 1, 4})}});
  later("tile_bomb", node_to_y("Tile", {"x", "k"}, {}), {{"k", ints({kHuge, kHuge})}});
  later("fill_bomb",
        before({node_part("ConstantOfShape", {"k"}, {"c"}, {}, "bomb")},
               node_part("Add", {"x", "c"}, {"y"})),
        {{"k", ints({kHuge})}});
  later("range_bomb",
        before({node_part("Range", {"a", "b", "c"}, {"r"}, {}, "bomb"),
                node_part("Cast", {"r"}, {"f"}, {int_attribute("to", 1)})},
               node_part("Add", {"x", "f"}, {"y"})),
        {{"a", HostTensor::scalar<std::int64_t>(0)},
         {"b", HostTensor::scalar<std::int64_t>(kHuge)},
         {"c", HostTensor::scalar<std::int64_t>(1)}});
  later("range_step_zero",
        before({node_part("Range", {"a", "b", "c"}, {"r"}, {}, "bomb"),
                node_part("Cast", {"r"}, {"f"}, {int_attribute("to", 1)})},
               node_part("Add", {"x", "f"}, {"y"})),
        {{"a", HostTensor::scalar<std::int64_t>(0)},
         {"b", HostTensor::scalar<std::int64_t>(4)},
         {"c", HostTensor::scalar<std::int64_t>(0)}});
  later("pad_bomb", node_to_y("Pad", {"x", "k"}, {}), {{"k", ints({0, 0, 0, kHuge})}});
  later("pad_below_zero", node_to_y("Pad", {"x", "k"}, {}), {{"k", ints({0, -100, 0, 0})}});
  later("random_bomb",
        before({node_part("RandomNormal", {}, {"r"}, {ints_attribute("shape", {kHuge})}, "bomb")},
               node_part("Add", {"x", "r"}, {"y"})));
  later("slice_step_zero", node_to_y("Slice", {"x", "a", "b", "c", "d"}, {}),
        {{"a", ints({0})}, {"b", ints({4})}, {"c", ints({1})}, {"d", ints({0})}});
  later("split_too_much", node_to_y("Split", {"x", "k"}, {int_attribute("axis", 1)}),
        {{"k", ints({3, 3})}});
  later("gather_outside",
        before({node_part("Gather", {"W", "k"}, {"g"}, {int_attribute("axis", 0)})},
               node_part("MatMul", {"x", "g"}, {"y"})),
        {{"k", ints({0, 1, 2, 1000000000})}});
}

void HostileFiles::wrong_windows() {
  conv("conv_group_0", {int_attribute("group", 0)});
  conv("conv_group_negative", {int_attribute("group", -1)});
  conv("conv_stride_0", {ints_attribute("strides", {0, 0})});
  conv("conv_stride_negative", {ints_attribute("strides", {-1, -1})});
  conv("conv_dilation_huge", {ints_attribute("dilations", {kHuge, kHuge})});
  conv("conv_dilation_0", {ints_attribute("dilations", {0, 0})});
  conv("conv_pads_negative", {ints_attribute("pads", {-5, -5, -5, -5})});
  conv("conv_pads_huge", {ints_attribute("pads", {kHuge, kHuge, kHuge, kHuge})});
  conv("conv_pads_of_another_rank", {ints_attribute("pads", {1})});
  conv("conv_kernel_mismatch", {ints_attribute("kernel_shape", {99, 99})});
  conv("conv_auto_pad_unknown", {OnnxAttribute::of_string("auto_pad", "SOMEHOW")});
  pool("pool_kernel_0", {ints_attribute("kernel_shape", {0, 0})});
  pool("pool_kernel_larger_than_input", {ints_attribute("kernel_shape", {99, 99})});
  pool("pool_without_kernel", {});
}

void HostileFiles::wrong_extents() {
  ModelParts huge_input = small_model();
  huge_input.inputs = {value_part("x", DType::kFloat32, {{"", std::int64_t{1} << 62}, {"", 4}})};
  add("input_of_2_to_62", huge_input.bytes(), "", /*fails_to_read=*/false);
  ModelParts no_rows = small_model();
  no_rows.inputs = {value_part("x", DType::kFloat32, {{"", 0}, {"", 4}})};
  add("batch_of_0_rows", no_rows.bytes(), "has a batch of 0 rows", /*fails_to_read=*/false);
  ModelParts no_classes = small_model();
  no_classes.initializers = {encode_tensor("W", HostTensor({DType::kFloat32, {4, 0}}))};
  add("output_of_0_classes", no_classes.bytes(), "has no classes", /*fails_to_read=*/false);
  ModelParts no_shape = small_model();
  no_shape.inputs = {encode_value({"x", DType::kFloat32, /*has_shape=*/false, {}})};
  add("input_of_unknown_shape", no_shape.bytes(), "", /*fails_to_read=*/false);
}

void HostileFiles::conv(const std::string& name, const OnnxAttributes& with) {
  ModelParts parts = small_model();
  parts.inputs = {value_part("x", DType::kFloat32, {{"", 1}, {"", 2}, {"", 8}, {"", 8}})};
  parts.outputs = {value_part("y", DType::kFloat32, {{"", 1}, {"", 4}, {"", 6}, {"", 6}})};
  parts.initializers = {encode_tensor("W", HostTensor({DType::kFloat32, {4, 2, 3, 3}}))};
  parts.nodes = {node_part("Conv", {"x", "W"}, {"y"}, with, "c")};
  add(name, parts.bytes(), "", /*fails_to_read=*/false);
}

void HostileFiles::pool(const std::string& name, const OnnxAttributes& with) {
  ModelParts parts = small_model();
  parts.inputs = {value_part("x", DType::kFloat32, {{"", 1}, {"", 2}, {"", 8}, {"", 8}})};
  parts.outputs = {value_part("y", DType::kFloat32, {{"n", -1}})};
  parts.nodes = {node_part("MaxPool", {"x"}, {"y"}, with, "p")};
  add(name, parts.bytes(), "", /*fails_to_read=*/false);
}

}  // namespace pipetrain
