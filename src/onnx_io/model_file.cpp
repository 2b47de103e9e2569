#include "onnx_io/model_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/error.h"

namespace pipetrain {
namespace {

constexpr std::uint64_t kMaximumBytes = std::numeric_limits<std::int32_t>::max();

struct OtherFormat {
  std::string_view begins;
  const char* what;
};

constexpr OtherFormat kOtherFormats[] = {
    {"version https://git-lfs", "a git-LFS pointer; run `git lfs pull` to get the model itself"},
    {"<!DOCTYPE", "an HTML page, not a model; download the file itself"},
    {"<!doctype", "an HTML page, not a model; download the file itself"},
    {"<html", "an HTML page, not a model; download the file itself"},
    {"<HTML", "an HTML page, not a model; download the file itself"},
    {"<?xml", "an XML file, not an ONNX model"},
    {"PK\x03\x04",
     "a zip archive (a PyTorch checkpoint?), not an ONNX model; export with torch.onnx.export"},
    {"\x80\x02",
     "a Python pickle (a PyTorch checkpoint?), not an ONNX model; export with torch.onnx.export"},
    {"\x1f\x8b", "compressed with gzip; decompress it first"},
    {"\x89HDF", "an HDF5 file (Keras?), not an ONNX model"},
    {"{", "a JSON text, not an ONNX model"},
};

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

Buffer read_model_file(const std::filesystem::path& path) {
  const std::string name = printable(path.string());
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  PT_CHECK(file.get() >= 0, kModel, "cannot open the model {}: {}", name, std::strerror(errno));
  struct stat status {};
  PT_CHECK(::fstat(file.get(), &status) == 0, kModel, "cannot examine the model {}: {}", name,
           std::strerror(errno));
  PT_CHECK(!S_ISDIR(status.st_mode), kModel, "{} is a directory, not an ONNX file", name);
  PT_CHECK(S_ISREG(status.st_mode), kModel, "{} is not a regular file", name);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  PT_CHECK(size <= kMaximumBytes, kModel,
           "{} has {} bytes, more than the 2 GiB an ONNX file may have; store its tensors as "
           "external data",
           name, size);
  Buffer bytes(size);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    PT_CHECK(got >= 0, kModel, "cannot read the model {}: {}", name, std::strerror(errno));
    PT_CHECK(got > 0, kModel, "the model {} became shorter while it was read", name);
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

void refuse_other_formats(std::span<const std::byte> bytes, const std::string& name) {
  PT_CHECK(!bytes.empty(), kModel, "{} is an empty file, not an ONNX model", printable(name));
  std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                        std::min<std::size_t>(bytes.size(), 4096));
  // Blank lines before a text are common, and protobuf would parse them as a field.
  std::string_view trimmed = text;
  while (!trimmed.empty() && std::strchr(" \t\r\n", trimmed[0]) != nullptr)
    trimmed.remove_prefix(1);
  for (const OtherFormat& format : kOtherFormats) {
    PT_CHECK(!trimmed.starts_with(format.begins), kModel, "{} is {}", printable(name), format.what);
  }
  const bool all_text = std::ranges::all_of(
      text, [](char c) { return (c >= ' ' && c < 0x7f) || c == '\n' || c == '\t' || c == '\r'; });
  PT_CHECK(!all_text, kModel, "{} is a text file, not an ONNX model", printable(name));
}

std::uint64_t hash_bytes(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0x9e3779b97f4a7c15 ^ bytes.size();
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = (hash ^ word) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  }
  for (; i < bytes.size(); ++i) {
    hash = (hash ^ std::to_integer<std::uint64_t>(bytes[i])) * 0xff51afd7ed558ccd;
  }
  return hash ^ hash >> 29;
}

}  // namespace pipetrain
