// Writes NumPy archives (.npz) array by array, row by row: stored, not compressed, ZIP64.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "tensor/tensor.h"

namespace pipetrain {

class NpzWriter {
 public:
  explicit NpzWriter(const std::filesystem::path& path) : file_(path) {}
  /// Begins an array; then all its elements follow, row-major, in pieces of any size.
  void begin(const std::string& name, const TensorType& type);
  void write(std::span<const std::byte> elements);
  /// begin() and write() of a whole array.
  void add(const std::string& name, const Tensor& array);
  /// Nothing is at the path before.
  void commit();

 private:
  struct Entry {
    std::string name;
    std::uint64_t begin = 0, data_begin = 0, bytes = 0;
    std::uint32_t checksum = 0;
  };
  void put(const std::string& bytes);
  void end();

  AtomicFile file_;
  std::vector<Entry> entries_;
  bool open_ = false;
};

/// The header of a .npy file, format 1.0. Error kInternal for a type that NumPy lacks.
std::string npy_header(const TensorType& type);

}  // namespace pipetrain
