#include "support/gpu_kernel_check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "base/error.h"
#include "ops/registry/registry.h"
#include "support/blocked.h"
#include "support/device_kernel.h"
#include "support/emulated_kernels.h"
#include "support/run_kernels.h"
#include "support/test_tensors.h"

namespace pipetrain::test {
namespace {

/// Elements of inputs up to which the emulator is quick enough.
constexpr std::int64_t kMostEmulated = 2500;

/// The same numbers, rounded to a narrow type where they are float32.
HostTensor narrowed(const HostTensor& tensor, DType narrow) {
  if (!tensor || tensor.dtype() != DType::kFloat32) return tensor;
  HostTensor out(TensorType{narrow, tensor.shape(), tensor.type().layout});
  for (std::int64_t i = 0; i < tensor.type().count(); ++i) {
    const float value = tensor.view().as<float>()[i];
    out.view().as<std::uint16_t>()[i] =
        narrow == DType::kBFloat16 ? float_to_bfloat16(value) : float_to_half(value);
  }
  return out;
}

/// Whether a GPU must have a kernel: where there is a hand-written one of the operator, which takes
/// floats. What only NVIDIA's libraries have may be missing for some shapes and types: of the
/// convolutions, all that are not depthwise with the channels last.
bool must_have_kernel(std::string_view op, const std::vector<HostTensor>& inputs) {
  if (op == "Conv") return false;
  const std::vector<std::string_view> own = emulated_operators();
  return std::find(own.begin(), own.end(), op) != own.end() && inputs[0] &&
         inputs[0].dtype() == DType::kFloat32;
}

/// Indices of operands and results.
struct Slots {
  std::set<std::size_t> operands, results;
};

/// What mixed precision stores narrow of an operator whose scales, statistics and log-sum-exps stay
/// float32: cuDNN has kernels for this mix alone. Null: it stores all of them alike.
const Slots* mixed_slots(std::string_view op) {
  static const std::map<std::string_view, Slots> kMixed = {
      {"Attention", {{0, 1, 2}, {0}}}, {"AttentionGrad", {{0, 1, 2, 3, 6}, {0, 1, 2}}},
      {"BatchNorm", {{0}, {0}}},       {"BatchNormGrad", {{0, 1}, {0}}},
      {"LayerNorm", {{0}, {0}}},       {"LayerNormInputGrad", {{0, 1}, {0}}},
      {"RmsNorm", {{0}, {0}}},         {"RmsNormInputGrad", {{0, 1}, {0}}}};
  const auto found = kMixed.find(op);
  return found == kMixed.end() ? nullptr : &found->second;
}

/// The GPU's kernel with these operands narrow, all of them if `slots` is null, and with narrow
/// results and float ones, against the reference kernel on the rounded numbers: arithmetic is
/// float's, what is stored is rounded.
template <class Make>
void check_stored_narrow(const Make& make, const Node& node, const std::vector<HostTensor>& inputs,
                         const std::vector<TensorType>& outputs, DType narrow, double tolerance,
                         const RunContext& context, const Slots* slots) {
  std::vector<HostTensor> stored, rounded;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool is_stored_narrow = !slots || slots->operands.contains(i);
    stored.push_back(is_stored_narrow ? narrowed(inputs[i], narrow) : inputs[i]);
    rounded.push_back(as_float(stored.back(), DType::kFloat32));
  }
  const std::vector<HostTensor> expected =
      run_node(Backend::kReference, node, rounded, outputs, context);
  // What is beyond the range of float16 becomes an infinity there.
  const auto is_large = [](double value) { return std::fabs(value) > 60000; };
  for (const HostTensor& one : expected) {
    if (!one || narrow != DType::kFloat16) continue;
    const std::vector<double> values = one.to_doubles();
    if (std::any_of(values.begin(), values.end(), is_large)) return;
  }
  std::vector<TensorType> narrow_outputs = outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].dtype == DType::kFloat32 && (!slots || slots->results.contains(i)))
      narrow_outputs[i].dtype = narrow;
  }
  for (const bool is_narrow : {true, false}) {
    const std::vector<TensorType>& types = is_narrow ? narrow_outputs : outputs;
    const std::vector<HostTensor> results = run_made(make, node, stored, types, context);
    if (is_narrow)
      EXPECT_FALSE(results.empty() && must_have_kernel(node.op->name, inputs))
          << "no kernel of a GPU over " << name_of(narrow);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::string where =
          fmt::format("output {} as {} of the GPU's kernel over {}{}", i, name_of(types[i].dtype),
                      name_of(narrow), slots ? " and float32" : "");
      if (!results[i] || !is_float(results[i].dtype())) {
        expect_same_bits(results[i], expected[i], where);
      } else {
        // Half of the last place of 8 and of 11 bits, and what sums differ by.
        const double last = narrow == DType::kBFloat16 ? 0.004 : 0.0005;
        // cuDNN's attention rounds its shares, some of its convolutions what a bias is added to.
        const double step = node.op->name.starts_with("Attention")         ? 4 * last
                            : node.op->name == "Conv" && inputs.size() > 2 ? 2 * last
                                                                           : last;
        // cuDNN stores the result of a convolution in the type of its operands.
        const bool is_rounded =
            types[i].dtype != DType::kFloat32 || node.op->name.starts_with("Conv");
        expect_close(as_float(results[i], DType::kFloat32), expected[i],
                     is_rounded ? step + tolerance : tolerance, where);
      }
    }
  }
}

