// Checks docs/gpu-operators.md, the list of operators with GPU kernels. Run with
// PIPETRAIN_WRITE_LISTS=1 to regenerate it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "ops/registry/registry.h"
#include "support/emulated_kernels.h"

namespace pipetrain {
namespace {

constexpr std::string_view kFused =
    "hand-written kernel; cuDNN's fused one for bfloat16 and float16";

constexpr std::string_view kBatch = "hand-written kernel; cuDNN's if row-major and it has a plan";
/// Operators that NVIDIA's libraries compute (library_kernels_cuda.cpp).
const std::map<std::string_view, std::string_view> kLibraries = {
    {"Attention", kFused},
    {"AttentionGrad", kFused},
    {"Conv", "cuDNN; a hand-written kernel for most depthwise ones with channels last"},
    {"ConvInputGrad", "cuDNN"},
    {"ConvWeightGrad", "cuDNN"},
    {"MatMul", "cuBLASLt"},
    {"MatMulActivation", "cuBLASLt"},
    {"MatMulSums", "cuBLASLt"},
    {"RecurrentWeightGrad",
     "hand-written kernel; matmul by cuBLASLt unless the reset gate is applied before it"},
    {"BatchNorm", kBatch},
    {"BatchNormGrad", kBatch}};

std::string operator_list() {
  std::set<std::string_view> own;
  for (const std::string_view op : test::emulated_operators()) own.insert(op);
  std::set<std::string_view> all;
  for (const OpFamily* family : all_families()) {
    for (const KernelEntry& entry : family->reference) all.insert(entry.op);
    for (const KernelEntry& entry : family->cpu) all.insert(entry.op);
  }
  std::string here, on_host;
  int libraries = 0, hosts = 0;
  for (const std::string_view op : all) {
    const auto library = kLibraries.find(op);
    if (library != kLibraries.end()) {
      here += fmt::format("| {} | {} |\n", op, library->second);
      libraries += !own.contains(op);
    } else if (own.contains(op)) {
      here += fmt::format("| {} | hand-written kernel |\n", op);
    } else {
      on_host += fmt::format("{}{}", hosts++ ? ", " : "", op);
    }
  }
  return fmt::format(
      "# Operators on GPUs\n\n"
      "Of {} operators, {} have hand-written GPU kernels and {} use only NVIDIA's libraries. "
      "Hand-written kernels take float32, bfloat16 and float16 in any mix and compute in float32. "
      "Operators that only move data and `Where` take every type; casts, comparisons, reductions, "
      "CumSum, CumProd, ArgMax, ArgMin, Abs, Neg, Sign and arithmetic of two operands but Pow also "
      "int32 and int64; bitwise operators only these; casts, logic and `Equal` also bool. Other "
      "operators and types run on the CPU: operands are copied to the host and results back, which "
      "is correct but slow.\n\n"
      "| operator | computed by |\n|---|---|\n{}\n"
      "Through the host ({}): {}. A graph for a GPU has no GroupNorm: it becomes a LayerNorm, a "
      "scale and a shift.\n",
      all.size(), own.size(), libraries, here, hosts, on_host);
}

TEST(GpuOperators, ListIsUpToDate) {
  const std::string path = PIPETRAIN_SOURCE_DIR "/docs/gpu-operators.md";
  if (std::getenv("PIPETRAIN_WRITE_LISTS")) std::ofstream(path) << operator_list();
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(text, operator_list()) << "PIPETRAIN_WRITE_LISTS=1 writes it anew";
}

TEST(GpuOperators, AreOperators) {
  for (const std::string_view op : test::emulated_operators())
    EXPECT_NE(find_op(op), nullptr) << op;
}

}  // namespace
}  // namespace pipetrain
