// Weight gradients of convolutions that are added to what is there.
#include <gtest/gtest.h>
#include <omp.h>

#include "ops/conv/conv.h"
#include "ops/conv/conv_cases.h"
#include "ops/kernel/adding_kernel.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

/// Channel-blocked operands of a ConvWeightGrad, and what it writes or adds.
class BlockedWeightGradient {
 public:
  /// `adds`: in the time in which it writes.
  BlockedWeightGradient(const ConvCase& c, Layout layout, bool adds = true)
      : adds_(adds),
        inputs_{{DType::kFloat32, c.x, layout}, {DType::kFloat32, c.y(), layout}},
        outputs_{{DType::kFloat32, c.w}, {DType::kFloat32, Shape{c.w[0]}}} {
    node_.op = find_op("ConvWeightGrad");
    node_.attributes = c.with_output(c.w, /*bias=*/true);
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      operands_.push_back(random_tensor({DType::kFloat32, inputs_[i].shape}, 1 + i));
  }

  std::vector<HostTensor> random_outputs() const {
    std::vector<HostTensor> out;
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      out.push_back(random_tensor(outputs_[i], 3 + i));
    return out;
  }

  void run(int threads, bool add, std::vector<HostTensor>& out) const {
    const int threads_before = omp_get_max_threads();
    omp_set_num_threads(threads);
    const KernelRequest request{node_, inputs_, outputs_};
    const auto kernel = make_kernel(Backend::kCpu, request);
    omp_set_num_threads(threads_before);
    auto* adding = dynamic_cast<AddingKernel*>(kernel.get());
    ASSERT_NE(adding, nullptr);
    EXPECT_EQ(conv_weight_gradient_adds(request), adds_);
    const Buffer workspace(kernel->workspace_bytes());
    RunContext context;
    context.workspace = workspace.data();
    std::vector<Tensor> in_views, out_views;
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      in_views.push_back(operands_[i].view());
      in_views[i].type = inputs_[i];
    }
    for (HostTensor& tensor : out) out_views.push_back(tensor.view());
    add ? adding->run_adding(in_views, out_views, context)
        : kernel->run(in_views, out_views, context);
  }

 private:
  bool adds_;
  Node node_;
  std::vector<TensorType> inputs_, outputs_;
  std::vector<HostTensor> operands_;
};

// The sum over micro-batches, with and without a pass of its own, by one thread and by two.
TEST(Conv, WeightGradientsAreAddedWithTheSameBits) {
  const Ints one = {1, 1}, around = {1, 1, 1, 1};
  const std::vector<ConvCase> cases = {
      {"one_chunk", {2, 32, 9, 7}, {48, 32, 3, 3}, one, one, around},
      {"many_chunks", {3, 32, 24, 24}, {48, 32, 3, 3}, one, one, around},
      {"small", {9, 56, 2, 2}, {24, 56, 3, 3}, one, one, around},
      {"small_single", {1, 8, 1, 1}, {8, 8, 3, 3}, one, one, around},
      {"small_strided", {32, 16, 2, 1}, {40, 16, 3, 3}, {2, 1}, one, {1, 1, 0, 1}},
      {"strided", {3, 16, 10, 9}, {40, 16, 3, 3}, {2, 2}, one, around},
      {"dilated_chunks", {3, 32, 24, 24}, {48, 32, 3, 3}, one, {2, 2}, {2, 2, 2, 2}},
      {"strided_one_chunk", {2, 64, 16, 15}, {48, 64, 3, 3}, {2, 2}, one, around},
      {"strided_chunks", {5, 32, 31, 24}, {48, 32, 3, 3}, {2, 2}, one, around},
      {"from_blocks", {2, 32, 18, 18}, {64, 32, 3, 3}, {2, 2}, one, around},
      {"pointwise", {2, 48, 9, 8}, {32, 48, 1, 1}, one, one, {0, 0, 0, 0}},
      {"depthwise", {19, 24, 9, 8}, {24, 1, 5, 5}, one, one, {2, 2, 2, 2}, 24},
      {"columns", {2, 32, 64}, {48, 32, 3}, {1}, {16}, {32, 0}},
      {"narrow_groups", {3, 64, 9, 8}, {64, 4, 3, 3}, one, one, around, 16},
      {"volume_groups",
       {2, 32, 3, 6, 5},
       {32, 4, 1, 3, 3},
       {1, 1, 1},
       {1, 1, 1},
       {0, 1, 1, 0, 1, 1},
       8}};
  for (const ConvCase& c : cases) {
    for (const Layout layout : c.blocked_layouts()) {
      const BlockedWeightGradient gradient(c, layout);
      std::vector<HostTensor> out = gradient.random_outputs(), again = gradient.random_outputs();
      gradient.run(/*threads=*/1, /*add=*/false, out);
      gradient.run(/*threads=*/2, /*add=*/false, again);
      std::vector<HostTensor> sum = gradient.random_outputs();
      const std::vector<HostTensor> before = gradient.random_outputs();
      gradient.run(/*threads=*/2, /*add=*/true, sum);
      for (std::size_t i = 0; i < out.size(); ++i) {
        expect_same_bits(again[i], out[i], c.name);
        for (std::size_t e = 0; e < out[i].span<float>().size(); ++e)
          out[i].span<float>()[e] += before[i].span<float>()[e];
        expect_same_bits(sum[i], out[i], c.name);
      }
    }
  }
}

TEST(Conv, WeightGradientsThatAreOnlyWrittenAreAddedByTheWorkspace) {
  const BlockedWeightGradient gradient(
      {"groups", {2, 32, 18, 18}, {64, 16, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, 2},
      Layout::kBlocked8, /*adds=*/false);
  std::vector<HostTensor> out = gradient.random_outputs(), sum = gradient.random_outputs();
  const std::vector<HostTensor> before = gradient.random_outputs();
  gradient.run(/*threads=*/1, /*add=*/false, out);
  gradient.run(/*threads=*/1, /*add=*/true, sum);
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (std::size_t e = 0; e < out[i].span<float>().size(); ++e)
      out[i].span<float>()[e] += before[i].span<float>()[e];
    expect_same_bits(sum[i], out[i]);
  }
}

}  // namespace
}  // namespace pipetrain::test