/// The same for all operands narrow, and for those that mixed precision stores so.
template <class Make>
void check_narrow(const Make& make, const Node& node, const std::vector<HostTensor>& inputs,
                  const std::vector<TensorType>& outputs, DType narrow, double tolerance,
                  const RunContext& context) {
  tolerance = std::max(tolerance, 2e-5);
  check_stored_narrow(make, node, inputs, outputs, narrow, tolerance, context, nullptr);
  if (const Slots* slots = mixed_slots(node.op->name))
    check_stored_narrow(make, node, inputs, outputs, narrow, tolerance, context, slots);
}

/// The GPU kernel of a node over feature maps (N, C, H, W), if it supports channels last.
template <class Make>
void check_channels_last(const Make& make, const Node& node, const std::vector<HostTensor>& inputs,
                         const std::vector<HostTensor>& reference, double tolerance,
                         const RunContext& context) {
  const std::string_view op = node.op->name;
  const auto laid_out = [&](const HostTensor& tensor, bool is_input) {
    if (!tensor || tensor.shape().rank() != 4 || tensor.type().count() == 0) return tensor;
    if ((op.starts_with("Reduce") || op == "SumTo") && !is_input) return tensor;
    const bool small = (node.op->flags & kElementwise) && tensor.shape() != reference[0].shape();
    return small ? tensor : to_layout(tensor, Layout::kChannelsLast);
  };
  std::vector<HostTensor> last, expected;
  std::vector<TensorType> types;
  bool any = false;
  for (const HostTensor& input : inputs) {
    last.push_back(laid_out(input, true));
    any = any || last.back().type().layout == Layout::kChannelsLast;
  }
  for (const HostTensor& one : reference) {
    expected.push_back(laid_out(one, false));
    types.push_back(expected.back().type());
  }
  if (!any || op == "Reorder") return;
  const std::vector<HostTensor> results = run_made(make, node, last, types, context);
  if (results.empty()) return;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::string where = fmt::format("output {} of the GPU's kernel, channels last", i);
    if (results[i] && is_float(results[i].dtype())) {
      expect_close(results[i], expected[i], tolerance, where);
    } else {
      expect_same_bits(results[i], expected[i], where);
    }
  }
  check_narrow(make, node, last, types, DType::kBFloat16, tolerance, context);
  if (const char* log = std::getenv("PIPETRAIN_EMULATED_LOG")) {
    std::ofstream(log, std::ios::app) << fmt::format("{} channels last\n", op);
  }
}

/// Whether this process checks the next case on a GPU: with PIPETRAIN_TEST_SHARD=2/4 every fourth
/// case, from the second on.
bool is_in_shard() {
  static int cases = 0;
  const char* const shard = std::getenv("PIPETRAIN_TEST_SHARD");
  int index = 1, count = 1;
  PT_CHECK(!shard || (std::sscanf(shard, "%d/%d", &index, &count) == 2 && count > 0), kUsage,
           "PIPETRAIN_TEST_SHARD={}: a shard is given as in 2/4", shard);
  return cases++ % count == index - 1;
}

}  // namespace

void check_emulated(std::string_view op, const Attributes& attributes,
                    const std::vector<HostTensor>& inputs, const ExpectedResults& expected,
                    double tolerance, const RunContext& context) {
  std::vector<TensorType> types;
  for (const HostTensor& input : inputs) types.push_back(input.type());
  Node node;
  node.op = find_op(op);
  node.attributes = attributes;
  node.name = "test";
  const std::vector<TensorType> outputs = infer_op(op, attributes, types);
  Device* const device = device_under_test();
  if (device && !is_in_shard()) return;
  std::int64_t elements = 0;
  for (const TensorType& type : types) elements += type.count();
  if (!device && elements > kMostEmulated) return;
  const std::unique_ptr<Kernel> kernel = make_gpu_kernel(request_of(node, inputs, outputs));
  if (!kernel) {
    EXPECT_FALSE(must_have_kernel(op, inputs)) << "no kernel of a GPU";
    return;
  }
  std::vector<HostTensor> first;
  for (int order = 0; order < (device ? 3 : emulated_orders()); ++order) {
    set_emulated_order(order);
    const std::vector<HostTensor> results = run_kernel(*kernel, node, inputs, outputs, context);
    if (order == 0) first = results;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::string where = fmt::format("output {} of the GPU's kernel, order {}", i, order);
      if (order > 0) {
        expect_same_bits(results[i], first[i], where);
      } else if (results[i] && is_float(results[i].dtype())) {
        expect_close(results[i], expected.reference[i], tolerance, where);
        if (device) continue;  // a library may choose a method that mixes elements
        expect_within(results[i], expected.exact[i], tolerance, expected.scales[i],
                      where + ", against the float64 reference");
      } else {
        expect_same_bits(results[i], expected.reference[i], where);
      }
    }
  }
  for (const DType narrow : {DType::kBFloat16, DType::kFloat16})
    check_narrow(make_gpu_kernel, node, inputs, outputs, narrow, tolerance, context);
  check_channels_last(make_gpu_kernel, node, inputs, expected.reference, tolerance, context);
  if (const char* log = std::getenv("PIPETRAIN_EMULATED_LOG")) {
    std::ofstream(log, std::ios::app) << fmt::format("{}\n", op);
  }
}

}  // namespace pipetrain::test
