#include "onnx_io/new_head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "pt_onnx.pb.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

HostTensor filled(Shape shape) {
  HostTensor out(TensorType{DType::kFloat32, shape});
  std::ranges::fill(out.span<float>(), 0.5F);
  return out;
}

/// A classifier of 4 features whose last layer is of the given kind. A batch of -1 has any size.
void write_classifier(const std::filesystem::path& path, const std::string& kind,
                      std::uint64_t external_above = std::numeric_limits<std::uint64_t>::max(),
                      std::int64_t batch = -1) {
  OnnxBuilder builder(kind);
  const bool picture = kind == "Conv";
  if (picture)
    builder.input("x", DType::kFloat32, {{"n", -1}, {"", 4}, {"", 2}, {"", 2}});
  else
    builder.input("x", DType::kFloat32, {{"n", -1}, {"", 4}});
  builder.output("logits", DType::kFloat32, {{batch < 0 ? "n" : "", batch}, {"", 10}});
  builder.initializer("stem", picture ? filled({4, 4, 1, 1}) : filled({4, 4}));
  builder.node(picture ? "Conv" : "MatMul", {"x", "stem"}, {"h"}, {}, "stem_layer");
  if (kind == "Gemm") {
    builder.initializer("w", filled({10, 4}));
    builder.initializer("b", filled({10}));
    builder.node("Gemm", {"h", "w", "b"}, {"logits"}, {OnnxAttribute::of_int("transB", 1)}, "fc");
  } else if (kind == "Conv") {
    builder.initializer("w", filled({10, 4, 1, 1}));
    builder.initializer("b", filled({10}));
    builder.node("Conv", {"h", "w", "b"}, {"maps"}, {}, "fc");
    builder.node("GlobalAveragePool", {"maps"}, {"pooled"}, {}, "pool");
    builder.node("Flatten", {"pooled"}, {"logits"}, {}, "flat");
  } else if (kind == "Maps") {  // as PyTorch exports a pool and a flatten
    builder.initializer("w", filled({10, 4}));
    builder.node("Gemm", {"h", "w"}, {"maps"}, {OnnxAttribute::of_int("transB", 1)}, "fc");
    builder.initializer("one", HostTensor::of<std::int64_t>({1}, std::vector<std::int64_t>{-1}));
    builder.initializer("ten", HostTensor::of<std::int64_t>({1}, std::vector<std::int64_t>{10}));
    builder.node("Concat", {"one", "ten"}, {"shape"}, {OnnxAttribute::of_int("axis", 0)}, "both");
    builder.node("Reshape", {"maps", "shape"}, {"logits"}, {}, "view");
  } else if (kind == "Transposed" || kind == "TransposedGemm") {  // as PyTorch writes a Linear
    builder.initializer("w", filled({10, 4}));
    builder.initializer("b", filled({10}));
    builder.node("Identity", {"w"}, {"same"}, {}, "copy");
    builder.node("Transpose", {"same"}, {"t"}, {OnnxAttribute::of_ints("perm", {1, 0})}, "turn");
    builder.node("Identity", {"b"}, {"c"}, {}, "copy_of_bias");
    if (kind == "Transposed") {
      builder.node("MatMul", {"h", "t"}, {"m"}, {}, "fc");
      builder.node("Add", {"m", "c"}, {"logits"}, {}, "bias");
    } else {
      builder.node("Gemm", {"h", "t", "c"}, {"logits"}, {}, "fc");
    }
  } else {  // MatMul and Add, the bias on either side
    builder.initializer("w", filled({4, 10}));
    builder.initializer("b", filled({10}));
    builder.node("MatMul", {"h", "w"}, {"m"}, {}, "fc");
    const bool first = kind == "AddFirst";
    builder.node("Add", {first ? "b" : "m", first ? "m" : "b"}, {"logits"}, {}, "bias");
  }
  builder.write(path, external_above);
}

const OnnxInitializer& tensor(const OnnxModel& model, const std::string& name) {
  const auto found = std::find_if(model.initializers.begin(), model.initializers.end(),
                                  [&](const OnnxInitializer& i) { return i.name == name; });
  EXPECT_NE(found, model.initializers.end()) << name;
  return *found;
}

