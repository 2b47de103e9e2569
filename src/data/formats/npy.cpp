// NumPy's array files. The header is a Python dictionary literal:
// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

// Reads just the literals that NumPy writes: strings, True, False, tuples of whole numbers.
class Literal {
 public:
  Literal(std::string_view text, const std::string& name) : rest_(text), name_(name) {}

  bool take(std::string_view token) {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n'))
      rest_.remove_prefix(1);
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) fail();
  }
  std::string string() {
    const char quote = take("'") ? '\'' : '"';
    if (quote == '"') expect("\"");
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) fail();
    std::string out(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return out;
  }
  bool boolean() {
    if (take("True")) return true;
    expect("False");
    return false;
  }
  Shape tuple() {
    std::vector<std::int64_t> dims;
    expect("(");
    while (!take(")")) {
      take("");  // spaces
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
      if (error != std::errc() || value < 0) fail();
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      take("L");  // Python 2 wrote long integers so
      dims.push_back(value);
      if (!take(",")) {
        expect(")");
        break;
      }
    }
    return Shape(std::move(dims));
  }
  [[noreturn]] void fail() const {
    PT_FAIL(kData, "\"{}\" is not a readable NumPy array: its header is malformed at \"{}\"", name_,
            printable(rest_));
  }

 private:
  std::string_view rest_;
  const std::string& name_;
};

DType dtype_of_descr(std::string_view descr) {
  constexpr std::pair<std::string_view, DType> kTypes[] = {
      {"b1", DType::kBool},    {"i1", DType::kInt8},    {"u1", DType::kUint8},
      {"i2", DType::kInt16},   {"u2", DType::kUint16},  {"i4", DType::kInt32},
      {"u4", DType::kUint32},  {"i8", DType::kInt64},   {"u8", DType::kUint64},
      {"f2", DType::kFloat16}, {"f4", DType::kFloat32}, {"f8", DType::kFloat64},
  };
  if (descr.size() != 3) return DType::kUndefined;
  for (const auto& [name, dtype] : kTypes) {
    if (descr.substr(1) == name) return dtype;
  }
  return DType::kUndefined;
}

void append_utf8(std::uint32_t point, std::string& out) {
  if (point < 0x80) {
    out += static_cast<char>(point);
    return;
  }
  const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
  constexpr std::uint32_t kFirst[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(kFirst[more] | point >> (6 * more));
  for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | (point >> (6 * i) & 0x3f));
}

// Copies an array whose first axis is the fastest into row-major order.
void copy_fortran(const std::byte* in, std::byte* out, const Shape& shape, std::size_t size) {
  const std::size_t rank = shape.rank();
  std::vector<std::size_t> stride(rank), index(rank);
  std::size_t step = size;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    stride[axis] = step;
    step *= static_cast<std::size_t>(shape[axis]);
  }
  const auto count = static_cast<std::size_t>(shape.count());
  const std::byte* from = in;
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(out + i * size, from, size);
    for (std::size_t axis = rank; axis-- > 0;) {
      from += stride[axis];
      if (++index[axis] < static_cast<std::size_t>(shape[axis])) break;
      from -= stride[axis] * index[axis];
      index[axis] = 0;
    }
  }
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> bytes, const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  PT_CHECK(text.starts_with(kMagic) && bytes.size() >= 12, kData, "\"{}\" is not a NumPy array",
           printable(name));
  const auto version = std::to_integer<int>(bytes[6]);
  PT_CHECK(version >= 1 && version <= 3, kData,
           "\"{}\" is a NumPy array of format version {}; 1 to 3 can be read", printable(name),
           version);
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::size_t length = little_endian(bytes.subspan(8, length_bytes));
  const std::size_t begin = 8 + length_bytes;
  PT_CHECK(length <= bytes.size() - begin, kData, "\"{}\" is a truncated NumPy array",
           printable(name));
  const std::string shown = printable(name);
  Literal header(text.substr(begin, length), shown);
  NpyHeader out;
  out.data_begin = begin + length;
  bool has_shape = false;
  header.expect("{");
  while (!header.take("}")) {
    const std::string key = header.string();
    header.expect(":");
    if (key == "descr") {
      // A list describes a record; its fields have no place here.
      PT_CHECK(!header.take("["), kData,
               "\"{}\" is a NumPy array of records; save each field as an array of its own", shown);
      out.descr = header.string();
    } else if (key == "fortran_order") {
      out.fortran_order = header.boolean();
    } else if (key == "shape") {
      out.shape = header.tuple();
      has_shape = true;
    } else {
      header.fail();
    }
    if (!header.take(",")) {
      header.expect("}");
      break;
    }
  }
  PT_CHECK(has_shape && !out.descr.empty(), kData,
           "\"{}\" is a damaged NumPy array: no shape or no type in its header", shown);
  out.dtype = dtype_of_descr(out.descr);
  out.big_endian = out.descr.front() == '>';
  return out;
}

