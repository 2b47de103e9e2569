// WebDataset: tar archives whose members with the same name up to the first dot make one sample:
// 000.png and 000.cls.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "data/files/tar_archive.h"
#include "data/formats/image_rows.h"
#include "data/rows/json_rows.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

namespace fs = std::filesystem;

// "a/b.left.png": sample "a/b", part "left.png".
std::pair<std::string, std::string> sample_and_part(const std::string& name) {
  const std::size_t folder = name.rfind('/') == std::string::npos ? 0 : name.rfind('/') + 1;
  const std::size_t dot = name.find('.', folder);
  if (dot == std::string::npos) return {name, ""};
  std::string part = name.substr(dot + 1);
  for (char& c : part) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return {name.substr(0, dot), part};
}

bool is_class_part(std::string_view part) {
  return part == "cls" || part == "cls.txt" || part == "label" || part == "id" || part == "index" ||
         part == "class";
}

// The samples of all shards, gathered part by part.
class SampleParts {
 public:
  void add_shard(const std::string& file) {
    const FileBytes content = FileBytes::open_inflated(file);
    std::string current;
    std::map<std::string, FileBytes> parts;
    for (TarMember& member : read_tar(content, file)) {
      auto [sample, part] = sample_and_part(member.name);
      if (fs::path(sample).filename().string().starts_with(".") || part.empty()) continue;
      if (sample != current && !parts.empty()) finish(file, current, parts);
      current = sample;
      PT_CHECK(!parts.contains(part), kData, "{} member {} occurs twice", printable(file),
               printable(member.name));
      parts.emplace(part, std::move(member.content));
    }
    if (!parts.empty()) finish(file, current, parts);
  }

  RawSplit result(const std::string& path, std::vector<std::string>& notes) {
    PT_CHECK(samples_ > 0, kData, "\"{}\" has no samples: members like 000.png and 000.cls",
             printable(path));
    RawSplit out;
    if (images_->size() > 0) {
      out.columns.push_back(
          {"x", {}, path, ColumnRole::kInput, {}, {}, {}, make_image_rows(images_)});
    }
    for (auto& [part, rows] : arrays_) out.columns.push_back(stack(path, part, rows));
    if (!classes_.empty()) {
      const Shape rows{static_cast<std::int64_t>(classes_.size())};
      out.columns.push_back({"y",
                             HostTensor::of<std::int64_t>(rows, classes_),
                             path,
                             ColumnRole::kLabel,
                             {},
                             {},
                             {}});
    }
    for (const auto& [part, count] : unused_) {
      notes.push_back(fmt::format("{} members .{} are not used", count, printable(part)));
    }
    PT_CHECK(!out.columns.empty(), kData, "\"{}\" has no supported members: images, .npy, .cls",
             printable(path));
    return out;
  }

 private:
  void finish(const std::string& file, const std::string& sample,
              std::map<std::string, FileBytes>& parts) {
    const std::string shown = fmt::format("{} member {}", printable(file), printable(sample));
    const bool has_class_part =
        std::ranges::any_of(parts, [](const auto& part) { return is_class_part(part.first); });
    std::size_t images = 0, classes = 0;
    std::set<std::string> arrays;
    for (const auto& [part, content] : parts) {
      const std::string name = fmt::format("{}.{}", shown, printable(part));
      if (has_image_name("." + part)) {
        PT_CHECK(++images == 1, kData, "{} has two images", shown);
        images_->add(content, name);
      } else if (part == "npy" || part.ends_with(".npy")) {
        const HostTensor array = parse_npy(content.bytes(), name);
        const std::string column = part == "npy" ? "x" : part.substr(0, part.size() - 4);
        PT_CHECK(arrays.insert(column).second, kData, "{} has two arrays \"{}\"", shown,
                 printable(column));
        auto& rows = arrays_[column];
        PT_CHECK(rows.empty() || rows[0].type() == array.type(), kData,
                 "{} is {}, the first was {}", name, array.type().text(),
                 rows.empty() ? "" : rows[0].type().text());
        rows.push_back(array);
      } else if (is_class_part(part)) {
        PT_CHECK(++classes == 1, kData, "{} has two classes", shown);
        classes_.push_back(class_in(content.text(), name));
      } else if (part == "json" && !has_class_part) {
        if (const auto label = label_in_json(content.text(), name)) {
          ++classes;
          classes_.push_back(*label);
        }
      } else {
        ++unused_[part];
      }
    }
    if (samples_++ == 0) {
      first_ = {images, classes, arrays.size()};
      first_arrays_ = arrays;
    }
    constexpr const char* kWhat[] = {"image", "class", "array"};
    const std::size_t have[] = {images, classes, arrays.size()};
    for (std::size_t i = 0; i < 3; ++i) {
      PT_CHECK(have[i] == first_[i], kData, "{} has {} {}, the first sample has {}", shown,
               have[i] ? fmt::format("{}", have[i]) : "no", kWhat[i], first_[i]);
    }
    // Where the members of two samples alternate, a sample seems to begin at each of them.
    PT_CHECK(arrays == first_arrays_, kData,
             "{} has other arrays than the first sample; the members of a sample must follow one "
             "another (tar --sort=name)",
             shown);
    parts.clear();
  }

  static std::int64_t class_in(std::string_view text, const std::string& name) {
    const std::size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
    const std::size_t end = text.find_last_not_of(" \t\r\n") + 1;
    const std::string_view number = text.substr(begin, std::max(begin, end) - begin);
    std::int64_t out = 0;
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), out);
    PT_CHECK(!number.empty() && error == std::errc() && stop == number.data() + number.size(),
             kData, "{} is not a class number: \"{}\"", name,
             printable(std::string(number.substr(0, 40))));
    return out;
  }

  static RawColumn stack(const std::string& path, const std::string& part,
                         const std::vector<HostTensor>& rows) {
    std::vector<std::int64_t> dims = rows[0].shape().dims();
    dims.insert(dims.begin(), static_cast<std::int64_t>(rows.size()));
    HostTensor all({rows[0].dtype(), Shape(std::move(dims)), Layout::kRowMajor});
    auto* to = all.view().as<std::byte>();
    for (const HostTensor& row : rows) {
      if (row.type().bytes() > 0) std::memcpy(to, row.view().data, row.type().bytes());
      to += row.type().bytes();
    }
    return {part, std::move(all), path, role_of_name(part), {}, {}, {}};
  }

  std::shared_ptr<ArchivedImages> images_ = std::make_shared<ArchivedImages>();
  std::map<std::string, std::vector<HostTensor>> arrays_;
  std::vector<std::int64_t> classes_;
  std::map<std::string, std::size_t> unused_;
  std::vector<std::size_t> first_;
  std::set<std::string> first_arrays_;
  std::size_t samples_ = 0;
};

bool is_shard(const std::string& name) {
  const std::string bare = bare_name(name);
  return bare.ends_with(".tar") || bare.ends_with(".tgz");
}

}  // namespace

RawData read_webdataset(const std::string& path) {
  RawData out{path, "WebDataset (tar)", {}, {}, {}};
  SampleParts train, validation;
  const FileParts files = divide_files(list_files(path, is_shard), out.notes);
  for (const std::string& file : files.train) train.add_shard(file);
  for (const std::string& file : files.validation) validation.add_shard(file);
  out.train = train.result(path, out.notes);
  if (!files.validation.empty()) out.validation = validation.result(path, out.notes);
  return out;
}

}  // namespace pipetrain
