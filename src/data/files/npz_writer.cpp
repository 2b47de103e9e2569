#include "data/files/npz_writer.h"

#include <zlib.h>

#include <algorithm>

#include "base/error.h"
#include "base/safe_text.h"

namespace pipetrain {

namespace {

void append_little(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i, value >>= 8) out += static_cast<char>(value & 255);
}

constexpr std::uint64_t kInZip64 = 0xffffffff;

// Length and checksum follow the data (bit 3), as rows come one by one. The name is UTF-8 (bit 11),
// which other programs take for code page 437 otherwise.
std::uint64_t flags_of(const std::string& name) {
  return 1u << 3 | (is_utf8(name) ? 1u << 11 : 0u);
}

std::string descr_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "|b1";
    case DType::kInt8:
      return "|i1";
    case DType::kUint8:
      return "|u1";
    case DType::kInt16:
      return "<i2";
    case DType::kUint16:
      return "<u2";
    case DType::kInt32:
      return "<i4";
    case DType::kUint32:
      return "<u4";
    case DType::kInt64:
      return "<i8";
    case DType::kUint64:
      return "<u8";
    case DType::kFloat16:
      return "<f2";
    case DType::kFloat32:
      return "<f4";
    case DType::kFloat64:
      return "<f8";
    default:
      PT_FAIL(kInternal, "NumPy has no type for {}", name_of(dtype));
  }
}

}  // namespace

std::string npy_header(const TensorType& type) {
  std::string shape;
  for (const std::int64_t dim : type.shape) shape += fmt::format("{}, ", dim);
  if (type.shape.rank() > 1) shape.resize(shape.size() - 2);
  if (type.shape.rank() == 1) shape.resize(shape.size() - 1);
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                 descr_of(type.dtype), shape);
  // The elements begin at a multiple of 64.
  text.append((64 - (10 + text.size() + 1) % 64) % 64, ' ');
  text += '\n';
  std::string out = "\x93NUMPY";
  out += '\x01';
  out += '\0';
  append_little(out, text.size(), 2);
  return out + text;
}

void NpzWriter::put(const std::string& bytes) { file_.write(std::string_view(bytes)); }

void NpzWriter::begin(const std::string& name, const TensorType& type) {
  end();
  entries_.push_back({name + ".npy", file_.written(), 0, 0, 0});
  open_ = true;
  std::string header;
  append_little(header, 0x04034b50, 4);
  append_little(header, 45, 2);  // version that knows ZIP64
  append_little(header, flags_of(entries_.back().name), 2);
  append_little(header, 0, 2);           // stored
  append_little(header, 0x00210000, 4);  // 1980-01-01: the same data make the same file
  append_little(header, 0, 4);
  append_little(header, kInZip64, 4);
  append_little(header, kInZip64, 4);
  append_little(header, entries_.back().name.size(), 2);
  append_little(header, 20, 2);
  header += entries_.back().name;
  append_little(header, 1, 2);
  append_little(header, 16, 2);
  append_little(header, 0, 8);
  append_little(header, 0, 8);
  put(header);
  entries_.back().data_begin = file_.written();
  const std::string array_header = npy_header(type);
  write(std::as_bytes(std::span(array_header)));
}

void NpzWriter::write(std::span<const std::byte> elements) {
  Entry& entry = entries_.back();
  while (!elements.empty()) {
    const auto piece = elements.first(std::min<std::size_t>(elements.size(), 1u << 30));
    entry.checksum = static_cast<std::uint32_t>(crc32(entry.checksum,
                                                      reinterpret_cast<const Bytef*>(piece.data()),
                                                      static_cast<uInt>(piece.size())));
    file_.write(piece);
    elements = elements.subspan(piece.size());
  }
}

void NpzWriter::add(const std::string& name, const Tensor& array) {
  begin(name, array.type);
  write({array.as<std::byte>(), array.bytes()});
}

void NpzWriter::end() {
  if (!open_) return;
  open_ = false;
  Entry& entry = entries_.back();
  entry.bytes = file_.written() - entry.data_begin;
  std::string after;
  append_little(after, 0x08074b50, 4);
  append_little(after, entry.checksum, 4);
  append_little(after, entry.bytes, 8);
  append_little(after, entry.bytes, 8);
  put(after);
}

void NpzWriter::commit() {
  end();
  const std::uint64_t directory = file_.written();
  for (const Entry& entry : entries_) {
    std::string header;
    append_little(header, 0x02014b50, 4);
    append_little(header, 45, 2);
    append_little(header, 45, 2);
    append_little(header, flags_of(entry.name), 2);
    append_little(header, 0, 2);
    append_little(header, 0x00210000, 4);
    append_little(header, entry.checksum, 4);
    append_little(header, kInZip64, 4);
    append_little(header, kInZip64, 4);
    append_little(header, entry.name.size(), 2);
    append_little(header, 28, 2);
    append_little(header, 0, 2 + 2 + 2 + 4);  // comment, disk, attributes
    append_little(header, kInZip64, 4);
    header += entry.name;
    append_little(header, 1, 2);
    append_little(header, 24, 2);
    append_little(header, entry.bytes, 8);
    append_little(header, entry.bytes, 8);
    append_little(header, entry.begin, 8);
    put(header);
  }
  const std::uint64_t end = file_.written();
  std::string tail;
  append_little(tail, 0x06064b50, 4);
  append_little(tail, 44, 8);
  append_little(tail, 45, 2);
  append_little(tail, 45, 2);
  append_little(tail, 0, 4);
  append_little(tail, 0, 4);
  append_little(tail, entries_.size(), 8);
  append_little(tail, entries_.size(), 8);
  append_little(tail, end - directory, 8);
  append_little(tail, directory, 8);
  append_little(tail, 0x07064b50, 4);  // where that record is
  append_little(tail, 0, 4);
  append_little(tail, end, 8);
  append_little(tail, 1, 4);
  append_little(tail, 0x06054b50, 4);
  append_little(tail, 0, 4);
  append_little(tail, std::min<std::uint64_t>(entries_.size(), 0xffff), 2);
  append_little(tail, std::min<std::uint64_t>(entries_.size(), 0xffff), 2);
  append_little(tail, kInZip64, 4);
  append_little(tail, kInZip64, 4);
  append_little(tail, 0, 2);
  put(tail);
  file_.commit();
}

}  // namespace pipetrain
