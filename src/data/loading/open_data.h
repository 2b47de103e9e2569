// From a path to data sets: recognise the format, read, bind to the model, split.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/binding/bind.h"
#include "data/rows/data_spec.h"
#include "data/rows/dataset.h"
#include "data/rows/readers.h"

namespace pipetrain {

struct DataOptions {
  /// A file, a directory, a glob (of formats of which several files are read), "-" for standard
  /// input, or "synthetic".
  std::string path = "synthetic";
  /// auto, or a name of format_names().
  std::string format = "auto";
  std::string validation_path;      // empty: validation_split, or what the source sets aside
  double validation_split = 0;      // fraction of the training data for validation
  std::size_t validation_rows = 0;  // or a number of samples
  std::size_t limit = 0;            // use only the first samples; 0: all
  bool shard_files = false;         // each replica reads files of its own (data/loading/shards.h)
  std::uint64_t seed = 1;
  std::size_t synthetic_samples = 0;  // 0: 6400
  DType token_dtype = DType::kUndefined;
  int workers = 0;  // threads that read ahead; 0: as many as the format deserves
  CsvOptions csv;
  TextOptions text;
  BindOptions bind;
  /// Of LibSVM's format: what the training data's indices count from; none: as the file has them.
  std::optional<std::uint32_t> first_index;
  /// Whether masks with only 0 and 255 have the classes 0 and 1: not where 255 is ignored, or where
  /// the training's masks had other classes.
  bool masks_are_drawings = true;
};

struct OpenedData {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation;  // null if there is none
  std::size_t rows = 0;  // of the data before any are left out or held out for validation
  std::string format;
  /// What was detected and what becomes of it, for people: several lines.
  std::string description;
  /// The same in one line, and what of it nobody may miss.
  std::string headline;
  std::vector<std::string> warnings;
  std::vector<std::string> class_names;
  std::string encoding;                      // RawSplit's
  std::optional<std::uint32_t> first_index;  // of LibSVM's format
  RowLengths row_lengths;                    // to which those of other data are padded
  bool masks_are_numbered = false;           // RawSplit's
  std::string texts;              // how they became tokens (TextOptions::text); empty: no texts
  std::vector<double> divisors;   // one per model input: what its values are divided by
  bool has_large_values = false;  // BoundData's
  bool synthetic = false;
  /// With --data-sharding files: the samples of each replica's files, and a fingerprint of all.
  std::vector<std::size_t> shard_samples;
  std::string shard_fingerprint;
  /// Threads that read ahead.
  int workers = 1;
};

/// "npz, npy, csv, …, synthetic"
std::string format_names();

/// Recognises the format (magic bytes, names, directory shape) and reads the arrays. Useful alone
/// to look at a source before a loss is chosen.
RawData read_source(const std::string& path, const DataOptions& options);

/// Binds, checks and splits; reads first, unless `already` is what read_source gave. Errors: kData
/// naming file and item, kUsage for options.
OpenedData open_data(const DataOptions& options, const DataSpec& spec,
                     const RawData* already = nullptr);

/// Format, arrays with types and shapes, range of the first sample: `data inspect`.
std::string describe(const RawData& raw);

}  // namespace pipetrain