TEST(NewHead, AReshapeBehindItGetsTheNumberOfClasses) {
  const TemporaryDirectory folder;
  const auto from = folder.path() / "from.onnx", to = folder.path() / "to.onnx";
  write_classifier(from, "Maps");
  EXPECT_EQ(replace_head(from, to, "", 3, 1).classes_before, 10);
  const OnnxModel model = read_onnx(to);
  EXPECT_EQ(tensor(model, "w").value.shape(), Shape({3, 4}));
  EXPECT_EQ(tensor(model, "ten").value.to_int64s(), std::vector<std::int64_t>{3});
}

TEST(NewHead, AShapeMadeFromItselfIsRefused) {
  OnnxBuilder builder("ring");
  builder.input("x", DType::kFloat32, {{"n", -1}, {"", 4}});
  builder.output("logits", DType::kFloat32, {{"n", -1}, {"", 10}});
  builder.initializer("w", filled({4, 10}));
  builder.initializer("one", HostTensor::of<std::int64_t>({1}, std::vector<std::int64_t>{-1}));
  builder.node("MatMul", {"x", "w"}, {"h"}, {}, "fc");
  builder.node("Concat", {"one", "shape"}, {"shape"}, {OnnxAttribute::of_int("axis", 0)}, "both");
  builder.node("Reshape", {"h", "shape"}, {"logits"}, {}, "view");
  const TemporaryDirectory folder;
  const auto from = folder.path() / "from.onnx", to = folder.path() / "to.onnx";
  builder.write(from);
  try {
    replace_head(from, to, "", 3, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kModel);
    EXPECT_NE(std::string(error.what()).find("too many Concats"), std::string::npos);
  }
}

TEST(NewHead, ReplacesEveryKindOfLastLayer) {
  const TemporaryDirectory folder;
  struct Case {
    const char* kind;
    Shape weight;
  };
  for (const Case& c :
       {Case{"Gemm", {3, 4}}, Case{"MatMul", {4, 3}}, Case{"AddFirst", {4, 3}},
        Case{"Conv", {3, 4, 1, 1}}, Case{"Transposed", {3, 4}}, Case{"TransposedGemm", {3, 4}}}) {
    const auto from = folder.path() / "from.onnx", to = folder.path() / "to.onnx";
    write_classifier(from, c.kind);
    const NewHead head = replace_head(from, to, "", 3, 1);
    EXPECT_EQ(head.classes_before, 10) << c.kind;
    EXPECT_EQ(head.tensors, (std::vector<std::string>{"w", "b"}));
    const OnnxModel model = read_onnx(to);
    EXPECT_EQ(tensor(model, "w").value.shape(), c.weight) << c.kind;
    EXPECT_EQ(tensor(model, "b").value.shape(), Shape({3})) << c.kind;
    // Within 1 / sqrt(4) of 0, and not what it was; the rest stays.
    const auto values = tensor(model, "w").value.span<const float>();
    EXPECT_TRUE(std::all_of(values.begin(), values.end(),
                            [](float v) { return v >= -0.5F && v <= 0.5F && v != 0.5F; }));
    EXPECT_TRUE(std::any_of(values.begin(), values.end(), [](float v) { return v > 0.3F; }));
    const auto stem = tensor(model, "stem").value.span<const float>();
    EXPECT_TRUE(std::all_of(stem.begin(), stem.end(), [](float v) { return v == 0.5F; }));
    EXPECT_EQ(model.outputs[0].dims.back().value, 3) << c.kind;
  }
}

TEST(NewHead, ABiasOfTheLayerAndOneAddedToItAreBothReplaced) {
  OnnxBuilder builder("biases");
  builder.input("x", DType::kFloat32, {{"n", -1}, {"", 4}});
  builder.output("logits", DType::kFloat32, {{"n", -1}, {"", 10}});
  builder.initializer("w", filled({4, 10}));
  builder.initializer("b", filled({10}));
  builder.initializer("more", filled({10}));
  builder.node("Gemm", {"x", "w", "b"}, {"h"}, {}, "fc");
  builder.node("Add", {"h", "more"}, {"logits"}, {}, "bias");
  const TemporaryDirectory folder;
  const auto from = folder.path() / "from.onnx", to = folder.path() / "to.onnx";
  builder.write(from);
  EXPECT_EQ(replace_head(from, to, "", 3, 1).tensors, (std::vector<std::string>{"w", "b", "more"}));
  const OnnxModel model = read_onnx(to);
  EXPECT_EQ(tensor(model, "b").value.shape(), Shape({3}));
  EXPECT_EQ(tensor(model, "more").value.shape(), Shape({3}));
}

