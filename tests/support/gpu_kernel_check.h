// The check of an operator's kernel for GPUs, which tests run under the emulator.
#pragma once

#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "ops/kernel/kernel.h"
#include "tensor/tensor.h"

namespace pipetrain::test {

/// What a float32 kernel shall give: the reference kernel's results in float32, those in float64
/// rounded to float32, and of each element what Tolerance (op_check.h) calls s.
struct ExpectedResults {
  std::vector<HostTensor> reference, exact;
  std::vector<std::vector<double>> scales;
};

/// The operator's hand-written GPU kernel, if it has one, under the emulator: threads in any order
/// give the same bits, which are those of the reference up to rounding. With
/// PIPETRAIN_TEST_DEVICE=cuda the kernel that a real GPU has, run three times.
void check_emulated(std::string_view op, const Attributes& attributes,
                    const std::vector<HostTensor>& inputs, const ExpectedResults& expected,
                    double tolerance, const RunContext& context);

}  // namespace pipetrain::test
