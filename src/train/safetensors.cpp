#include "train/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/checksum.h"
#include "base/document.h"
#include "base/error.h"
#include "base/input_file.h"

namespace pipetrain {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::uint64_t kLongestHeader = 100'000'000;  // as in the format's own reader
constexpr std::size_t kAlignment = 64;                 // of the data, so that they can be mapped

struct TypeName {
  DType dtype;
  const char* name;
};
constexpr std::array<TypeName, 13> kTypes = {{{DType::kFloat32, "F32"},
                                              {DType::kFloat64, "F64"},
                                              {DType::kFloat16, "F16"},
                                              {DType::kBFloat16, "BF16"},
                                              {DType::kInt64, "I64"},
                                              {DType::kInt32, "I32"},
                                              {DType::kInt16, "I16"},
                                              {DType::kInt8, "I8"},
                                              {DType::kUint64, "U64"},
                                              {DType::kUint32, "U32"},
                                              {DType::kUint16, "U16"},
                                              {DType::kUint8, "U8"},
                                              {DType::kBool, "BOOL"}}};

const char* type_name(DType dtype) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](const TypeName& t) { return t.dtype == dtype; });
  PT_CHECK(found != kTypes.end(), kInternal, "safetensors has no {}", name_of(dtype));
  return found->name;
}

std::span<const std::byte> bytes_of(const HostTensor& tensor) {
  return {static_cast<const std::byte*>(tensor.view().data), tensor.type().bytes()};
}

/// Length and header: everything before the data.
std::string head_of(const TensorTypes& types) {
  std::string text;
  std::uint64_t offset = 0;
  for (const auto& [name, type] : types) {
    PT_CHECK(
        name != "__metadata__" && as_document_string(name) == name, kModel,
        "the tensor \"{}\" cannot be saved in a checkpoint: its name is {}; rename it in the model",
        printable(name), name == "__metadata__" ? "reserved by the file format" : "not UTF-8");
    const std::uint64_t end = offset + type.bytes();
    const Json entry = {{"dtype", type_name(type.dtype)},
                        {"shape", type.shape.dims()},
                        {"data_offsets", {offset, end}}};
    text += (text.empty() ? "{" : ",") + Json(name).dump() + ":" + entry.dump();
    offset = end;
  }
  text += text.empty() ? "{}" : "}";
  text.resize((8 + text.size() + kAlignment - 1) / kAlignment * kAlignment - 8, ' ');
  const std::uint64_t length = text.size();
  std::string head(8, '\0');
  std::memcpy(head.data(), &length, 8);
  return head + text;
}

TensorTypes types_of(const NamedTensors& tensors) {
  TensorTypes types;
  for (const auto& [name, tensor] : tensors) types.emplace(name, tensor.type());
  return types;
}

std::uint64_t length_of(const std::string& head, const TensorTypes& types) {
  std::uint64_t bytes = head.size();
  for (const auto& [name, type] : types) bytes += type.bytes();
  return bytes;
}

/// A file that is hashed while it is read from beginning to end.
class Input {
 public:
  explicit Input(const std::filesystem::path& path) : path_(path), file_(path, ErrorKind::kData) {}
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(file_.status().st_size); }
  void read(void* to, std::size_t count) {
    auto* next = static_cast<std::byte*>(to);
    for (std::size_t left = count; left > 0;) {
      const ssize_t got = ::read(file_.descriptor(), next, left);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail();
      PT_CHECK(got > 0, kData, "{} is truncated", printable(path_.string()));
      next += got;
      left -= static_cast<std::size_t>(got);
    }
    hash_.add({static_cast<const std::byte*>(to), count});
  }
  std::string digest() { return hash_.digest(); }

 private:
  [[noreturn]] void fail() const {
    PT_FAIL(kData, "cannot read {}: {}", printable(path_.string()), std::strerror(errno));
  }
  const std::filesystem::path& path_;
  InputFile file_;
  Sha256 hash_;
};

