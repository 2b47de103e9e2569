// Replaces the last layer of a classifier by an untrained one with another number of classes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace pipetrain {

/// The entry of a model's metadata that has the names of its classes, a line for each.
inline constexpr const char* kClassNamesEntry = "pipetrain.classes";

struct NewHead {
  std::vector<std::string> tensors;  // that were replaced: the weight, then biases
  std::int64_t classes_before = 0;
  std::vector<std::filesystem::path> files;  // that were written, the model last
};

/// Writes the model at `from` with `classes` outputs to `to`, which is replaced if it is there. The
/// last layer is the Gemm, MatMul (with an Add) or Conv that makes `output` (empty: what the node
/// or value called `output_node` makes; both empty: the output of floats that the loss reads),
/// before a Softmax, Sigmoid, Flatten, Reshape or pooling. Weights of it in Constant nodes become
/// initializers. Its new weights are uniform within 1 / sqrt(fan in), as PyTorch's, by the seed.
/// Names, types and all else of the file stay, except for the names of its classes; shapes that it
/// declares after the layer follow. External data are copied into one file beside `to`, its name
/// with ".data" behind, without those of the old head. Error (kModel) when there is no such layer
/// or its tensors are shared, (kUsage) when nothing is called `output_node`.
NewHead replace_head(const std::filesystem::path& from, const std::filesystem::path& to,
                     const std::string& output, std::int64_t classes, std::uint64_t seed,
                     const std::string& output_node = {});

}  // namespace pipetrain
