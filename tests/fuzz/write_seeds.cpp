// Fills a directory with small models, good and bad, for a fuzzer to begin with.
#include <cstdio>
#include <filesystem>

#include "support/hostile_models.h"
#include "support/onnx_parts.h"
#include "support/temporary_directory.h"

int main(int count, char** arguments) {
  using namespace pipetrain;
  namespace fs = std::filesystem;
  if (count != 2) {
    std::fputs("usage: write_fuzz_seeds DIRECTORY\n", stderr);
    return 2;
  }
  constexpr std::uintmax_t kLargest = 4096;  // fuzzers want small seeds
  const TemporaryDirectory all;
  fs::create_directories(arguments[1]);
  put_file(fs::path(arguments[1]) / "good.onnx", small_model().bytes());
  for (const HostileModel& model : hostile_files(all.path())) {
    if (!fs::is_regular_file(model.path) || fs::file_size(model.path) > kLargest) continue;
    fs::copy_file(model.path, fs::path(arguments[1]) / model.path.filename(),
                  fs::copy_options::overwrite_existing);
  }
  return 0;
}
