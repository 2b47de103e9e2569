// What kind of work an operator is, for telling where the time of a step goes.
#pragma once

#include <cstdint>
#include <string_view>

namespace pipetrain {

enum class KernelKind : std::uint8_t {
  kProduct,      // matrix products, convolutions, recurrences, attention: bound by arithmetic
  kRows,         // norms, softmax, pooling, sums and gathers of rows
  kElementwise,  // element by element: bound by memory
  kReorder,      // copies into another layout or place
};
inline constexpr int kKernelKinds = 4;

/// By the canonical operator's name.
KernelKind kernel_kind(std::string_view op);
/// "products", "rows", "element-wise", "reorders".
std::string_view name_of(KernelKind kind);

}  // namespace pipetrain
