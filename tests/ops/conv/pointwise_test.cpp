// Convolutions as products of row-major matrices: the same bits for any number of threads, and the
// sum over micro-batches.
#include <gtest/gtest.h>
#include <omp.h>

#include "ops/conv/conv_cases.h"
#include "ops/kernel/adding_kernel.h"

namespace pipetrain::test {
namespace {

/// What a kernel made for so many threads writes, or adds to ones.
std::vector<HostTensor> run_with(int threads, bool add, std::string_view op,
                                 const Attributes& attributes,
                                 const std::vector<HostTensor>& inputs) {
  Node node;
  node.op = find_op(op);
  node.attributes = attributes;
  std::vector<TensorType> types;
  for (const HostTensor& tensor : inputs) types.push_back(tensor.type());
  const std::vector<TensorType> outputs = infer_op(op, attributes, types);
  omp_set_num_threads(threads);
  const auto kernel = make_kernel(Backend::kCpu, {node, types, outputs});
  omp_set_num_threads(1);
  const Buffer workspace(kernel->workspace_bytes());
  RunContext context;
  context.workspace = workspace.data();
  std::vector<HostTensor> out;
  std::vector<Tensor> in_views, out_views;
  for (const HostTensor& tensor : inputs) in_views.push_back(tensor.view());
  for (const TensorType& type : outputs) {
    out.push_back(random_tensor(type, 1, 1, 1));
    out_views.push_back(out.back().view());
  }
  if (!add) {
    kernel->run(in_views, out_views, context);
  } else if (auto* adding = dynamic_cast<AddingKernel*>(kernel.get())) {
    adding->run_adding(in_views, out_views, context);
  } else {
    ADD_FAILURE() << op << " does not add";
  }
  return out;
}

TEST(PointwiseConvolution, HasTheSameBitsForAnyNumberOfThreads) {
  for (const ConvCase& c : pointwise_cases()) {
    SCOPED_TRACE(c.name);
    const HostTensor x = random_tensor({DType::kFloat32, c.x}, 1);
    const HostTensor w = random_tensor({DType::kFloat32, c.w}, 2);
    const HostTensor dy = random_tensor({DType::kFloat32, c.y()}, 3);
    const HostTensor b = random_tensor({DType::kFloat32, {c.w[0]}}, 4);
    const auto check = [&](std::string_view op, const Attributes& attributes,
                           const std::vector<HostTensor>& inputs) {
      const auto one = run_with(1, false, op, attributes, inputs);
      for (const int threads : {2, 7}) {
        const auto several = run_with(threads, false, op, attributes, inputs);
        for (std::size_t i = 0; i < one.size(); ++i) expect_same_bits(several[i], one[i], op);
      }
    };
    check("Conv", c.attributes(), {x, w, b});
    check("ConvInputGrad", c.with_output(c.x), {dy, w});
    check("ConvWeightGrad", c.with_output(c.w, /*bias=*/true), {x, dy});
  }
}

TEST(PointwiseConvolution, AddsTheBitsThatItWrites) {
  for (const ConvCase& c : pointwise_cases()) {
    SCOPED_TRACE(c.name);
    const HostTensor x = random_tensor({DType::kFloat32, c.x}, 1);
    const HostTensor dy = random_tensor({DType::kFloat32, c.y()}, 3);
    const Attributes attributes = c.with_output(c.w, /*bias=*/true);
    auto written = run_with(1, false, "ConvWeightGrad", attributes, {x, dy});
    const auto added = run_with(2, true, "ConvWeightGrad", attributes, {x, dy});
    for (std::size_t i = 0; i < written.size(); ++i) {
      for (float& value : written[i].span<float>()) value += 1.0F;
      expect_same_bits(added[i], written[i]);
    }
  }
}

}  // namespace
}  // namespace pipetrain::test
