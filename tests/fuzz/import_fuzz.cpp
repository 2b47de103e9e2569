// libFuzzer: any bytes at all are read as a model or refused by an Error of kind kModel.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "onnx_io/reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pipetrain;
  // A small limit, so that memory that is asked for without reason shows.
  const ReadOptions options{.max_model_bytes = std::uint64_t{64} << 20};
  try {
    read_onnx_bytes(std::as_bytes(std::span(data, size)), {}, options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kModel) std::abort();
  }
  return 0;
}