/// As in files before IR version 4, and with shapes of all values.
TEST(NewHead, WhatDeclaresItsWeightsFollows) {
  const TemporaryDirectory folder;
  const auto from = folder.path() / "from.onnx", to = folder.path() / "to.onnx";
  write_classifier(from, "Gemm");
  onnx::Model model;
  const auto parsed = [](const std::filesystem::path& path) {
    onnx::Model out;
    EXPECT_TRUE(out.ParseFromString(read_file(path, ErrorKind::kData, 1 << 20)));
    return out;
  };
  model = parsed(from);
  const std::map<std::string, std::vector<std::int64_t>> shapes = {{"w", {10, 4}}, {"b", {10}}};
  for (const auto& [name, dims] : shapes) {
    for (onnx::ValueInfo* info :
         {model.mutable_graph()->add_input(), model.mutable_graph()->add_value_info()}) {
      info->set_name(name);
      onnx::TensorShape& shape = *info->mutable_type()->mutable_tensor_type()->mutable_shape();
      for (const std::int64_t d : dims) shape.add_dim()->set_dim_value(d);
    }
  }
  write_file(from, model.SerializeAsString());
  replace_head(from, to, "", 3, 1);
  const onnx::Graph graph = parsed(to).graph();
  int seen = 0;
  for (const auto* list : {&graph.input(), &graph.value_info()}) {
    for (const onnx::ValueInfo& info : *list) {
      if (!shapes.contains(info.name())) continue;
      EXPECT_EQ(info.type().tensor_type().shape().dim(0).dim_value(), 3) << info.name();
      ++seen;
    }
  }
  EXPECT_EQ(seen, 4);
}

TEST(NewHead, LeavesABatchOfAsManySamplesAsClassesAlone) {
  const TemporaryDirectory folder;
  const auto from = folder.path() / "from.onnx", to = folder.path() / "to.onnx";
  write_classifier(from, "Gemm", std::numeric_limits<std::uint64_t>::max(), /*batch=*/10);
  replace_head(from, to, "", 3, 1);
  const OnnxModel model = read_onnx(to);
  ASSERT_EQ(model.outputs[0].dims.size(), 2U);
  EXPECT_EQ(model.outputs[0].dims[0].value, 10);
  EXPECT_EQ(model.outputs[0].dims[1].value, 3);
}

TEST(NewHead, LeavesAsManyTokensAsClassesAlone) {
  const TemporaryDirectory folder;
  const auto from = folder.path() / "from.onnx", to = folder.path() / "to.onnx";
  OnnxBuilder builder("tokens");
  builder.input("x", DType::kFloat32, {{"n", -1}, {"", 5}, {"", 4}});
  builder.output("logits", DType::kFloat32, {{"n", -1}, {"", 5}, {"", 5}});
  builder.initializer("w", filled({4, 5}));
  builder.node("MatMul", {"x", "w"}, {"logits"}, {}, "fc");
  builder.write(from);
  replace_head(from, to, "", 3, 1);
  const OnnxModel model = read_onnx(to);
  ASSERT_EQ(model.outputs[0].dims.size(), 3U);
  EXPECT_EQ(model.outputs[0].dims[1].value, 5);
  EXPECT_EQ(model.outputs[0].dims[2].value, 3);
}

/// A model of one layer with a weight of a shape; the weight has no numbers.
void write_layer(const std::filesystem::path& path, const std::string& op,
                 const std::vector<std::int64_t>& dims, bool has_weight) {
  onnx::Model model;
  onnx::Graph& graph = *model.mutable_graph();
  onnx::Node& node = *graph.add_node();
  node.set_op_type(op);
  node.add_input("x");
  if (has_weight) node.add_input("w");
  node.add_output("y");
  onnx::Tensor& weight = *graph.add_initializer();
  weight.set_name("w");
  weight.set_data_type(1);
  for (const std::int64_t d : dims) weight.add_dims(d);
  graph.add_output()->set_name("y");
  write_file(path, model.SerializeAsString());
}

