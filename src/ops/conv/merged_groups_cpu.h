// Grouped convolutions between channel-blocked tensors, where the channels of a group do not fill
// blocks: several groups become one, whose weights are zero between channels of different groups.
// Multiplying by zeros is faster than oneDNN's scalar code for narrow groups. Inf and NaN spread to
// the groups that a group is merged with. Include it from *_cpu.cpp files only.
#pragma once

#include <memory>
#include <optional>

#include "ops/conv/conv.h"

namespace pipetrain {

struct MergedGroups {
  std::int64_t groups;           // of the convolution
  std::int64_t together;         // that become one; they divide `groups`
  std::int64_t inputs, outputs;  // channels of a group
  std::int64_t taps;
};

/// The convolution in this form between blocks of `lanes` channels, where it has narrow groups and
/// conv_groups_together() lets them become one.
std::optional<MergedGroups> merged_groups(const ConvGeometry& geometry, const Shape& w,
                                          std::int64_t lanes);

/// The kernel for a Conv, ConvInputGrad or ConvWeightGrad, of float or bfloat16 numbers. That of a
/// ConvWeightGrad is an AddingKernel.
std::unique_ptr<Kernel> make_merged_forward(const MergedGroups& shape,
                                            const KernelRequest& request);
std::unique_ptr<Kernel> make_merged_input_gradient(const MergedGroups& shape,
                                                   const KernelRequest& request);
std::unique_ptr<Kernel> make_merged_weight_gradient(const MergedGroups& shape,
                                                    const KernelRequest& request);

/// Whether these kernels have vector code for the types of a request.
bool merged_groups_have_vector_code(const MergedGroups& shape, const KernelRequest& request);

}  // namespace pipetrain
