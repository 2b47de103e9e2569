#include "onnx_io/reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "onnx_io/encode.h"
#include "onnx_io/external_data.h"
#include "onnx_io/lean_file.h"
#include "support/onnx_parts.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

OnnxModel read(const std::string& bytes, const std::filesystem::path& directory = {},
               const ReadOptions& options = {}) {
  return read_onnx_bytes(std::as_bytes(std::span(bytes)), directory, options);
}

std::string message_of(const std::string& bytes, const std::filesystem::path& directory = {},
                       const ReadOptions& options = {}) {
  try {
    read(bytes, directory, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kModel);
    return error.message();
  }
  return "";
}

bool warns(const OnnxModel& model, const std::string& text) {
  return std::ranges::any_of(model.warnings, [&](const std::string& warning) {
    return warning.find(text) != std::string::npos;
  });
}

// The small model with a weight of another encoding; returns the weight as read.
OnnxInitializer weight(const std::string& tensor, const std::filesystem::path& directory = {},
                       const ReadOptions& options = {}) {
  ModelParts parts = small_model();
  parts.initializers.push_back(tensor);
  return read(parts.bytes(), directory, options).initializers.at(1);
}

TEST(ReaderTest, ReadsWhatTheBuilderWrites) {
  OnnxBuilder builder("net", {.opset = 18, .ir_version = 9});
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 3}, {"", -1}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("w", HostTensor::of<float>({2}, std::array{1.5F, -2.0F}));
  builder.node(
      "Foo", {"x", "", "w"}, {"y", ""},
      {OnnxAttribute::of_float("f", 0.25F), OnnxAttribute::of_int("i", -7),
       OnnxAttribute::of_string("s", "text"), OnnxAttribute::of_floats("fs", {1, 2}),
       OnnxAttribute::of_ints("is", {-1, 1LL << 40}), OnnxAttribute::of_strings("ss", {"a", ""}),
       OnnxAttribute::of_tensor("t", HostTensor::scalar<std::int64_t>(9))},
      "foo", "my.domain");
  builder.import("my.domain", 3);
  builder.metadata("key", "value");
  const OnnxModel model = read(builder.bytes());

  EXPECT_EQ(model.ir_version, 9);
  EXPECT_EQ(model.opset, 18);
  EXPECT_EQ(model.graph_name, "net");
  EXPECT_EQ(model.producer.substr(0, 10), "pipetrain ");
  EXPECT_EQ(model.metadata.at("key"), "value");
  ASSERT_EQ(model.inputs.size(), 1U);
  EXPECT_EQ(model.inputs[0].dims, (std::vector<OnnxDim>{{"batch", -1}, {"", 3}, {"", -1}}));
  EXPECT_TRUE(model.outputs.at(0).has_shape);
  EXPECT_TRUE(model.outputs[0].dims.empty());
  ASSERT_EQ(model.initializers.size(), 1U);
  EXPECT_EQ(model.initializers[0].value.span<float>()[1], -2.0F);
  const OnnxNode& node = model.nodes[0];
  EXPECT_EQ(node.label(), "node 'foo' (my.domain::Foo, #0)");
  EXPECT_EQ(node.opset, 3);
  EXPECT_EQ(node.inputs, (std::vector<std::string>{"x", "", "w"}));
  EXPECT_FALSE(node.has_input(1));
  EXPECT_FALSE(node.has_input(3));
  EXPECT_FALSE(node.has_output(1));
  EXPECT_EQ(node.float_attribute("f"), 0.25F);
  EXPECT_EQ(node.int_attribute("i"), -7);
  EXPECT_EQ(node.string_attribute("s"), "text");
  EXPECT_EQ(node.floats_attribute("fs"), (std::vector<float>{1, 2}));
  EXPECT_EQ(node.ints_attribute("is"), (std::vector<std::int64_t>{-1, 1LL << 40}));
  EXPECT_EQ(node.strings_attribute("ss"), (std::vector<std::string>{"a", ""}));
  EXPECT_EQ(node.tensor_attribute("t").to_int64s(), std::vector<std::int64_t>{9});
  EXPECT_TRUE(model.warnings.empty());
}