TEST(NewHead, NamesOfTheClassesBeforeAreDropped) {
  const TemporaryDirectory folder;
  OnnxBuilder builder("named");
  builder.input("x", DType::kFloat32, {{"n", -1}, {"", 4}});
  builder.output("logits", DType::kFloat32, {{"n", -1}, {"", 2}});
  builder.initializer("w", filled({4, 2}));
  builder.node("MatMul", {"x", "w"}, {"logits"}, {}, "fc");
  builder.metadata("author", "somebody");
  builder.metadata(kClassNamesEntry, "cat\ndog\n");
  builder.write(folder.path() / "from.onnx");
  replace_head(folder.path() / "from.onnx", folder.path() / "to.onnx", "", 3, 1);
  EXPECT_EQ(read_onnx(folder.path() / "to.onnx").metadata, (OnnxMetadata{{"author", "somebody"}}));
}

TEST(NewHead, ADamagedLayerIsRefused) {
  const TemporaryDirectory folder;
  const auto from = folder.path() / "from.onnx", to = folder.path() / "to.onnx";
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const auto refused = [&](const std::string& op, const std::vector<std::int64_t>& dims,
                           bool has_weight) {
    write_layer(from, op, dims, has_weight);
    try {
      replace_head(from, to, "", 3, 1);
      ADD_FAILURE() << op;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kModel) << error.what();
    }
    EXPECT_FALSE(std::filesystem::exists(to));
  };
  for (const char* op : {"Gemm", "MatMul", "Conv"}) {
    for (const std::vector<std::int64_t>& dims : {std::vector<std::int64_t>{},
                                                  {40},
                                                  {-5, 10},
                                                  {10, -5},
                                                  {0, 10},
                                                  {kHuge, 0},
                                                  {kHuge, kHuge}})
      refused(op, dims, /*has_weight=*/true);
    refused(op, {4, 10}, /*has_weight=*/false);
  }
}

// As the loss does: an output of a usual name before others, and none of integers.
TEST(NewHead, OfTheOutputThatTheLossReads) {
  const TemporaryDirectory folder;
  const auto from = folder.path() / "from.onnx", to = folder.path() / "to.onnx";
  for (const char* name : {"logits", "probabilities"}) {
    const bool usual = name == std::string("logits");
    OnnxBuilder builder("outputs");
    builder.input("x", DType::kFloat32, {{"n", -1}, {"", 4}});
    builder.output("label", DType::kInt64, {{"n", -1}, {"", 1}});
    if (usual) builder.output("auxiliary", DType::kFloat32, {{"n", -1}, {"", 10}});
    builder.output(name, DType::kFloat32, {{"n", -1}, {"", 10}});
    builder.initializer("w", filled({4, 10}));
    builder.initializer("v", filled({4, 10}));
    builder.node("MatMul", {"x", "v"}, {"auxiliary"}, {}, "auxiliary_layer");
    builder.node("MatMul", {"x", "w"}, {name}, {}, "fc");
    builder.node("ArgMax", {name}, {"label"}, {OnnxAttribute::of_int("axis", 1)}, "largest");
    builder.write(from);
    EXPECT_EQ(replace_head(from, to, "", 3, 1).tensors, std::vector<std::string>{"w"}) << name;
    EXPECT_EQ(tensor(read_onnx(to), "v").value.shape(), Shape({4, 10}));
  }
}

// Of a value inside, which a node or the value itself names; an output that the loss reads is a
// value, whatever nodes are called.
TEST(NewHead, OfTheNodeThatIsTrainedUpTo) {
  const TemporaryDirectory folder;
  const auto from = folder.path() / "from.onnx", to = folder.path() / "to.onnx";
  OnnxBuilder builder("inside");
  builder.input("x", DType::kFloat32, {{"n", -1}, {"", 4}});
  builder.output("output", DType::kFloat32, {{"n", -1}, {"", 20}});
  builder.output("fc", DType::kFloat32, {{"n", -1}, {"", 10}});
  for (const char* name : {"w", "v"}) builder.initializer(name, filled({4, 10}));
  builder.node("MatMul", {"x", "w"}, {"h"}, {}, "fc");
  builder.node("MatMul", {"x", "v"}, {"fc"}, {}, "other");
  builder.node("Concat", {"h", "fc"}, {"output"}, {OnnxAttribute::of_int("axis", 1)}, "both");
  builder.write(from);
  const auto replaced = [&](const std::string& output, const std::string& node) {
    return replace_head(from, to, output, 3, 1, node).tensors;
  };
  EXPECT_THROW(replaced("", ""), Error);  // of both
  EXPECT_EQ(replaced("", "h"), std::vector<std::string>{"w"});
  EXPECT_EQ(tensor(read_onnx(to), "w").value.shape(), Shape({4, 3}));
  EXPECT_EQ(tensor(read_onnx(to), "v").value.shape(), Shape({4, 10}));
  EXPECT_EQ(replaced("", "fc"), std::vector<std::string>{"w"});
  EXPECT_EQ(replaced("", "other"), std::vector<std::string>{"v"});
  EXPECT_EQ(replaced("fc", ""), std::vector<std::string>{"v"});
  EXPECT_EQ(replaced("fc", "other"), std::vector<std::string>{"v"});
  try {
    replaced("", "nothing");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("is called \"nothing\""), std::string::npos);
  }
}

