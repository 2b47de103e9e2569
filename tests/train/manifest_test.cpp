// What the files of a checkpoint can hold.
#include "train/manifest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "support/temporary_directory.h"
#include "train/checkpoint.h"

namespace pipetrain {
namespace {

TEST(Safetensors, FilesMayHaveMoreTensorsThanADocumentHasFields) {
  const TemporaryDirectory folder;
  constexpr int kTensors = 50'001;
  NamedTensors tensors;
  for (int i = 0; i < kTensors; ++i)
    tensors.emplace(std::to_string(i), HostTensor::scalar<float>(static_cast<float>(i)));
  const FileRecord record = write_safetensors(folder / "x.safetensors", tensors);
  ASSERT_EQ(record.tensors.size(), 50'001U);
  const NamedTensors read = read_safetensors(folder / "x.safetensors", record);
  ASSERT_EQ(read.size(), 50'001U);
  for (const auto& [name, tensor] : read)
    ASSERT_EQ(tensor.span<float>()[0], std::stof(name)) << name;
}

TEST(Manifest, PathsThatAreNotUtf8ComeBackAsTheyWere) {
  Checkpoint written;
  written.batches_per_epoch = 1;
  written.run.settings = {
      {"--model", "m\xfcnchen.onnx"}, {"--lr", "0.1"}, {"--data", "a=\xc3\xbc"}};
  written.run.outputs = {{"--output", std::string("\xfc\x00\x0a=\xff", 5)}};
  const std::string text = manifest_text(written, {});
  EXPECT_NE(text.find("\"fc000a3dff\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"--data=a=\xc3\xbc\""), std::string::npos) << text;
  std::vector<FileRecord> files;
  const Checkpoint read = parse_manifest(text, "manifest.json", files);
  EXPECT_EQ(read.run.settings, written.run.settings);
  EXPECT_EQ(read.run.outputs, written.run.outputs);
}

TEST(Manifest, BytesAreWholeHexadecimalNumbers) {
  Checkpoint written;
  written.batches_per_epoch = 1;
  written.run.outputs = {{"--output", "\xfc\xfd"}};
  const std::string good = manifest_text(written, {});
  const std::size_t place = good.find("fcfd");
  ASSERT_NE(place, std::string::npos);
  for (const char* bad : {"fcf", "fcfg", "FCFD", "-cfd"}) {
    std::string text = good;
    text.replace(place, 4, bad);
    text.erase(text.rfind("\"sha256\": \"") + std::string("\"sha256\": \"").size());
    text += sha256(text) + "\"\n}\n";
    std::vector<FileRecord> files;
    try {
      parse_manifest(text, "manifest.json", files);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_NE(error.message().find("outputs[0].hex"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace pipetrain
