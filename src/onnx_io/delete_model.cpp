#include "onnx_io/delete_model.h"

#include <string>
#include <system_error>

#include "onnx_io/data_files.h"

namespace pipetrain {

void delete_model(const std::filesystem::path& model) {
  std::error_code ignored;
  std::filesystem::remove(model, ignored);
  const std::string data = model.filename().string() + ".data";
  const std::filesystem::path file = model.parent_path() / data;
  const bool is_there = std::filesystem::exists(std::filesystem::symlink_status(file, ignored));
  if (is_there && !is_used_by_others(data, model)) std::filesystem::remove(file, ignored);
}

}  // namespace pipetrain
