// The external data files of an exported model: copies of the source's with some bytes replaced and
// new data appended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "onnx_io/external_data.h"
#include "onnx_io/tensor_maker.h"
#include "tensor/tensor.h"

namespace pipetrain {

/// The bytes of a tensor's elements.
inline std::span<const std::byte> bytes_of(const HostTensor& value) {
  return {static_cast<const std::byte*>(value.view().data), value.type().bytes()};
}

/// One data file of the source and what becomes of it.
class DataFile {
 public:
  DataFile(ExternalFile source, std::string location)
      : source_(std::move(source)), location_(std::move(location)) {}

  const std::string& location() const { return location_; }
  bool changed() const { return !overlays_.empty() || end_ != 0; }
  bool grew() const { return end_ != 0; }
  std::uint64_t source_bytes() const { return source_.bytes(); }
  /// Puts the bytes of a tensor at `offset`.
  void replace(std::uint64_t offset, TensorMaker make);
  /// Appends those of a tensor of this size; returns the offset.
  std::uint64_t append(std::size_t bytes, TensorMaker make);
  void write(AtomicFile& out) const;

  /// File name beside the output; empty: the model goes on using the source's file.
  std::string new_name;

 private:
  ExternalFile source_;
  std::string location_;
  std::map<std::uint64_t, TensorMaker> overlays_;
  std::vector<std::pair<std::uint64_t, TensorMaker>> appended_;
  std::uint64_t end_ = 0;  // of what was appended; 0: nothing
};

/// Chooses `new_name` for every file that has to be written for a model at `output`, made from the
/// model file `source`. A file keeps its name if that is a plain name which is free in the output's
/// directory (or belongs to the model that is replaced there, and to no other). Otherwise, and for
/// data named after another model ("OTHER.onnx.data", changed data also "<source model>.SUFFIX"),
/// the new name is derived from the output's name. Locations from a file are never used as paths.
void choose_names(std::map<std::string, DataFile>& files, const std::filesystem::path& output,
                  const std::filesystem::path& source, bool overwrite_input);

/// Whether a model in the folder of `model`, other than that one, refers to this data file.
bool is_used_by_others(const std::string& location, const std::filesystem::path& model);

}  // namespace pipetrain