/// Empty tensors of the types in a header. The checksum of the header is usually right, so the
/// errors here are brief.
NamedTensors tensors_of(const std::string& text, const FileRecord& record, std::uint64_t data) {
  constexpr std::size_t kEntryFields = 3;
  const nlohmann::json header =
      parse_json_by_name(text, std::max(record.tensors.size(), kEntryFields));
  NamedTensors tensors;
  PT_CHECK(header.is_object() && header.size() == record.tensors.size(), kData,
           "its header is damaged");
  std::uint64_t offset = data;
  for (const TensorPlace& place : record.tensors) {
    PT_CHECK(header.contains(place.name), kData, "its header lacks \"{}\"", printable(place.name));
    const nlohmann::json& entry = header.at(place.name);
    const std::string dtype = entry.value("dtype", "");
    const auto* type = std::find_if(kTypes.begin(), kTypes.end(),
                                    [&](const TypeName& t) { return dtype == t.name; });
    PT_CHECK(type != kTypes.end() && entry.at("shape").is_array(), kData, "its header is damaged");
    std::vector<std::int64_t> dims;
    std::uint64_t count = 1;
    for (const nlohmann::json& dim : entry.at("shape")) {
      PT_CHECK(dim.is_number_unsigned() && dim.get<std::uint64_t>() <= record.bytes, kData,
               "its header is damaged");
      dims.push_back(dim.get<std::int64_t>());
      PT_CHECK(!__builtin_mul_overflow(count, dim.get<std::uint64_t>(), &count), kData,
               "its header is damaged");
    }
    PT_CHECK(count <= place.bytes && count * size_of(type->dtype) == place.bytes &&
                 place.offset == offset &&
                 entry.at("data_offsets") ==
                     nlohmann::json({offset - data, offset - data + place.bytes}),
             kData, "its header contradicts the manifest at \"{}\"", printable(place.name));
    tensors[place.name] = HostTensor(TensorType{type->dtype, Shape(std::move(dims))});
    offset += place.bytes;
  }
  PT_CHECK(offset == record.bytes, kData, "it has bytes that do not belong to any tensor");
  return tensors;
}

}  // namespace

FileRecord write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors) {
  return write_safetensors(path, types_of(tensors),
                           [&](const std::string& name) { return bytes_of(tensors.at(name)); });
}

FileRecord write_safetensors(
    const std::filesystem::path& path, const TensorTypes& types,
    const std::function<std::span<const std::byte>(const std::string&)>& bytes_of) {
  const std::string head = head_of(types);
  FileRecord record;
  record.name = path.filename().string();
  AtomicFile file(path);
  file.reserve(length_of(head, types));
  Sha256 hash;
  file.write(head);
  hash.add(head);
  for (const auto& [name, type] : types) {
    const std::span<const std::byte> bytes = bytes_of(name);
    record.tensors.push_back({name, file.written(), bytes.size(), crc32c(bytes)});
    file.write(bytes);
    hash.add(bytes);
  }
  record.bytes = file.written();
  record.sha256 = hash.digest();
  file.commit();
  return record;
}

NamedTensors read_safetensors(const std::filesystem::path& path, const FileRecord& record) {
  const std::string file = printable(path.string());
  Input in(path);
  PT_CHECK(in.bytes() == record.bytes, kData,
           "{} is damaged: it has {} bytes, but had {} when it was written", file, in.bytes(),
           record.bytes);
  const auto damaged = [&](const std::string& where) {
    PT_FAIL(kData, "{} is damaged: {}", file, where);
  };
  std::uint64_t length = 0;
  if (in.bytes() < 8) damaged("it is too short");
  in.read(&length, 8);
  if (length > kLongestHeader || length > record.bytes - 8) damaged("its header is damaged");
  std::string header(length, '\0');
  in.read(header.data(), length);
  NamedTensors tensors;
  try {
    tensors = tensors_of(header, record, 8 + length);
  } catch (const Error& error) {
    damaged(error.message());
  } catch (const Json::exception&) {
    damaged("its header is damaged");
  }
  std::string changed;
  for (const TensorPlace& place : record.tensors) {
    const HostTensor& tensor = tensors.at(place.name);
    in.read(tensor.view().data, place.bytes);
    const std::uint32_t crc = crc32c(bytes_of(tensor));
    if (crc != place.crc32c && changed.empty()) {
      changed = fmt::format("tensor \"{}\" at byte {} has CRC-32C {:08x}, not {:08x}",
                            printable(place.name), place.offset, crc, place.crc32c);
    }
  }
  const std::string digest = in.digest();
  if (!changed.empty()) damaged(changed);
  if (digest != record.sha256) damaged("its header is not the one that was written (SHA-256)");
  return tensors;
}

}  // namespace pipetrain
