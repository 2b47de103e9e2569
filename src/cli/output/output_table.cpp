#include "cli/output/output_table.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "text/unicode.h"

namespace pipetrain {
namespace {

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

std::string_view numpy_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "<f4";
    case DType::kFloat64:
      return "<f8";
    case DType::kInt64:
      return "<i8";
    case DType::kInt32:
      return "<i4";
    case DType::kBool:
      return "|b1";
    case DType::kUint8:
      return "|u1";
    default:
      PT_FAIL(kModel, "outputs of type {} cannot be written", name_of(dtype));
  }
}

/// The header of an .npy file; `dims` as in "200, 10, ".
std::string npy_header(std::string_view type, const std::string& dims) {
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", type, dims);
  // The array begins at a multiple of 64.
  header.append(64 - (10 + header.size() + 1) % 64, ' ');
  header += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  put(out, static_cast<std::uint16_t>(header.size()));
  return out + header;
}

/// A number as text, in the shortest form that reads back equal.
std::string number_text(const Tensor& values, std::size_t index) {
  switch (values.type.dtype) {
    case DType::kFloat32:
      return fmt::format("{}", values.as<const float>()[index]);
    case DType::kFloat64:
      return fmt::format("{}", values.as<const double>()[index]);
    case DType::kInt64:
      return fmt::format("{}", values.as<const std::int64_t>()[index]);
    case DType::kInt32:
      return fmt::format("{}", values.as<const std::int32_t>()[index]);
    case DType::kBool:
    case DType::kUint8:
      return fmt::format("{}", values.as<const std::uint8_t>()[index]);
    default:
      PT_FAIL(kModel, "outputs of type {} cannot be written", name_of(values.type.dtype));
  }
}

bool is_finite(const Tensor& values, std::size_t index) {
  if (values.type.dtype == DType::kFloat32) return std::isfinite(values.as<const float>()[index]);
  return values.type.dtype != DType::kFloat64 || std::isfinite(values.as<const double>()[index]);
}

std::size_t row_size(const Tensor& values) {
  std::size_t size = 1;
  for (std::size_t d = 1; d < values.type.shape.rank(); ++d)
    size *= static_cast<std::size_t>(values.type.shape[d]);
  return size;
}

void put_nested(std::string& out, const Tensor& values, std::size_t axis, std::size_t& index) {
  if (axis == values.type.shape.rank()) {
    out += is_finite(values, index) ? number_text(values, index) : "null";
    ++index;
    return;
  }
  out += '[';
  for (std::int64_t i = 0; i < values.type.shape[axis]; ++i) {
    if (i > 0) out += ',';
    put_nested(out, values, axis + 1, index);
  }
  out += ']';
}

}  // namespace

std::string npy_text(const HostTensor& value) {
  std::string dims;
  for (const std::int64_t d : value.type().shape) dims += fmt::format("{}, ", d);
  std::string out = npy_header(numpy_type(value.dtype()), dims);
  return out.append(static_cast<const char*>(value.view().data), value.type().bytes());
}

std::string npy_text(const std::vector<std::string>& texts) {
  std::vector<std::u32string> all;
  std::size_t width = 1;
  for (const std::string& text : texts) {
    all.push_back(characters_of(text));
    width = std::max(width, all.back().size());
  }
  constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  PT_CHECK(width <= kMostBytes / 4 / std::max<std::size_t>(1, texts.size()), kResource,
           "{} texts, of which the longest has {} characters, are too many for an array of NumPy; "
           "write a .csv file",
           texts.size(), width);
  std::string out = npy_header(fmt::format("<U{}", width), fmt::format("{}, ", texts.size()));
  for (std::u32string& text : all) {
    text.resize(width);  // with zeros, which NumPy leaves out
    for (const char32_t character : text) put(out, static_cast<std::uint32_t>(character));
  }
  return out;
}

std::string npz_text(const std::vector<std::pair<std::string, std::string>>& arrays) {
  std::string out, directory;
  for (const auto& [name, data] : arrays) {
    const std::string file = name + ".npy";
    PT_CHECK(out.size() + data.size() < 0xfff00000U, kResource,
             "predictions over 4 GiB do not fit into one .npz; use --to jsonl or csv");
    const auto size = static_cast<std::uint32_t>(data.size());
    const auto crc = static_cast<std::uint32_t>(
        crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())));
    // What the header of the file and its entry in the directory share.
    std::string shared;
    put<std::uint16_t>(shared, 20);          // version needed
    put<std::uint16_t>(shared, 0x800);       // names are UTF-8
    put<std::uint16_t>(shared, 0);           // stored
    put<std::uint32_t>(shared, 0x00210000);  // 1980-01-01: the same bytes every time
    put(shared, crc);
    put(shared, size);
    put(shared, size);
    put(shared, static_cast<std::uint16_t>(file.size()));
    put<std::uint16_t>(shared, 0);
    directory += std::string("PK\x01\x02", 4) + std::string("\x14\x00", 2) + shared;
    directory.append(10, '\0');  // no comment, first disk, no attributes
    put(directory, static_cast<std::uint32_t>(out.size()));
    directory += file;
    out += std::string("PK\x03\x04", 4) + shared + file + data;
  }
  const auto begin = static_cast<std::uint32_t>(out.size());
  const auto count = static_cast<std::uint16_t>(arrays.size());
  out += directory + std::string("PK\x05\x06\0\0\0\0", 8);
  put(out, count);
  put(out, count);
  put(out, static_cast<std::uint32_t>(directory.size()));
  put(out, begin);
  put<std::uint16_t>(out, 0);
  return out;
}

std::string json_values(const Tensor& values, std::size_t row) {
  std::string out;
  std::size_t index = row * row_size(values);
  put_nested(out, values, 1, index);
  return out;
}

std::string csv_values(const std::vector<HostTensor>& outputs, std::size_t row) {
  std::string out;
  for (const HostTensor& output : outputs) {
    const Tensor values = output.view();
    const std::size_t size = row_size(values);
    for (std::size_t i = 0; i < size; ++i)
      out += (out.empty() ? "" : ",") + number_text(values, row * size + i);
  }
  return out;
}

std::string csv_header(const std::vector<std::string>& names,
                       const std::vector<HostTensor>& outputs) {
  std::string out;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const std::size_t size = row_size(outputs[k].view());
    std::string name = names[k];
    for (char& c : name) {
      if (c == ',' || c == '"' || c == '\n') c = '_';
    }
    for (std::size_t i = 0; i < size; ++i)
      out += fmt::format("{}{}{}", out.empty() ? "" : ",", name,
                         size > 1 ? fmt::format("_{}", i) : "");
  }
  return out;
}

}  // namespace pipetrain
