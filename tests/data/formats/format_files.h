// Files of data formats, built by hand from the formats' descriptions.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "data/loading/open_data.h"
#include "data/rows/row_source.h"
#include "support/data_files.h"
#include "support/image_bytes.h"

namespace pipetrain::format_files {

using Doubles = std::vector<double>;

inline std::string octal(std::uint64_t value, int digits) {
  return fmt::format("{:0{}o}", value, digits);
}

inline std::string tar_header(const std::string& name, std::uint64_t size, char type) {
  std::string out = name;
  out.resize(100);
  out += octal(0644, 7) + '\0' + octal(0, 7) + '\0' + octal(0, 7) + '\0';
  out += octal(size, 11) + '\0' + octal(0, 11) + '\0' + "        " + type;
  out.resize(257);
  out += std::string(
      "ustar\0"
      "00",
      8);
  out.resize(512);
  std::uint64_t sum = 0;
  for (const char c : out) sum += static_cast<unsigned char>(c);
  out.replace(148, 8, octal(sum, 6) + std::string("\0 ", 2));
  return out;
}

inline std::string tar_member(const std::string& name, const std::string& content,
                              char type = '0') {
  std::string out = tar_header(name, content.size(), type) + content;
  out.resize((out.size() + 511) / 512 * 512);
  return out;
}

inline const std::string kTarEnd(1024, '\0');

inline std::string field(int number, const std::string& content) {  // a protobuf field of bytes
  std::string out(1, static_cast<char>(number << 3 | 2));
  std::size_t length = content.size();
  for (; length > 127; length >>= 7) out += static_cast<char>(length | 128);
  return out + static_cast<char>(length) + content;
}

inline std::string feature(const std::string& name, int kind, const std::string& list) {
  return field(1, field(1, name) + field(2, field(kind, list)));
}

inline std::uint32_t masked(const std::string& text) {
  return std::rotr(crc32c(std::as_bytes(std::span(text))), 15) + 0xa282ead8u;
}

inline std::string record(const std::string& features) {
  const std::string data = field(1, features), length = little(data.size(), 8);
  return length + little(masked(length), 4) + data + little(masked(data), 4);
}

inline std::string little_floats(std::initializer_list<float> values) {
  std::string out;
  for (const float value : values) out += little(std::bit_cast<std::uint32_t>(value), 4);
  return out;
}

inline std::string megatron_index(int code, int size, const std::vector<std::uint32_t>& lengths) {
  std::string out = std::string("MMIDIDX\0\0", 9) + little(1, 8) + static_cast<char>(code) +
                    little(lengths.size(), 8) + little(lengths.size() + 1, 8),
              pointers, documents;
  std::uint64_t at = 0;
  for (const std::uint32_t length : lengths) {
    out += little(length, 4);
    pointers += little(at, 8);
    at += length * static_cast<std::uint64_t>(size);
  }
  for (std::size_t i = 0; i <= lengths.size(); ++i) documents += little(i, 8);
  return out + pointers + documents;
}

inline DataSpec wants(Shape input, std::int64_t classes) {
  DataSpec out;
  out.inputs.push_back({"in", DType::kFloat32, std::move(input), -1});
  out.label = LabelSpec{};
  out.label->classes = classes;
  return out;
}

inline DataSpec wants_tokens(std::int64_t length, std::int64_t vocabulary) {
  DataSpec out;
  out.inputs.push_back({"ids", DType::kInt64, {length}, vocabulary});
  out.label = LabelSpec{};
  out.label->sample_shape = Shape{length};
  out.label->classes = vocabulary;
  out.label->shifted_input = true;
  return out;
}

/// Writes files into a directory of its own and opens them.
class Formats : public DataFiles {
 protected:
  OpenedData opened(const std::string& path, const DataSpec& spec, DataOptions options = {}) {
    options.path = path;
    if (options.bind.normalization.kind == Normalization::Kind::kAuto &&
        options.bind.normalization.mean.empty()) {
      options.bind.normalization = Normalization::parse("none");
    }
    return open_data(options, spec);
  }
};

/// The pixels of kPng and kBmp (image_bytes.h).
inline const Doubles kPlanes = {255, 0,  0,  10, 40, 70,  0,  255, 0,
                                20,  50, 80, 0,  0,  255, 30, 60,  90};

/// Three examples of TensorFlow: two numbers, a label and a name each.
inline std::string examples() {
  std::string out;
  for (int i = 0; i < 3; ++i) {
    out += record(feature("x", 2, field(1, little_floats({i + 0.5f, -1.0f * i}))) +
                  feature("label", 3, std::string("\x08", 1) + static_cast<char>(i)) +
                  feature("name", 1, field(1, std::string(static_cast<std::size_t>(i + 1), 'n'))));
  }
  return out;
}

}  // namespace pipetrain::format_files
