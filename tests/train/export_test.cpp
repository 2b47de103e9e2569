// Trained values are in the written file, whatever way the exporter wrote the tensors down.
#include "train/export.h"

#include <gtest/gtest.h>

#include "onnx_io/builder.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

HostTensor filled(Shape shape, float value) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  for (float& x : out.span<float>()) x = value;
  return out;
}

/// Two layers whose equal weights were merged: only copies are read, not the tensor itself.
void write_merged(const std::filesystem::path& path) {
  OnnxBuilder builder("merged");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("y", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("shared", filled({4, 4}, 0.5F));
  builder.node("Identity", {"shared"}, {"first.weight"});
  builder.node("Identity", {"shared"}, {"second.weight"});
  builder.node("MatMul", {"x", "first.weight"}, {"h"}, {}, "first");
  builder.node("MatMul", {"h", "second.weight"}, {"y"}, {}, "second");
  builder.write(path);
}

LoadedModel loaded(const std::filesystem::path& path) {
  ModelConfig config;
  config.path = path.string();
  return load_model(config);
}

float first_number(const LoadedModel& model, const std::string& name) {
  return model.model.find_initializer(name)->to_float32().span<float>()[0];
}

TEST(Export, KeepsValuesOfTensorsThatOnlyCopiesRead) {
  const TemporaryDirectory folder;
  std::filesystem::path path = folder.path() / "0.onnx";
  write_merged(path);
  for (int round = 1; round <= 3; ++round) {
    const LoadedModel model = loaded(path);
    const float first = static_cast<float>(round), second = -first;
    const auto read = [&](const std::string& name) {
      if (name == "first.weight") return filled({4, 4}, first);
      if (name == "second.weight") return filled({4, 4}, second);
      return HostTensor();  // not part of the network
    };
    const auto next = folder.path() / (std::to_string(round) + ".onnx");
    export_weights(model, read, {}, next.string(), false);
    const LoadedModel written = loaded(next);
    EXPECT_EQ(first_number(written, "first.weight"), first);
    EXPECT_EQ(first_number(written, "second.weight"), second);
    EXPECT_EQ(written.file.initializers.size(), 2U);
    path = next;
  }
}

}  // namespace
}  // namespace pipetrain
