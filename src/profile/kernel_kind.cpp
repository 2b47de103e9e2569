#include "profile/kernel_kind.h"

#include <algorithm>
#include <initializer_list>

namespace pipetrain {
namespace {

bool begins_with_one_of(std::string_view op, std::initializer_list<std::string_view> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view name) { return op.starts_with(name); });
}

}  // namespace

KernelKind kernel_kind(std::string_view op) {
  if (begins_with_one_of(op, {"MatMul", "Conv", "LSTM", "Lstm", "GRU", "Gru", "RNN", "Rnn",
                              "Recurrent", "Attention", "Einsum", "DeformConv"})) {
    return KernelKind::kProduct;
  }
  if (begins_with_one_of(op, {"Reorder", "Transpose", "Concat", "Split", "Slice", "Expand", "Pad",
                              "Reshape", "Copy", "Tile", "PackMatrix", "PackConvolution"})) {
    return KernelKind::kReorder;
  }
  if (begins_with_one_of(op, {"BatchNorm",
                              "LayerNorm",
                              "RmsNorm",
                              "RMSNorm",
                              "InstanceNorm",
                              "GroupNorm",
                              "Softmax",
                              "LogSoftmax",
                              "MaxPool",
                              "AveragePool",
                              "GlobalAveragePool",
                              "GlobalMaxPool",
                              "Reduce",
                              "Gather",
                              "Scatter",
                              "SumTo",
                              "Cumulative",
                              "CumSum",
                              "TopK",
                              "Resize",
                              "GridSample",
                              "ArgMax"})) {
    return KernelKind::kRows;
  }
  return KernelKind::kElementwise;
}

std::string_view name_of(KernelKind kind) {
  constexpr std::string_view kNames[] = {"products", "rows", "element-wise", "reorders"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace pipetrain