TEST(ReaderTest, AttributesOfTheWrongKindOrAbsentNameNodeAndAttribute) {
  OnnxNode node;
  node.name = "n";
  node.op_type = "Softmax";
  node.attributes = {OnnxAttribute::of_string("axis", "one")};
  EXPECT_EQ(node.int_attribute("other", 5), 5);
  const auto message = [&](auto body) -> std::string {
    try {
      body();
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_EQ(message([&] { node.int_attribute("axis", 1); }),
            "node 'n' (Softmax, #0): attribute 'axis' must be an int but is a string");
  EXPECT_EQ(message([&] { node.ints_attribute("axes"); }),
            "node 'n' (Softmax, #0): attribute 'axes' is missing");
}

TEST(ReaderTest, EveryEncodingOfATensorIsRead) {
  using Doubles = std::vector<double>;
  const auto varint = [](std::uint32_t number, std::int64_t value) { return field(number, value); };
  const std::string one_and_minus_two("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8);  // IEEE singles
  EXPECT_EQ(weight(tensor_part("t", {2}, 1, raw_data(one_and_minus_two))).value.to_doubles(),
            (Doubles{1, -2}));
  EXPECT_EQ(weight(tensor_part("t", {2}, 1, field(4, one_and_minus_two))).value.to_doubles(),
            (Doubles{1, -2}));
  const std::string unpacked =
      "\x25" + one_and_minus_two.substr(0, 4) + "\x25" + one_and_minus_two.substr(4);
  EXPECT_EQ(weight(tensor_part("t", {2}, 1, unpacked)).value.to_doubles(), (Doubles{1, -2}));
  // 0x3c00 and 0xc000 are 1 and -2 in half precision, 0x3f80 and 0xc000 in bfloat16.
  const OnnxInitializer half =
      weight(tensor_part("t", {2}, 10, varint(5, 0x3c00) + varint(5, 0xc000)));
  EXPECT_EQ(half.file_dtype, DType::kFloat16);
  EXPECT_EQ(half.value.to_doubles(), (Doubles{1, -2}));
  EXPECT_EQ(half.to_float32().span<float>()[1], -2.0F);
  EXPECT_EQ(weight(tensor_part("t", {2}, 10, raw_data(std::string("\x00\x3c\x00\xc0", 4))))
                .value.to_doubles(),
            (Doubles{1, -2}));
  EXPECT_EQ(weight(tensor_part("t", {2}, 16, varint(5, 0x3f80) + varint(5, 0xc000)))
                .to_float32()
                .to_doubles(),
            (Doubles{1, -2}));
  const std::string doubles("\x00\x00\x00\x00\x00\x00\xf0\x3f", 8);
  EXPECT_EQ(weight(tensor_part("t", {1}, 11, field(10, doubles))).to_float32().to_doubles(),
            (Doubles{1}));
  EXPECT_EQ(weight(tensor_part("t", {2}, 3, varint(5, -128) + varint(5, 127))).value.to_int64s(),
            (std::vector<std::int64_t>{-128, 127}));
  EXPECT_EQ(weight(tensor_part("t", {1}, 2, varint(5, 255))).value.to_int64s().at(0), 255);
  EXPECT_EQ(weight(tensor_part("t", {1}, 4, varint(5, 65535))).value.to_int64s().at(0), 65535);
  EXPECT_EQ(weight(tensor_part("t", {1}, 5, varint(5, -32768))).value.to_int64s().at(0), -32768);
  EXPECT_EQ(weight(tensor_part("t", {1}, 6, varint(5, -5))).value.to_int64s().at(0), -5);
  EXPECT_EQ(weight(tensor_part("t", {1}, 7, varint(7, -5))).value.to_int64s().at(0), -5);
  EXPECT_EQ(weight(tensor_part("t", {1}, 12, varint(11, 4294967295))).value.to_int64s().at(0),
            4294967295);
  EXPECT_EQ(weight(tensor_part("t", {1}, 13, varint(11, 1LL << 60))).value.to_int64s().at(0),
            1LL << 60);
  EXPECT_EQ(weight(tensor_part("t", {2}, 9, varint(5, 1) + varint(5, 0))).value.to_int64s(),
            (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(
      weight(tensor_part("t", {2}, 9, raw_data(std::string("\x07\x00", 2)))).value.to_int64s(),
      (std::vector<std::int64_t>{1, 0}));
  const OnnxInitializer empty = weight(tensor_part("t", {0, 3}, 1, ""));
  EXPECT_TRUE(empty.value);
  EXPECT_EQ(empty.value.type().count(), 0);
  EXPECT_EQ(weight(tensor_part("t", {}, 1, raw_data(std::string("\x00\x00\x80\x3f", 4))))
                .value.shape()
                .rank(),
            0U);
}

TEST(ReaderTest, TensorsOfUnknownTypesMayBeThere) {
  const OnnxInitializer int4 = weight(tensor_part("q", {3}, 22, raw_data("ab")));
  EXPECT_FALSE(int4.value);
  EXPECT_NE(int4.unusable.find("int4"), std::string::npos);
  EXPECT_THROW(int4.to_float32(), Error);
  ModelParts parts = small_model();  // read by a node that its output may not need
  parts.initializers.push_back(tensor_part("names", {1}, 8, field(6, "cat")));
  parts.nodes.push_back(node_part("Identity", {"names"}, {"unused"}));
  EXPECT_EQ(message_of(parts.bytes()), "");
}

TEST(ReaderTest, MetadataOfValuesReachesTheirInitializers) {
  ModelParts parts = small_model();
  parts.initializers[0] += field(16, encode_pair("a", "tensor"));
  parts.graph_tail = field(13, field(1, "W") + field(4, encode_pair("b", "value"))) +
                     field(13, field(1, "y") + field(4, encode_pair("c", "other")));
  const OnnxModel model = read(parts.bytes());
  EXPECT_EQ(model.initializers[0].metadata, (OnnxMetadata{{"a", "tensor"}, {"b", "value"}}));
  EXPECT_EQ(model.value_metadata.at("y").at("c"), "other");
}

TEST(ReaderTest, OddButHarmlessFilesAreReadWithAWarning) {
  ModelParts parts = small_model();
  parts.nodes = {node_part("Relu", {"b"}, {"y"}, {}, "same"),
                 node_part("Relu", {"a"}, {"b"}, {}, "same"),
                 node_part("MatMul", {"x", "W"}, {"a"})};
  parts.inputs = {field(1, "x") +
                  field(2, field(1, field(1, std::int64_t{1}) +
                                        field(2, field(1, field(1, std::int64_t{-1})))))};
  const float bad[2] = {NAN, 1};
  parts.initializers.push_back(encode_tensor("nan", HostTensor::of<float>({2}, bad)));
  const float mask[2] = {0, -INFINITY};
  parts.initializers.push_back(encode_tensor("mask", HostTensor::of<float>({2}, mask)));
  const OnnxModel model = read(parts.bytes());
  EXPECT_EQ(model.nodes[0].op_type, "MatMul");
  EXPECT_EQ(model.nodes[0].file_index, 2U);
  EXPECT_EQ(model.nodes[2].outputs[0], "y");
  EXPECT_TRUE(warns(model, "topological order"));
  EXPECT_TRUE(warns(model, "'same'"));
  EXPECT_TRUE(warns(model, "treated as unknown"));
  EXPECT_TRUE(warns(model, "'nan'"));
  EXPECT_FALSE(warns(model, "'mask'"));
}

TEST(ReaderTest, InitializersThatAreListedAsInputsAreNoInputs) {
  ModelParts parts = small_model();
  parts.ir_version = 3;
  parts.inputs.push_back(value_part("W", DType::kFloat32, {{"", 4}, {"", 4}}));
  const OnnxModel model = read(parts.bytes());
  ASSERT_EQ(model.inputs.size(), 1U);
  EXPECT_EQ(model.inputs[0].name, "x");
}

TEST(ReaderTest, ALongChainIsReadWithoutRecursion) {
  ModelParts parts = small_model();
  parts.nodes.clear();
  constexpr int kNodes = 200'000;
  for (int i = kNodes; i-- > 0;) {  // backwards, so that it is sorted too
    parts.nodes.push_back(node_part("Relu", {i == 0 ? "x" : "v" + std::to_string(i - 1)},
                                    {i == kNodes - 1 ? "y" : "v" + std::to_string(i)}));
  }
  const OnnxModel model = read(parts.bytes());
  EXPECT_EQ(model.nodes[0].inputs[0], "x");
  EXPECT_EQ(model.nodes[model.nodes.size() - 1].outputs[0], "y");
}

TEST(ReaderTest, SubGraphsAreKeptAsAKind) {
  ModelParts parts = small_model();
  parts.initializers.push_back(encode_tensor("c", HostTensor::scalar(true)));
  const std::string branch = field(
      5, field(1, "then_branch") + field(6, small_model().graph()) + field(20, std::int64_t{5}));
  parts.nodes = {node_part("If", {"c"}, {"y"}) + branch};
  EXPECT_EQ(read(parts.bytes()).nodes[0].find_attribute("then_branch")->kind,
            OnnxAttribute::Kind::kGraph);
}

TEST(ReaderTest, NodesAreSortedByWhatTheirSubGraphsRead) {
  ModelParts branch;
  branch.nodes = {node_part("Relu", {"h"}, {"t"})};
  branch.outputs = {value_part("t", DType::kFloat32, {})};
  std::string conditional = node_part("If", {"c"}, {"y"}, {}, "choice");
  for (const char* name : {"then_branch", "else_branch"}) {
    conditional += field(5, field(1, name) + field(6, branch.graph()) + field(20, std::int64_t{5}));
  }
  ModelParts parts = small_model();
  parts.initializers.push_back(encode_tensor("c", HostTensor::scalar(true)));
  parts.nodes = {conditional, node_part("MatMul", {"x", "W"}, {"h"})};
  const OnnxModel model = read(parts.bytes());
  EXPECT_EQ(model.nodes[0].op_type, "MatMul");
  EXPECT_TRUE(warns(model, "topological order"));
  parts.nodes = {parts.nodes[1], parts.nodes[0]};
  EXPECT_TRUE(read(parts.bytes()).warnings.empty());
  parts.nodes = {conditional, node_part("Relu", {"y"}, {"h"}, {}, "after")};
  EXPECT_EQ(message_of(parts.bytes()),
            "the model: the graph has a cycle: node 'after' (Relu, #1) → node 'choice' (If, #0) → "
            "node 'after' (Relu, #1)");
}

TEST(ReaderTest, ConstantsInEveryForm) {
  const auto value = [](OnnxAttribute attribute) {
    OnnxNode node;
    node.op_type = "Constant";
    node.attributes = {std::move(attribute)};
    return constant_value(node);
  };
  EXPECT_EQ(value(OnnxAttribute::of_float("value_float", 2)).shape().rank(), 0U);
  EXPECT_EQ(value(OnnxAttribute::of_floats("value_floats", {2, 3})).to_doubles().at(1), 3.0);
  EXPECT_EQ(value(OnnxAttribute::of_int("value_int", 4)).to_int64s().at(0), 4);
  EXPECT_EQ(value(OnnxAttribute::of_ints("value_ints", {})).type().count(), 0);
  EXPECT_EQ(value(OnnxAttribute::of_tensor("value", HostTensor::scalar(2.5))).to_doubles().at(0),
            2.5);
  EXPECT_THROW(value(OnnxAttribute::of_string("value_string", "s")), Error);
}

TEST(ReaderTest, TheMemoryLimitCountsAllTensors) {
  ModelParts parts = small_model();
  parts.initializers.push_back(encode_tensor("V", HostTensor({DType::kFloat32, {4, 4}})));
  EXPECT_EQ(message_of(parts.bytes(), {}, {.max_model_bytes = 128}), "");
  EXPECT_NE(message_of(parts.bytes(), {}, {.max_model_bytes = 127}).find("limit of 127 bytes"),
            std::string::npos);
}

class ExternalDataTest : public ::testing::Test {
 protected:
  std::string tensor(const std::vector<std::pair<std::string, std::string>>& entries) {
    return tensor_part("t", {2}, 1, external_data(entries));
  }

  const std::string values_{"\x00\x00\x80\x3f\x00\x00\x00\xc0", 8};
  TemporaryDirectory directory_;
};

TEST_F(ExternalDataTest, IsReadFromItsPlace) {
  std::filesystem::create_directory(directory_ / "sub");
  put_file(directory_ / "sub/w.bin", "skip" + values_ + "rest");
  const OnnxInitializer t = weight(
      tensor({{"location", "./sub/w.bin"}, {"offset", "4"}, {"length", "8"}}), directory_.path());
  EXPECT_TRUE(t.external);
  EXPECT_EQ(t.value.to_doubles(), (std::vector<double>{1, -2}));
}

/// Floats of which no two are equal, in several blocks of parallel reads and copies.
std::vector<float> many_values() {
  std::vector<float> values((std::size_t{9} << 18) + 1);  // 9 MiB and 4 bytes
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST_F(ExternalDataTest, LargeTensorsAreReadWhole) {
  const std::vector<float> values = many_values();
  const auto count = static_cast<std::int64_t>(values.size());
  put_file(directory_ / "w.bin", "skip" + bytes_of(values));
  for (const std::string& part :
       {tensor_part("t", {count}, 1, external_data({{"location", "w.bin"}, {"offset", "4"}})),
        encode_tensor("t", HostTensor::of<float>({count}, values))}) {
    const OnnxInitializer t = weight(part, directory_.path());
    const std::span<float> read = t.value.span<float>();
    EXPECT_TRUE(std::ranges::equal(read, values)) << t.external;
  }
}

TEST_F(ExternalDataTest, AFileThatBecomesShorterIsAnError) {
  put_file(directory_ / "w.bin", std::string(std::size_t{9} << 20, 'x'));
  const ExternalFile file = ExternalFile::open(directory_.path(), "w.bin", "t", {});
  std::filesystem::resize_file(directory_ / "w.bin", std::size_t{5} << 20);
  std::vector<std::byte> out(std::size_t{9} << 20);
  try {
    file.read(0, out);
    ADD_FAILURE() << "what the file does not have was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "the data file 'w.bin' became shorter while it was read");
  }
}

TEST_F(ExternalDataTest, EndsWithItsFile) {
  put_file(directory_ / "w.bin", "skip" + values_);
  EXPECT_NO_THROW(weight(tensor({{"location", "w.bin"}, {"offset", "4"}}), directory_.path()));
  try {
    weight(tensor({{"location", "w.bin"}, {"offset", "5"}}), directory_.path());
    ADD_FAILURE() << "a tensor that ends behind its file was read";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("needs 8 bytes from offset 5 of 'w.bin', which has 12"),
        std::string::npos)
        << error.what();
  }
}

// A copy of a file of zeros may take no disk space, as one does that was never written.
TEST_F(ExternalDataTest, AFileWithoutDataBesideOthersHoldsZeros) {
  put_file(directory_ / "a.bin", values_);
  put_file(directory_ / "b.bin", "");
  std::filesystem::resize_file(directory_ / "b.bin", 8);
  ModelParts parts = small_model();
  for (const char* name : {"b", "a"}) {
    parts.initializers.push_back(
        tensor_part(name, {2}, 1, external_data({{"location", std::string(name) + ".bin"}})));
  }
  const OnnxModel both = read(parts.bytes(), directory_.path());
  EXPECT_EQ(both.find_initializer("a")->value.to_doubles(), (std::vector<double>{1, -2}));
  EXPECT_EQ(both.find_initializer("b")->value.to_doubles(), (std::vector<double>{0, 0}));
  parts.initializers.pop_back();
  EXPECT_FALSE(read(parts.bytes(), directory_.path()).find_initializer("b")->value);
}

TEST_F(ExternalDataTest, UnknownKeysAreIgnoredWithAWarning) {
  put_file(directory_ / "w.bin", values_);
  ModelParts parts = small_model();
  parts.initializers.push_back(tensor({{"location", "w.bin"}, {"__class__", "os.system"}}));
  EXPECT_TRUE(warns(read(parts.bytes(), directory_.path()), "__class__"));
}

TEST_F(ExternalDataTest, LinksAreFollowedWhenAllowed) {
  put_file(directory_ / "blob", values_);
  std::filesystem::create_symlink("blob", directory_ / "link.bin");
  std::filesystem::create_hard_link(directory_ / "blob", directory_ / "hard.bin");
  for (const char* name : {"link.bin", "hard.bin"}) {
    EXPECT_THROW(weight(tensor({{"location", name}}), directory_.path()), Error);
    const OnnxInitializer t =
        weight(tensor({{"location", name}}), directory_.path(), {.allow_symlinked_data = true});
    EXPECT_EQ(t.value.to_doubles(), (std::vector<double>{1, -2}));
  }
  EXPECT_THROW(weight(tensor({{"location", "../x/w.bin"}}), directory_.path(),
                      {.allow_symlinked_data = true}),
               Error);
}

TEST_F(ExternalDataTest, TheFallbackOfOpenat2HoldsTheSameRules) {
  namespace fs = std::filesystem;
  fs::create_directories(directory_ / "sub");
  put_file(directory_ / "sub/w.bin", values_);
  fs::create_symlink("w.bin", directory_ / "sub/link.bin");
  fs::create_directory_symlink("sub", directory_ / "linked");
  for (const bool use_openat2 : {true, false}) {
    const ExternalDataRules rules{.use_openat2 = use_openat2};
    const auto open = [&](const std::string& location) {
      return ExternalFile::open(directory_.path(), location, "t", rules).bytes();
    };
    EXPECT_EQ(open("sub/w.bin"), 8U);
    EXPECT_EQ(open("sub//./w.bin"), 8U);
    for (const char* bad : {"sub/link.bin", "linked/w.bin", "sub", "../w.bin", "nowhere/w.bin",
                            "sub/w.bin/x", "/sub/w.bin"}) {
      EXPECT_THROW(open(bad), Error) << bad << use_openat2;
    }
  }
}

TEST_F(ExternalDataTest, NeedsADirectory) {
  EXPECT_NE(message_of([&] {
              ModelParts parts = small_model();
              parts.initializers.push_back(tensor({{"location", "w.bin"}}));
              return parts.bytes();
            }())
                .find("not read from a directory"),
            std::string::npos);
}

// Large weights do not pass through protobuf's messages, small ones and all other fields do.
TEST(ReaderTest, ReadsLargeTensorsFromTheFile) {
  std::vector<float> values(3000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 0.5F;
  const std::string payload(reinterpret_cast<const char*>(values.data()), 4 * values.size());
  const auto rest = [&](const std::string& more) {
    return field(12, "a note") + raw_data(payload) + more;
  };
  ModelParts parts = small_model();
  parts.initializers.push_back(tensor_part("large", {3, 1000}, 1, rest("")));
  parts.initializers.push_back(tensor_part("small", {1}, 1, raw_data(payload.substr(4, 4))));
  parts.initializers.push_back(tensor_part("last", {3000}, 1, rest("")));
  const std::string bytes = parts.bytes();
  const OnnxModel model = read(bytes);
  ASSERT_EQ(model.initializers.size(), 4U);
  EXPECT_EQ(model.initializers[0].name, read(small_model().bytes()).initializers[0].name);
  EXPECT_EQ(model.initializers[1].value.shape(), (Shape{3, 1000}));
  EXPECT_TRUE(std::ranges::equal(model.initializers[1].value.span<float>(), values));
  EXPECT_EQ(model.initializers[2].value.to_doubles(), std::vector<double>{0.5});
  EXPECT_EQ(model.initializers[3].name, "last");
  EXPECT_TRUE(std::ranges::equal(model.initializers[3].value.span<float>(), values));
  EXPECT_EQ(model.file_bytes, bytes.size());

  const LeanFile lean = without_weights(std::as_bytes(std::span(bytes)));
  ASSERT_EQ(lean.raw_data.size(), 4U);
  EXPECT_EQ(lean.raw_data[1].size(), payload.size());
  EXPECT_TRUE(lean.raw_data[0].empty() && lean.raw_data[2].empty());
  EXPECT_LT(lean.bytes.size(), bytes.size() - 2 * payload.size());

  const auto refused = [&](const std::string& tensor) {
    ModelParts wrong = small_model();
    wrong.initializers.push_back(tensor);
    return message_of(wrong.bytes());
  };
  EXPECT_NE(refused(tensor_part("t", {2999}, 1, rest(""))).find("needs 11996 bytes of raw_data"),
            std::string::npos);
  EXPECT_NE(refused(tensor_part("t", {3000}, 1, rest(field(4, payload)))).find("two payloads"),
            std::string::npos);
  EXPECT_NE(refused(tensor_part("t", {3000}, 1, rest(external_data({{"location", "w"}}))))
                .find("both in the model and outside"),
            std::string::npos);
}

}  // namespace
}  // namespace pipetrain
