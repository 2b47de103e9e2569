// The files of an official ONNX test case: its model, and the tensors that go in and must come out.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "onnx_io/model.h"
#include "tensor/tensor.h"

namespace pipetrain {

/// Thrown where a case cannot be run: `reason` begins with the kind.
struct Skip {
  std::string reason;
};

/// Reads the model; what cannot even be read is refused by the type of a value.
OnnxModel read_model(const std::filesystem::path& path);

/// The tensors of the files PREFIX_0.pb, PREFIX_1.pb, … of a folder.
std::vector<HostTensor> read_tensors(const std::filesystem::path& folder,
                                     const std::string& prefix);

/// Reads what the model must give. Where that is a sequence, the model gives its length and its
/// elements from now on.
std::vector<HostTensor> read_expected(OnnxModel& model, const std::filesystem::path& folder);

}  // namespace pipetrain
