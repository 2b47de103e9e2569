#include "data/formats/write_data.h"

#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/setting.h"
#include "data/files/npz_writer.h"
#include "data/formats/csv_cells.h"
#include "data/rows/class_labels.h"
#include "data/rows/element.h"
#include "data/rows/row_source.h"

namespace pipetrain {

namespace {

// Rows that are in memory at once.
constexpr std::size_t kRowsAtOnce = 64;

Shape written_shape(const RawColumn& column, const WriteDataOptions& options) {
  Shape shape = column.sample_shape();
  if (!column.source || column.dtype() != DType::kUint8) return shape;
  const auto image = static_cast<std::int64_t>(options.image);
  if (options.channels) shape[0] = static_cast<std::int64_t>(options.channels);
  if (image) shape[1] = shape[2] = image;
  return shape;
}

// take(elements) for the rows of a column, some at a time.
template <class Take>
void for_rows(const RawColumn& column, const WriteDataOptions& options, Take&& take) {
  if (!column.source) {
    take(Tensor{column.values.type(), column.values.view().data});
    return;
  }
  const Shape shape = written_shape(column, options);
  std::string how;
  const auto source = column.source->bind(shape, options.how, {}, how);
  PT_CHECK(source, kData, "\"{}\" of {} does not fit {}", printable(column.name),
           printable(column.file), shape.text());
  for (std::size_t first = 0; first < column.rows(); first += kRowsAtOnce) {
    std::vector<std::size_t> indices;
    for (std::size_t i = first; i < std::min(first + kRowsAtOnce, column.rows()); ++i) {
      indices.push_back(i);
    }
    std::vector<std::int64_t> dims = shape.dims();
    dims.insert(dims.begin(), static_cast<std::int64_t>(indices.size()));
    const HostTensor rows({column.dtype(), Shape(std::move(dims)), Layout::kRowMajor});
    source->gather(indices, rows.view());
    take(rows.view());
  }
}

// The validation part with the class numbers of the training part: of its words there may be fewer.
RawSplit numbered_as_training(const RawData& data) {
  RawSplit out = data.validation;
  for (RawColumn& column : out.columns) {
    const auto same = std::ranges::find(data.train.columns, column.name, &RawColumn::name);
    if (same != data.train.columns.end()) follow_class_names(column, same->class_names);
  }
  return out;
}

std::string write_npz(const RawData& data, const std::string& path,
                      const WriteDataOptions& options) {
  NpzWriter writer(path);
  std::string out;
  const auto add = [&](const RawSplit& split, const std::string& ending) {
    PT_CHECK(!split.shards, kUsage, "tokens are written to a .bin file, not to \"{}\"",
             printable(path));
    for (const RawColumn& column : split.columns) {
      std::vector<std::int64_t> dims = written_shape(column, options).dims();
      dims.insert(dims.begin(), static_cast<std::int64_t>(column.rows()));
      const TensorType type{column.dtype(), Shape(std::move(dims)), Layout::kRowMajor};
      writer.begin(column.name + ending, type);
      for_rows(column, options, [&](const Tensor& rows) {
        writer.write({rows.as<std::byte>(), rows.bytes()});
      });
      out += fmt::format("{}\"{}{}\" {}", out.empty() ? "" : ", ", printable(column.name), ending,
                         type.text());
    }
  };
  const bool parts = !data.validation.empty();
  add(data.train, parts ? "_train" : "");
  if (parts) add(numbered_as_training(data), "_test");
  writer.commit();
  return out;
}

std::string write_tokens(const RawData& data, const std::string& path) {
  PT_CHECK(data.train.shards, kUsage,
           "\"{}\": only tokens and texts become a .bin file; arrays go into an .npz",
           printable(path));
  std::uint64_t tokens = 0;
  double largest = 0;
  for (const TokenShard& shard : *data.train.shards) {
    tokens += shard.tokens();
    largest = std::max(largest, range_of(shard.content.bytes().subspan(shard.header_bytes).data(),
                                         shard.dtype, shard.tokens())
                                    .high);
  }
  // llm.c's header: magic, version, count.
  const bool wide = largest > 65535;
  PT_CHECK(tokens <= UINT32_MAX, kUsage, "llm.c's files hold up to {} tokens, these are {}",
           UINT32_MAX, tokens);
  std::vector<std::uint32_t> header(256);
  header[0] = wide ? 20240801 : 20240520;
  header[1] = wide ? 7 : 1;
  header[2] = static_cast<std::uint32_t>(tokens);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(header)));
  const DType dtype = wide ? DType::kUint32 : DType::kUint16;
  constexpr std::size_t kPiece = 1u << 20;
  std::vector<std::byte> piece(kPiece * size_of(dtype));
  for (const TokenShard& shard : *data.train.shards) {
    const auto bytes = shard.content.bytes().subspan(shard.header_bytes);
    for (std::size_t at = 0; at < shard.tokens(); at += kPiece) {
      const std::size_t count = std::min(kPiece, shard.tokens() - at);
      convert_elements(bytes.data() + at * size_of(shard.dtype), shard.dtype, piece.data(), dtype,
                       count, 1);
      file.write(std::span(piece).first(count * size_of(dtype)));
    }
    shard.content.check();
  }
  file.commit();
  return fmt::format("{} tokens {}, the largest {:.0f}", tokens, name_of(dtype), largest);
}

