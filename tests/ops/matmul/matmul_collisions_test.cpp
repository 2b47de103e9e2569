// Products whose rows share sets of the caches, and batches of them.
#include <gtest/gtest.h>
#include <omp.h>

#include "support/op_check.h"
#include "support/run_kernels.h"
#include "support/test_tensors.h"

namespace pipetrain::test {
namespace {

Attributes transposing(int a, int b) {
  return {{"trans_a", std::int64_t{a}}, {"trans_b", std::int64_t{b}}};
}

// Threads take whole products, or share each of fewer.
TEST(MatMul, BatchesHaveTheSameBitsForAnyNumberOfThreads) {
  const HostTensor a = random_tensor({DType::kFloat32, {3, 40, 64}}, 1);
  const HostTensor b = random_tensor({DType::kFloat32, {3, 64, 512}}, 2);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const HostTensor expected = run_op("MatMul", {}, {a, b}, Backend::kCpu)[0];
  expect_close(expected, run_op("MatMul", {}, {a, b})[0], 1e-5);
  for (const int threads : {2, 3, 8}) {
    omp_set_num_threads(threads);
    expect_same_bits(run_op("MatMul", {}, {a, b}, Backend::kCpu)[0], expected);
  }
  omp_set_num_threads(before);
}

// Rows of 512 floats and multiples cause cache conflicts; panels of 6 x 16 are partial at the
// edges.
TEST(MatMul, RowsThatCollide) {
  for (const std::int64_t k : {50, 300}) {
    check_cpu("MatMul", transposing(0, 0), {{{53, k}}, {{k, 512}}, {{512}}}, 1e-5);
    check_cpu("MatMul", transposing(1, 0), {{{k, 1024}}, {{k, 55}}, {{55}}}, 1e-5);
    check_cpu("MatMul", transposing(1, 0), {{{k, 512}}, {{k, 64}}}, 1e-5);
    check_cpu("MatMul", transposing(1, 1), {{{k, 512}}, {{70, k}}, {{70}}}, 1e-5);
  }
  check_cpu("MatMul", transposing(0, 0), {{{48, 64}}, {{64, 2560}}}, 1e-5);
  for (const std::int64_t products : {1, 5}) {
    check_cpu("MatMul", transposing(0, 0), {{{products, 3, 20, 16}}, {{3, 16, 512}}, {{512}}},
              1e-5);
    check_cpu("MatMul", transposing(1, 0), {{{products, 16, 512}}, {{products, 16, 64}}}, 1e-5);
  }
  check_cpu("MatMul", transposing(0, 0), {{{2, 200, 300}}, {{2, 300, 520}}}, 1e-5);
}

}  // namespace
}  // namespace pipetrain::test