// As PaddlePaddle's exporter stores weights.
TEST(NewHead, WeightsInConstantNodesBecomeInitializers) {
  const TemporaryDirectory folder;
  const auto from = folder.path() / "from.onnx", to = folder.path() / "to.onnx";
  for (const std::int64_t version : {8, 3}) {
    OnnxBuilder builder("constants", {.ir_version = version});
    builder.input("x", DType::kFloat32, {{"n", -1}, {"", 4}});
    builder.output("logits", DType::kFloat32, {{"n", -1}, {"", 10}});
    for (const auto& [name, shape] : {std::pair("w", Shape{4, 10}), std::pair("b", Shape{10})})
      builder.node("Constant", {}, {name}, {OnnxAttribute::of_tensor("value", filled(shape))});
    builder.node("MatMul", {"x", "w"}, {"m"}, {}, "fc");
    builder.node("Add", {"m", "b"}, {"logits"}, {}, "bias");
    builder.write(from);
    const NewHead head = replace_head(from, to, "", 3, 1);
    EXPECT_EQ(head.tensors, (std::vector<std::string>{"w", "b"}));
    EXPECT_EQ(head.classes_before, 10);
    const OnnxModel model = read_onnx(to);
    EXPECT_EQ(model.nodes.size(), 2U);
    EXPECT_EQ(tensor(model, "w").value.shape(), Shape({4, 3}));
    EXPECT_EQ(tensor(model, "b").value.shape(), Shape({3}));
    onnx::Model written;
    ASSERT_TRUE(written.ParseFromString(read_file(to, ErrorKind::kData, 1 << 20)));
    const onnx::Graph& graph = written.graph();
    ASSERT_EQ(graph.input_size(), version < 4 ? 3 : 1);
    if (version >= 4) continue;
    const onnx::TensorShape& shape = graph.input(1).type().tensor_type().shape();
    EXPECT_EQ(graph.input(1).name(), "w");
    EXPECT_EQ(shape.dim(0).dim_value(), 4);
    EXPECT_EQ(shape.dim(1).dim_value(), 3);
  }
}

TEST(NewHead, TakesExternalDataAlong) {
  const TemporaryDirectory folder;
  const auto whole = folder.path() / "whole.onnx", from = folder.path() / "from.onnx";
  const auto to = folder.path() / "run/model.onnx";
  std::filesystem::create_directory(folder.path() / "run");
  write_classifier(whole, "Gemm");
  write_classifier(from, "Gemm", /*external_above=*/0);
  replace_head(whole, folder.path() / "inside.onnx", "", 3, 1);
  const NewHead head = replace_head(from, to, "", 3, 1);
  EXPECT_EQ(head.files, (std::vector<std::filesystem::path>{to.string() + ".data", to}));
  // Of 16 + 40 + 10 numbers those of the old head stay behind.
  EXPECT_EQ(std::filesystem::file_size(to.string() + ".data"), 16 * sizeof(float));
  const OnnxModel model = read_onnx(to), inside = read_onnx(folder.path() / "inside.onnx");
  EXPECT_TRUE(tensor(model, "stem").external);
  for (const char* name : {"stem", "w", "b"}) {
    EXPECT_EQ(tensor(model, name).value.shape(), tensor(inside, name).value.shape()) << name;
    EXPECT_TRUE(std::ranges::equal(tensor(model, name).value.span<const float>(),
                                   tensor(inside, name).value.span<const float>()))
        << name;
  }
  std::filesystem::remove(from.string() + ".data");
  EXPECT_THROW(replace_head(from, folder.path() / "none.onnx", "", 3, 1), Error);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "none.onnx"));
}

}  // namespace
}  // namespace pipetrain
