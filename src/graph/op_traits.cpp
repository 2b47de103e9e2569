#include "graph/op_traits.h"

namespace pipetrain {

std::string_view name_of(KernelKind kind) {
  constexpr std::string_view kNames[kKernelKinds] = {"matmul/conv", "norm/softmax", "element-wise",
                                                     "layout"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace pipetrain