HostTensor parse_npy(std::span<const std::byte> bytes, const std::string& name) {
  const NpyHeader header = parse_npy_header(bytes, name);
  PT_CHECK(header.dtype != DType::kUndefined, kData,
           "\"{}\" is a NumPy array of type \"{}\"; bool, integers and float16/32/64 can be read",
           printable(name), printable(header.descr));
  const auto data = bytes.subspan(header.data_begin);
  const std::size_t size = size_of(header.dtype);
  // Multiplied so that a lying shape cannot overflow, not even with a zero among its extents.
  std::size_t count = 1;
  bool empty = false;
  for (const std::int64_t dim : header.shape) {
    const auto extent = static_cast<std::size_t>(std::max<std::int64_t>(dim, 1));
    PT_CHECK(count <= std::numeric_limits<std::int64_t>::max() / size / extent, kData,
             "\"{}\" is a damaged NumPy array: its shape {} is impossible", printable(name),
             header.shape.text());
    count *= extent;
    empty |= dim == 0;
  }
  if (empty) count = 0;
  PT_CHECK(count * size == data.size(), kData,
           "\"{}\" is a damaged or truncated NumPy array: {} of type {} needs {} bytes, it has {}",
           printable(name), header.shape.text(), name_of(header.dtype), count * size, data.size());
  HostTensor out(TensorType{header.dtype, header.shape, Layout::kRowMajor});
  auto* to = static_cast<std::byte*>(out.view().data);
  if (header.fortran_order && header.shape.rank() > 1) {
    copy_fortran(data.data(), to, header.shape, size);
  } else if (!data.empty()) {
    std::memcpy(to, data.data(), data.size());
  }
  const std::span<std::byte> copied(to, data.size());
  if (header.big_endian) swap_bytes(copied, size);
  if (header.dtype == DType::kBool) {
    for (std::byte& byte : copied) byte = std::byte{byte != std::byte{0}};
  }
  return out;
}

std::vector<std::string> parse_npy_words(std::span<const std::byte> bytes,
                                         const std::string& name) {
  const NpyHeader header = parse_npy_header(bytes, name);
  const bool wide = header.descr.size() > 2 && header.descr[1] == 'U';
  if (header.shape.rank() != 1 || !(wide || header.descr.starts_with("|S"))) return {};
  std::size_t length = 0;
  const char* end = header.descr.data() + header.descr.size();
  if (std::from_chars(header.descr.data() + 2, end, length).ptr != end || length == 0) return {};
  const std::size_t size = wide ? 4 : 1;
  const auto data = bytes.subspan(header.data_begin);
  const auto rows = static_cast<std::size_t>(header.shape[0]);
  PT_CHECK(length <= data.size() && rows == data.size() / (length * size) &&
               rows * length * size == data.size(),
           kData,
           "\"{}\" is a damaged or truncated NumPy array: {} strings of type \"{}\" in {} bytes",
           printable(name), header.shape[0], printable(header.descr), data.size());
  std::vector<std::string> out(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < length; ++i) {
      std::byte letter[4] = {};
      std::copy_n(data.begin() + static_cast<std::ptrdiff_t>((row * length + i) * size), size,
                  letter);
      if (header.big_endian) std::reverse(letter, letter + size);
      const auto point = static_cast<std::uint32_t>(little_endian({letter, size}));
      if (point == 0) break;  // shorter ones are filled with zeros
      PT_CHECK(point < 0x110000, kData, "\"{}\" is a damaged NumPy array: string {} is no text",
               printable(name), row);
      if (wide) {
        append_utf8(point, out[row]);
      } else {
        out[row] += static_cast<char>(point);
      }
    }
  }
  return out;
}

}  // namespace pipetrain