std::string write_csv(const RawData& data, const std::string& path,
                      const WriteDataOptions& options) {
  PT_CHECK(!data.train.shards, kUsage, "tokens are written to a .bin file, not to \"{}\"",
           printable(path));
  // Labels last, where the reader expects them.
  std::vector<const RawColumn*> columns;
  for (const RawColumn& column : data.train.columns) columns.push_back(&column);
  std::stable_partition(columns.begin(), columns.end(),
                        [](const RawColumn* column) { return column->role != ColumnRole::kLabel; });
  for (const RawColumn* column : columns)
    PT_CHECK(
        column->rows() == columns[0]->rows(), kData,
        "arrays disagree on the number of samples: \"{}\" has {}, \"{}\" has {}; write an .npz, "
        "which takes them as they are",
        printable(columns[0]->name), columns[0]->rows(), printable(column->name), column->rows());
  std::vector<std::vector<double>> values(columns.size());
  std::string header;
  bool is_first = true;  // whose name may be empty
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const auto width = static_cast<std::size_t>(written_shape(*columns[c], options).count());
    for (std::size_t i = 0; i < width; ++i) {
      const std::vector<std::string>& names = columns[c]->field_names;
      header += is_first ? "" : ",";
      is_first = false;
      header += quoted_cell(names.size() == width ? names[i]
                            : width == 1          ? columns[c]->name
                                                  : fmt::format("{}{}", columns[c]->name, i));
    }
    for_rows(*columns[c], options, [&](const Tensor& rows) {
      std::vector<double> part(static_cast<std::size_t>(rows.count()));
      convert_elements(rows.data, rows.type.dtype, part.data(), DType::kFloat64, part.size(), 1);
      values[c].insert(values[c].end(), part.begin(), part.end());
    });
  }
  AtomicFile file(path);
  file.write(header + "\n");
  const std::size_t rows = columns.empty() ? 0 : columns[0]->rows();
  for (std::size_t row = 0; row < rows; ++row) {
    std::string line;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::size_t width = values[c].size() / std::max<std::size_t>(rows, 1);
      const RawColumn& column = *columns[c];
      for (std::size_t i = 0; i < width; ++i) {
        const double value = values[c][row * width + i];
        if (!line.empty()) line += ',';
        if (!column.class_names.empty()) {
          line += quoted_cell(column.class_names[static_cast<std::size_t>(value)]);
        } else if (column.dtype() == DType::kFloat32) {
          line += fmt::format("{}", static_cast<float>(value));
        } else {
          line += fmt::format("{}", value);
        }
      }
    }
    file.write(line + "\n");
  }
  file.commit();
  return fmt::format("{} rows: {}{}", rows, std::string_view(header).substr(0, 60),
                     header.size() > 60 ? "…" : "");
}

}  // namespace

std::string write_data(const RawData& data, const std::string& path,
                       const WriteDataOptions& options) {
  const std::string ending = std::filesystem::path(path).extension().string();
  if (ending == ".npz") return write_npz(data, path, options);
  if (ending == ".bin") return write_tokens(data, path);
  if (ending == ".csv") return write_csv(data, path, options);
  PT_FAIL(kUsage, "{} \"{}\" must end in .npz, .csv or .bin", setting("output"), printable(path));
}

}  // namespace pipetrain
