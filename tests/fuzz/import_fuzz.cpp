// libFuzzer: any bytes at all are read as a model or refused by an Error of kind kModel; of what is
// read, export finds its way through the bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "onnx_io/file_map.h"
#include "onnx_io/reader.h"
#include "support/temporary_directory.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pipetrain;
  // Small limits, so that memory and time that are asked for without reason show.
  const ReadOptions options{.max_model_bytes = std::uint64_t{64} << 20,
                            .max_expanded_nodes = 10'000};
  // Data files that the bytes may name.
  static const TemporaryDirectory directory;
  static const bool ready = [] {
    put_file(directory / "good.bin", std::string(64, '\0'));
    return true;
  }();
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try {
    if (ready) read_onnx_bytes(bytes, directory.path(), options);
    const FileMap map(bytes);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kModel) std::abort();
  }
  return 0;
}
