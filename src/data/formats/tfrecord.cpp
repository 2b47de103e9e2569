// TFRecord: u64 length, masked CRC-32C of it, bytes, masked CRC-32C of them; each a message
// tf.train.Example: Example{1: Features{1: map<name, Feature>}}, Feature{1: bytes, 2: floats, 3:
// ints}, in protobuf's wire format, read here without protobuf.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>

#include "base/checksum.h"
#include "base/error.h"
#include "base/protobuf_message.h"
#include "data/formats/image_rows.h"
#include "data/rows/ragged_rows.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

using Bytes = std::span<const std::byte>;

std::uint32_t masked_checksum(Bytes bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

using Message = ProtobufMessage;

struct Feature {
  std::vector<Bytes> bytes;
  std::vector<float> floats;
  std::vector<std::int64_t> ints;
};

bool read_list(Bytes list, std::uint32_t kind, Feature& out) {
  Message values(list);
  while (values.next()) {
    if (values.number != 1) continue;
    if (kind == 1 && values.wire == 2) out.bytes.push_back(values.content);
    if (kind == 2 && (values.wire == 2 || values.wire == 5)) {
      if (values.content.size() % 4 != 0) return false;
      for (std::size_t at = 0; at < values.content.size(); at += 4) {
        out.floats.push_back(std::bit_cast<float>(
            static_cast<std::uint32_t>(little_endian(values.content.subspan(at, 4)))));
      }
    }
    if (kind == 3 && values.wire == 0) out.ints.push_back(static_cast<std::int64_t>(values.value));
    if (kind == 3 && values.wire == 2) {
      Message packed(values.content);
      while (!packed.at_end() && packed.good) {
        out.ints.push_back(static_cast<std::int64_t>(packed.varint()));
      }
      if (!packed.good) return false;
    }
  }
  return values.good;
}

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Features by name; nothing if the bytes are not such a message.
std::optional<std::map<std::string, Feature>> read_example(Bytes bytes) {
  std::map<std::string, Feature> out;
  Message example(bytes);
  while (example.next()) {
    if (example.number != 1 || example.wire != 2) continue;
    Message features(example.content);
    while (features.next()) {
      if (features.number != 1 || features.wire != 2) continue;
      std::string name;
      Feature feature;
      Message entry(features.content);
      while (entry.next()) {
        if (entry.number == 1 && entry.wire == 2) name = text_of(entry.content);
        if (entry.number != 2 || entry.wire != 2) continue;
        Message kinds(entry.content);
        while (kinds.next()) {
          if (kinds.wire == 2 && kinds.number <= 3 &&
              !read_list(kinds.content, kinds.number, feature)) {
            return std::nullopt;
          }
        }
        if (!kinds.good) return std::nullopt;
      }
      if (!entry.good) return std::nullopt;
      out[name] = std::move(feature);
    }
    if (!features.good) return std::nullopt;
  }
  if (!example.good) return std::nullopt;
  return out;
}

class ExampleColumns {
 public:
  void add_file(const std::string& file) {
    const FileBytes content = FileBytes::open_inflated(file);
    const Bytes all = content.bytes();
    std::size_t record = 0;
    for (std::size_t at = 0; at < all.size(); ++record) {
      const std::string place = fmt::format("{} record {}", printable(file), record);
      PT_CHECK(all.size() - at >= 12, kData, "{} is truncated", place);
      const Bytes head = all.subspan(at, 12);
      PT_CHECK(masked_checksum(head.first(8)) == little_endian(head.subspan(8, 4)), kData,
               "{} is damaged: the checksum of its length is wrong", place);
      const std::uint64_t length = little_endian(head.first(8));
      at += 12;
      PT_CHECK(all.size() - at >= 4 && length <= all.size() - at - 4, kData, "{} is truncated",
               place);
      const Bytes data = all.subspan(at, length);
      PT_CHECK(masked_checksum(data) == little_endian(all.subspan(at + length, 4)), kData,
               "{} is damaged: its checksum is wrong", place);
      add_record(content, data, place);
      at += length + 4;
    }
  }

  RawSplit result(const std::string& path, std::vector<std::string>& notes,
                  const RowLengths& lengths, std::int64_t ignored_label, bool one_row_per_text) {
    PT_CHECK(records_ > 0, kData, "\"{}\" has no records", printable(path));
    RawSplit out;
    std::vector<RaggedRows> all;
    for (auto& [name, rows] : numbers_) {
      if (rows.are_ragged_reals()) {
        unused_.emplace(name, "numbers in rows of several lengths");
      } else {
        all.push_back(std::move(rows));
      }
    }
    const bool alone = images_.empty() && raw_.empty();
    if (!all.empty())
      out = columns_of(std::move(all), path, {}, notes, lengths, ignored_label, alone,
                       one_row_per_text);
    for (auto& [name, rows] : raw_) {
      const Shape shape{static_cast<std::int64_t>(rows.size() / raw_size_[name]),
                        static_cast<std::int64_t>(raw_size_[name])};
      out.columns.insert(
          out.columns.begin(),
          {name, HostTensor::of<std::uint8_t>(shape, rows), path, ColumnRole::kInput, {}, {}, {}});
    }
    for (auto& [name, store] : images_) {
      PT_CHECK(store->size() == records_, kData, "\"{}\": {} of {} records have an image \"{}\"",
               printable(path), store->size(), records_, printable(name));
      out.columns.insert(out.columns.begin(),
                         {name, {}, path, ColumnRole::kInput, {}, {}, {}, make_image_rows(store)});
    }
    for (const auto& [name, why] : unused_) {
      notes.push_back(fmt::format("\"{}\" is left out: {}", printable(name), why));
    }
    PT_CHECK(!out.empty(), kData, "\"{}\" has no numbers and no images", printable(path));
    return out;
  }

 private:
  void add_record(const FileBytes& file, Bytes data, const std::string& place) {
    const auto example = read_example(data);
    PT_CHECK(example, kData, "{} is not a tf.train.Example", place);
    for (const auto& [name, feature] : *example) {
      if (unused_.contains(name)) continue;
      if (feature.bytes.size() == 1) {
        add_bytes(file, name, feature.bytes[0], place);
      } else if (feature.bytes.size() > 1) {
        unused_.emplace(name, "lists of bytes");
      } else {
        add_numbers(name, feature);
      }
    }
    ++records_;
    leave_out_incomplete(numbers_, [](const RaggedRows& rows) { return rows.rows(); });
    for (const auto& [name, size] : raw_size_) {
      const auto rows = raw_.find(name);
      if (rows != raw_.end() && rows->second.size() != records_ * size) {
        raw_.erase(rows);
        unused_.emplace(name, fmt::format("record {} has another number of values", records_ - 1));
      }
    }
    for (const auto& [name, store] : images_) {
      PT_CHECK(store->size() == records_, kData, "{} has {} \"{}\"", place,
               store->size() < records_ ? "no" : "a new feature,", printable(name));
    }
  }

  // A feature that some records lack is not a column.
  template <class Rows, class Count>
  void leave_out_incomplete(std::map<std::string, Rows>& all, Count&& count) {
    for (auto each = all.begin(); each != all.end();) {
      if (count(each->second) == records_) {
        ++each;
        continue;
      }
      unused_.emplace(each->first,
                      fmt::format("record {} has another number of values", records_ - 1));
      each = all.erase(each);
    }
  }

  void add_bytes(const FileBytes& file, const std::string& name, Bytes bytes,
                 const std::string& place) {
    const auto known = images_.find(name);
    if (known != images_.end() || (records_ == 0 && image_format(bytes) != ImageFormat::kNone)) {
      auto& store = images_[name];
      if (!store) store = std::make_shared<ArchivedImages>();
      const auto begin = static_cast<std::size_t>(bytes.data() - file.bytes().data());
      store->add(file.slice(begin, bytes.size()), place);
      return;
    }
    auto& rows = raw_[name];
    if (rows.empty()) raw_size_[name] = bytes.size();
    if (bytes.size() != raw_size_[name] || bytes.empty()) {
      raw_.erase(name);
      unused_.emplace(name, "bytes of several lengths that are not images");
      return;
    }
    for (const std::byte byte : bytes) rows.push_back(std::to_integer<std::uint8_t>(byte));
  }

  void add_numbers(const std::string& name, const Feature& feature) {
    if (feature.floats.empty() && feature.ints.empty() && !numbers_.contains(name)) {
      unused_.emplace(name, "it is empty");
      return;
    }
    auto& rows = numbers_[name];
    if (rows.name().empty()) rows = RaggedRows(name);
    for (const float value : feature.floats) rows.add(static_cast<double>(value));
    for (const std::int64_t value : feature.ints) rows.add(value);
    const std::size_t count = feature.floats.size() + feature.ints.size();
    if (rows.rows() == 0) single_[name] = count == 1;
    if (count > 1 && single_[name] && rows.become_lists()) single_[name] = false;
    const bool single = single_[name] && count == 1;
    const std::string wrong =
        rows.end_row(single ? Shape{} : Shape{static_cast<std::int64_t>(count)});
    if (wrong.empty()) return;
    numbers_.erase(name);
    unused_.emplace(name, "numbers in rows of several lengths");
  }

  std::map<std::string, RaggedRows> numbers_;
  std::map<std::string, bool> single_;
  std::map<std::string, std::vector<std::uint8_t>> raw_;
  std::map<std::string, std::size_t> raw_size_;
  std::map<std::string, std::shared_ptr<ArchivedImages>> images_;
  std::map<std::string, std::string> unused_;
  std::size_t records_ = 0;
};

}  // namespace

bool is_tfrecord(std::span<const std::byte> bytes) {
  return bytes.size() >= 12 &&
         masked_checksum(bytes.first(8)) == little_endian(bytes.subspan(8, 4));
}

RawData read_tfrecord(const std::string& path, const RowLengths& lengths,
                      std::int64_t ignored_label, bool one_row_per_text) {
  RawData out{path, "TFRecord", {}, {}, {}};
  ExampleColumns train, validation;
  const std::vector<std::string> all = list_files(path, [](const std::string& name) {
    return bare_name(name).find("tfrecord") != std::string::npos;
  });
  const FileParts files = divide_files(all, out.notes);
  for (const std::string& file : files.train) train.add_file(file);
  for (const std::string& file : files.validation) validation.add_file(file);
  out.train = train.result(path, out.notes, lengths, ignored_label, one_row_per_text);
  if (!files.validation.empty())
    out.validation = validation.result(path, out.notes, lengths_beside(out.train, lengths),
                                       ignored_label, one_row_per_text);
  return out;
}

}  // namespace pipetrain
