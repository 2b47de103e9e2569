// What the files of a checkpoint can hold.
#include "train/manifest.h"

#include <gtest/gtest.h>

#include <string>

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

}  // namespace
}  // namespace pipetrain
