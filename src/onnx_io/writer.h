// Export: a copy of the user's file with new parameter bytes. Names, order, operators, metadata and
// unknown fields stay unchanged; without new values the copy is identical.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "onnx_io/model.h"
#include "onnx_io/tensors_by_name.h"

namespace pipetrain {

/// A float32 value, or a function that reads it, called when the value is written, so that one is
/// in memory at a time.
class TrainedValue {
 public:
  TrainedValue() = default;
  TrainedValue(HostTensor value) : read_([value = std::move(value)] { return value; }) {}
  template <class Read>
  requires std::is_invocable_r_v<HostTensor, Read> TrainedValue(Read read)
      : read_(std::move(read)) {}

  HostTensor operator()() const { return read_(); }

 private:
  std::function<HostTensor()> read_;
};

/// By initializer name, or by the name of a Constant node's output.
using TrainedValues = std::map<std::string, TrainedValue>;

/// What a trained model may need besides new bytes; every item is reported.
struct ExportEdits {
  /// A tensor that the file does not have yet: the copy of a shared one that was trained apart, or
  /// a bias that the exporter removed.
  struct Added {
    std::string name;
    HostTensor value;  // float32
    std::string like;  // the initializer whose type and storage (inline, external) it gets
  };
  /// Input `input` of `source.nodes[node]` reads `name` from now on; it may be one more than there
  /// are.
  struct Rewritten {
    std::size_t node = 0;
    std::size_t input = 0;
    std::string name;
  };
  std::vector<Added> added;
  std::vector<Rewritten> rewritten;
  /// Model-level metadata_props that are set.
  OnnxMetadata metadata;
};

struct WriteOptions {
  /// Allow the output, or its data file, to replace the input.
  bool overwrite_input = false;
  /// As when the source was read.
  bool allow_symlinked_data = false;
};

struct ExportReport {
  std::vector<std::filesystem::path> files;  // written, the model last
  std::vector<std::string> changes;          // sentences: all that is not just new bytes
};

/// The reason why the tensor `name` cannot get a new value on export, or "" if it can:
/// floating-point initializers and Constant nodes, unless they are in a local function that is
/// called more than once.
std::string why_not_writable(const OnnxModel& source, const TensorsByName& tensors,
                             std::string_view name);

/// Writes `source`, read from a file that has not changed since, with new values to `output`.
/// External data go to a new file beside the output. Nothing appears under the final names before
/// everything is on disk; data come before the model. Errors: kModel if the source has changed or a
/// value has no place, kUsage if the input would be overwritten, kResource for the disk.
ExportReport write_trained(const OnnxModel& source, const TrainedValues& values,
                           const ExportEdits& edits, const std::filesystem::path& output,
                           const WriteOptions& options = {});

}  // namespace pipetrain
