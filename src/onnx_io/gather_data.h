// Writes a model that was changed in memory: what it keeps in other files goes along, into one file
// beside it.
#pragma once

#include <filesystem>
#include <vector>

namespace pipetrain {

namespace onnx {
class Model;  // the schema's message; defined by the generated code
}

/// Writes `model` to `to`. Its external data, in files beneath `from`, go into one file beside it,
/// called as `to` with ".data" behind; without any there is no such file. The model refers to them
/// afterwards. Nothing is under the final names before everything is on disk. Returns what was
/// written, the model last. Errors: kModel for data that are not where the model says, kResource.
std::vector<std::filesystem::path> write_with_data(onnx::Model& model,
                                                   const std::filesystem::path& from,
                                                   const std::filesystem::path& to);

}  // namespace pipetrain
