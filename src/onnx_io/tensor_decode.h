// Tensors of the file become tensors in memory: every encoding ONNX has, inline or external.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "onnx_io/external_data.h"
#include "tensor/tensor.h"

namespace pipetrain {

namespace onnx {
class Tensor;  // the schema's message; defined by the generated code
}

/// A tensor as decoded. `value` is empty if `unusable` says why, or if its data file has room for
/// it and was never written: models that are planned, not trained, may be larger than any memory.
struct DecodedTensor {
  DType dtype = DType::kUndefined;
  Shape shape;
  HostTensor value;
  bool external = false;
  std::string unusable;
};

/// "float8e4m3fn", "int4", "string", …: names of ONNX's element types by number, known to us or
/// not.
std::string onnx_type_name(std::int32_t data_type);

/// Checks dims (rank at most 8, no negative extent, no overflow) and returns the shape. `what` is
/// "tensor 'w'". Error (kModel).
Shape checked_shape(const std::vector<std::int64_t>& dims, const std::string& what);

/// Where an external tensor called `name` lies, by its entries; keys that are not known become
/// warnings. Error (kModel) for entries that are no such place.
ExternalRange external_range(const onnx::Tensor& tensor, const std::string& name,
                             std::vector<std::string>& warnings);

/// Decodes the tensors of one model, within one budget of bytes.
class TensorDecoder {
 public:
  /// `directory`: of the external data; empty if there is none.
  TensorDecoder(std::filesystem::path directory, ExternalDataRules rules,
                std::uint64_t maximum_bytes);

  /// Decodes `tensor`, which is called `name` in errors and warnings. Error (kModel) for
  /// everything that is not exactly one payload of exactly the right length. `raw_data`: the field
  /// of that name, where it was taken out of the message.
  DecodedTensor decode(const onnx::Tensor& tensor, const std::string& name,
                       std::span<const std::byte> raw_data = {});

  /// Looks whether anything was written to the data file of an external tensor. Call it with all
  /// initializers before the first one is decoded: where none of their files has data, the tensors
  /// in them have no values. Beside files that have some, such a file holds zeros.
  void look_for_data(const onnx::Tensor& tensor);

  std::vector<std::string> warnings;
  /// The data files that were opened, by location.
  std::map<std::string, FileState> data_files;
  /// Bytes of the tensors in data files to which nothing was ever written.
  std::uint64_t unwritten_bytes = 0;

 private:
  // Only called when the payload is known to be there: no file can ask for more than it holds.
  HostTensor allocate(const DecodedTensor& tensor, const std::string& what);
  /// Opens the data file of a tensor, which is open_ then, and returns its place there.
  ExternalRange open_data(const onnx::Tensor& tensor, const std::string& name);
  void read_external(const onnx::Tensor& tensor, const std::string& name, const std::string& what,
                     DecodedTensor& out, std::uint64_t needed);
  void read_inline(const onnx::Tensor& tensor, std::span<const std::byte> raw_data,
                   const std::string& what, DecodedTensor& out, std::uint64_t needed);
  void warn_of_non_finite(const HostTensor& value, const std::string& what);

  std::filesystem::path directory_;
  ExternalDataRules rules_;
  std::uint64_t maximum_bytes_;
  std::uint64_t used_bytes_ = 0;
  std::set<std::string> looked_at_;  // data files
  bool has_written_data_ = false;
  // The file opened last: models keep their tensors in one file, or each in its own.
  std::string open_location_;
  std::optional<ExternalFile> open_;
};

}  // namespace pipetrain
