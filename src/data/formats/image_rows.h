// Rows that are encoded images, in their own files or in an archive, decoded on the fly.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/files/file_bytes.h"
#include "data/images/image.h"
#include "data/rows/row_source.h"

namespace pipetrain {

/// Where encoded images are.
class ImageStore {
 public:
  virtual ~ImageStore() = default;
  virtual std::size_t size() const = 0;
  virtual FileBytes read(std::size_t index) const = 0;
  /// Its name in errors.
  virtual std::string locate(std::size_t index) const = 0;
  /// Its name for programs.
  virtual std::string name(std::size_t index) const { return locate(index); }
};

/// A file for each.
class ImageFiles final : public ImageStore {
 public:
  explicit ImageFiles(std::vector<std::string> files) : files_(std::move(files)) {}
  std::size_t size() const override { return files_.size(); }
  FileBytes read(std::size_t index) const override { return FileBytes::open(files_[index]); }
  std::string locate(std::size_t index) const override;
  std::string name(std::size_t index) const override { return files_[index]; }

 private:
  std::vector<std::string> files_;
};

/// Parts of mapped files.
class ArchivedImages final : public ImageStore {
 public:
  void add(FileBytes part, std::string name) {
    parts_.push_back(std::move(part));
    names_.push_back(std::move(name));
  }
  std::size_t size() const override { return parts_.size(); }
  FileBytes read(std::size_t index) const override { return parts_[index]; }
  std::string locate(std::size_t index) const override;

 private:
  std::vector<FileBytes> parts_;
  std::vector<std::string> names_;  // "shard-0.tar member 12.png"
};

/// The size that all images must have, in pixels.
struct RequiredSize {
  std::size_t height = 0, width = 0;
};

/// Reads the first image that is not damaged, for the shape. Error kData if all are. With a
/// required size, images of another one are errors where they are read.
std::shared_ptr<const RowSource> make_image_rows(std::shared_ptr<const ImageStore> store,
                                                 std::optional<RequiredSize> required = {});

}  // namespace pipetrain
