#include "support/blocked.h"

#include <cstring>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

std::int64_t block_of(const TensorType& type) {
  if (type.layout == Layout::kRowMajor) return 1;
  if (type.layout == Layout::kChannelsLast) return type.shape[1];
  return type.layout == Layout::kBlocked8 ? 8 : 16;
}

/// The index of element (n, c, position): blocks of channels outside, the channels of a block
/// innermost.
std::int64_t offset(const TensorType& type, std::int64_t n, std::int64_t c, std::int64_t position) {
  const std::int64_t block = block_of(type);
  const std::int64_t positions = type.shape.count(2, type.shape.rank());
  return ((n * (type.shape[1] / block) + c / block) * positions + position) * block + c % block;
}

}  // namespace

TensorType in_layout(TensorType type, Layout layout) {
  TensorType wanted = type;
  wanted.layout = layout;
  const std::size_t rank = type.shape.rank();
  const bool has_axes = layout == Layout::kChannelsLast ? rank == 4 : rank >= 3 && rank <= 5;
  const bool fits = has_axes && type.shape[1] % block_of(wanted) == 0;
  return fits ? wanted : TensorType{type.dtype, type.shape};
}

HostTensor to_layout(const HostTensor& tensor, Layout layout) {
  const TensorType& from = tensor.type();
  const TensorType to = in_layout(from, layout);
  if (to.layout == from.layout) return tensor;
  HostTensor out(to);
  const std::size_t size = size_of(from.dtype);
  const auto* source = static_cast<const std::byte*>(tensor.view().data);
  auto* target = static_cast<std::byte*>(out.view().data);
  for (std::int64_t n = 0; n < from.shape[0]; ++n) {
    for (std::int64_t c = 0; c < from.shape[1]; ++c) {
      for (std::int64_t p = 0; p < from.shape.count(2, from.shape.rank()); ++p) {
        std::memcpy(target + static_cast<std::size_t>(offset(to, n, c, p)) * size,
                    source + static_cast<std::size_t>(offset(from, n, c, p)) * size, size);
      }
    }
  }
  return out;
}

namespace {

/// Copies row by row; the rows of either tensor may be padded.
HostTensor with_rows_of(const HostTensor& tensor, Layout layout) {
  const TensorType from = tensor.type(), to{from.dtype, from.shape, layout};
  HostTensor out(to);
  const std::size_t size = size_of(from.dtype);
  const auto columns = static_cast<std::size_t>(from.shape[from.shape.rank() - 1]);
  std::memset(out.view().data, 0xFF, to.bytes());
  const std::size_t rows = columns == 0 ? 0 : static_cast<std::size_t>(from.count()) / columns;
  for (std::size_t row = 0; row < rows; ++row) {
    std::memcpy(
        out.view().as<std::byte>() + row * static_cast<std::size_t>(to.row_stride()) * size,
        tensor.view().as<std::byte>() + row * static_cast<std::size_t>(from.row_stride()) * size,
        columns * size);
  }
  return out;
}

}  // namespace

HostTensor with_padded_rows(const HostTensor& tensor) {
  return with_rows_of(tensor, Layout::kPaddedRows);
}
HostTensor without_padding(const HostTensor& tensor) {
  return with_rows_of(tensor, Layout::kRowMajor);
}

std::vector<HostTensor> run_in_layouts(std::string_view op, const Attributes& attributes,
                                       const std::vector<HostTensor>& inputs,
                                       const std::vector<TensorType>& outputs) {
  Node node;
  node.op = find_op(op);
  node.attributes = attributes;
  node.name = "test";
  return run_node(Backend::kCpu, node, inputs, outputs);
}

}  // namespace pipetrain::test
