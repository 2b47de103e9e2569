// Writes a model that was changed in memory: what it keeps in other files goes along, into one file
// beside it.
#pragma once

#include <filesystem>
#include <vector>

namespace pipetrain {

namespace onnx {
class Model;  // the schema's message; defined by the generated code
}

/// Writes `model` to `to`. Its external data, in files below `from`, are copied to one file next to
/// it, "<to>.data", to which the model then refers; without external data there is no such file.
/// Nothing appears under the final names before everything is on disk. Returns the files that were
/// written, the model last. Errors: kModel for data that are not where the model says, kResource.
std::vector<std::filesystem::path> write_with_data(onnx::Model& model,
                                                   const std::filesystem::path& from,
                                                   const std::filesystem::path& to);

}  // namespace pipetrain
