#include "support/op_check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "support/blocked.h"
#include "support/device_kernel.h"
#include "support/emulated_kernels.h"

namespace pipetrain::test {
namespace {

/// splitmix64: the same numbers with every standard library.
class Uniform {
 public:
  explicit Uniform(std::uint64_t seed) : state_(seed) {}
  double next(double low, double high) {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    z ^= z >> 31;
    return low + (high - low) * static_cast<double>(z >> 11) * 0x1p-53;
  }

 private:
  std::uint64_t state_;
};

/// Writes numbers into a tensor of any type but float16.
HostTensor from_doubles(const TensorType& type, std::span<const double> values) {
  HostTensor out(type);
  const auto fill = [&]<class T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i)
      out.view().as<T>()[i] = static_cast<T>(values[i]);
  };
  switch (type.dtype) {
    case DType::kFloat32:
      fill(float{});
      break;
    case DType::kFloat64:
      fill(double{});
      break;
    case DType::kBFloat16:
      for (std::size_t i = 0; i < values.size(); ++i)
        out.view().as<std::uint16_t>()[i] = float_to_bfloat16(static_cast<float>(values[i]));
      break;
    case DType::kInt64:
      fill(std::int64_t{});
      break;
    case DType::kInt32:
      fill(std::int32_t{});
      break;
    case DType::kInt8:
      fill(std::int8_t{});
      break;
    case DType::kUint8:
    case DType::kBool:
      fill(std::uint8_t{});
      break;
    default:
      PT_FAIL(kInternal, "no test tensors of {}", name_of(type.dtype));
  }
  return out;
}

HostTensor make_input(const InputSpec& spec, DType float_type, std::uint64_t seed) {
  if (spec.absent) return {};
  const TensorType type{spec.dtype == DType::kFloat32 ? float_type : spec.dtype, spec.shape};
  if (!spec.values.empty()) {
    PT_CHECK(static_cast<std::int64_t>(spec.values.size()) == type.count(), kInternal,
             "{} values for {}", spec.values.size(), type.text());
    return from_doubles(type, spec.values);
  }
  // Draw in float32 so that both float types see the same numbers.
  HostTensor drawn = random_tensor({spec.dtype, spec.shape}, seed, spec.low, spec.high);
  return as_float(drawn, type.dtype);
}

std::vector<HostTensor> make_inputs(const std::vector<InputSpec>& specs, DType float_type) {
  std::vector<HostTensor> out;
  for (const InputSpec& spec : specs)
    out.push_back(make_input(spec, float_type, 17 * (out.size() + 1)));
  return out;
}

double dot(const HostTensor& a, const HostTensor& b) {
  const auto x = a.span<double>();
  const auto y = b.span<double>();
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
}

/// Inputs of a graph under test: roles are kInput so that nothing is folded.
ValueId add_input(GraphBuilder& builder, const HostTensor& tensor, std::string name) {
  if (!tensor) return {};
  Value value;
  value.name = std::move(name);
  value.type = tensor.type();
  value.role = Role::kInput;
  return builder.add_value(std::move(value));
}

std::string label(std::string_view op, const Attributes& attributes,
                  const std::vector<HostTensor>& inputs) {
  std::string text = fmt::format("{} {}", op, attributes.to_text());
  for (const HostTensor& input : inputs) text += " " + (input ? input.type().text() : "-");
  return text;
}

}  // namespace

// --- tensors ---

HostTensor floats(Shape shape, std::vector<float> values) {
  return HostTensor::of<float>(std::move(shape), std::span<const float>(values));
}
HostTensor doubles(Shape shape, std::vector<double> values) {
  return HostTensor::of<double>(std::move(shape), std::span<const double>(values));
}
HostTensor int64s(Shape shape, std::vector<std::int64_t> values) {
  return HostTensor::of<std::int64_t>(std::move(shape), std::span<const std::int64_t>(values));
}
HostTensor int32s(Shape shape, std::vector<std::int32_t> values) {
  return HostTensor::of<std::int32_t>(std::move(shape), std::span<const std::int32_t>(values));
}
HostTensor bools(Shape shape, std::vector<int> values) {
  const std::vector<double> numbers(values.begin(), values.end());
  return from_doubles({DType::kBool, std::move(shape)}, numbers);
}

HostTensor random_tensor(const TensorType& type, std::uint64_t seed, double low, double high) {
  Uniform uniform(seed);
  std::vector<double> values(static_cast<std::size_t>(type.count()));
  for (double& value : values) {
    value = uniform.next(low, high);
    if (!is_float(type.dtype)) value = std::floor(value);
  }
  return from_doubles(type, values);
}

HostTensor as_float(const HostTensor& tensor, DType dtype) {
  if (!tensor || !is_float(tensor.dtype()) || tensor.dtype() == dtype) return tensor;
  return from_doubles({dtype, tensor.shape(), tensor.type().layout}, tensor.to_doubles());
}

namespace {

double rms_of(const std::vector<double>& values) {
  double squares = 0;
  std::size_t finite = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    squares += value * value;
    ++finite;
  }
  return finite ? std::sqrt(squares / static_cast<double>(finite)) : 0;
}

/// |actual - expected| <= tolerance * (|expected| + scale), element by element; what is smaller
/// than the smallest normal float may become zero.
void expect_within(const HostTensor& actual, const HostTensor& expected, double tolerance,
                   const std::vector<double>& scale, std::string_view what) {
  constexpr double kSmallestNormal = 0x1p-126;
  ASSERT_TRUE(actual && expected) << what << ": a tensor is absent";
  ASSERT_EQ(actual.type().text(), expected.type().text()) << what;
  const std::vector<double> a = actual.to_doubles();
  const std::vector<double> e = expected.to_doubles();
  std::size_t wrong = 0;
  double worst = 0;
  std::string first;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same_special = (std::isnan(a[i]) && std::isnan(e[i])) || a[i] == e[i];
    const double error = std::fabs(a[i] - e[i]), size = std::fabs(e[i]) + scale[i];
    if (same_special || (std::isfinite(a[i]) && error <= tolerance * size + kSmallestNormal))
      continue;
    worst = std::max(worst, error / size);
    if (wrong++ == 0) first = fmt::format("element {}: {} instead of {}", i, a[i], e[i]);
  }
  EXPECT_EQ(wrong, 0U) << what << ": of " << a.size() << " elements wrong; " << first
                       << "; off by up to " << worst << " of the size, " << tolerance
                       << " is allowed";
}

}  // namespace

void expect_close(const HostTensor& actual, const HostTensor& expected, double tolerance,
                  std::string_view what) {
  ASSERT_TRUE(static_cast<bool>(expected)) << what << ": a tensor is absent";
  const std::vector<double> values = expected.to_doubles();
  expect_within(actual, expected, tolerance, std::vector<double>(values.size(), rms_of(values)),
                what);
}

void expect_values(const HostTensor& actual, const Shape& shape, const std::vector<double>& values,
                   double tolerance) {
  ASSERT_TRUE(static_cast<bool>(actual));
  ASSERT_EQ(actual.shape().text(), shape.text());
  const std::vector<double> a = actual.to_doubles();
  ASSERT_EQ(a.size(), values.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(values[i])) {
      EXPECT_TRUE(std::isnan(a[i])) << "element " << i << ": " << a[i];
    } else if (a[i] != values[i]) {
      EXPECT_NEAR(a[i], values[i], tolerance * (1 + std::fabs(values[i]))) << "element " << i;
    }
  }
}

void expect_same_bits(const HostTensor& actual, const HostTensor& expected, std::string_view what) {
  ASSERT_EQ(static_cast<bool>(actual), static_cast<bool>(expected)) << what;
  if (!actual) return;
  ASSERT_EQ(actual.type().text(), expected.type().text()) << what;
  EXPECT_EQ(std::memcmp(actual.view().data, expected.view().data, actual.type().bytes()), 0)
      << what << ": bits differ";
}

void expect_error(ErrorKind kind, std::string_view text, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    EXPECT_NE(std::string_view(error.what()).find(text), std::string_view::npos) << error.what();
    return;
  }
  ADD_FAILURE() << "no error; expected one with \"" << text << "\"";
}

// --- running ---

namespace {

/// Runs a kernel of a node.
std::vector<HostTensor> run_kernel(Kernel& kernel, const Node& node,
                                   const std::vector<HostTensor>& inputs,
                                   const std::vector<TensorType>& outputs,
                                   const RunContext& context) {
  constexpr std::size_t kGuard = 128;
  std::vector<Tensor> in;
  std::vector<std::vector<std::byte>> before;
  for (const HostTensor& input : inputs) {
    in.push_back(input.view());
    if (!input) in.back() = Tensor{};
    const auto* bytes = static_cast<const std::byte*>(input.view().data);
    before.emplace_back(bytes, bytes + (input ? input.type().bytes() : 0));
  }
  std::vector<Buffer> buffers;
  std::vector<Tensor> out;
  for (const TensorType& type : outputs) {
    if (type.dtype == DType::kUndefined) {
      buffers.emplace_back();
      out.emplace_back();
      continue;
    }
    buffers.emplace_back(type.bytes() + 2 * kGuard);
    std::memset(buffers.back().data(), 0xFF, buffers.back().bytes());
    out.push_back({type, buffers.back().data() + kGuard});
  }
  const Buffer workspace(kernel.workspace_bytes() + kGuard);
  std::memset(workspace.data(), 0xFF, workspace.bytes());
  RunContext with_workspace = context;
  with_workspace.workspace = workspace.data();
  kernel.run(in, out, with_workspace);

  const auto intact = [](const std::byte* from, std::size_t count) {
    return std::all_of(from, from + count, [](std::byte b) { return b == std::byte{0xFF}; });
  };
  EXPECT_TRUE(intact(workspace.data() + kernel.workspace_bytes(), kGuard))
      << node.op->name << " writes behind its workspace";
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (before[i].empty()) continue;
    EXPECT_EQ(std::memcmp(before[i].data(), inputs[i].view().data, before[i].size()), 0)
        << node.op->name << " writes into input " << i;
  }
  std::vector<HostTensor> results;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!out[i]) {
      results.emplace_back();
      continue;
    }
    EXPECT_TRUE(intact(buffers[i].data(), kGuard))
        << node.op->name << " writes before output " << i;
    EXPECT_TRUE(intact(buffers[i].data() + kGuard + outputs[i].bytes(), kGuard))
        << node.op->name << " writes behind output " << i;
    results.emplace_back(outputs[i]);
    std::memcpy(results.back().view().data, out[i].data, outputs[i].bytes());
  }
  return results;
}

KernelRequest request_of(const Node& node, const std::vector<HostTensor>& inputs,
                         const std::vector<TensorType>& outputs) {
  KernelRequest request{node, {}, outputs};
  for (const HostTensor& input : inputs) request.inputs.push_back(input.type());
  return request;
}

/// Runs a node with the kernel that `make` gives; nothing when it gives none.
template <class Make>
std::vector<HostTensor> run_made(const Make& make, const Node& node,
                                 const std::vector<HostTensor>& inputs,
                                 const std::vector<TensorType>& outputs,
                                 const RunContext& context) {
  if (node.op->flags & kView) return {inputs.at(0).reshaped(outputs.at(0).shape)};
  const std::unique_ptr<Kernel> kernel = make(request_of(node, inputs, outputs));
  if (!kernel) return {};
  return run_kernel(*kernel, node, inputs, outputs, context);
}

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
/// floats. What only NVIDIA's libraries have may be missing for some shapes and types.
bool must_have_kernel(std::string_view op, const std::vector<HostTensor>& inputs) {
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
        // Half of the last place of 8 and of 11 bits, and what sums differ by. Fused attention on a
        // GPU rounds the shares as well.
        const double last = types[i].dtype == DType::kBFloat16 ? 0.004 : 0.0005;
        const double step = node.op->name.starts_with("Attention") ? 4 * last : last;
        expect_close(as_float(results[i], DType::kFloat32), expected[i],
                     types[i].dtype == DType::kFloat32 ? tolerance : step + tolerance, where);
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

/// What a float32 kernel shall give: the reference kernel's results in float32, those in float64
/// rounded to float32, and what Tolerance calls s of each element.
struct Expected {
  std::vector<HostTensor> reference, exact;
  std::vector<std::vector<double>> scales;
};

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

/// The operator's hand-written GPU kernel, if it has one, under the emulator: threads in any order
/// give the same bits, which are those of the reference up to rounding. With
/// PIPETRAIN_TEST_DEVICE=cuda the kernel that a real GPU has, run three times.
void check_emulated(std::string_view op, const Attributes& attributes,
                    const std::vector<HostTensor>& inputs, const Expected& expected,
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

}  // namespace

std::vector<HostTensor> run_node(Backend backend, const Node& node,
                                 const std::vector<HostTensor>& inputs,
                                 const std::vector<TensorType>& outputs,
                                 const RunContext& context) {
  return run_made([&](const KernelRequest& request) { return make_kernel(backend, request); }, node,
                  inputs, outputs, context);
}

std::vector<HostTensor> run_graph(const Graph& graph, Backend backend, const Feeds& feeds,
                                  const RunContext& context) {
  std::vector<HostTensor> values(graph.values.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = graph.values[i].data;
  for (const auto& [id, tensor] : feeds) {
    PT_CHECK(tensor.type() == graph[id].type, kInternal, "fed {} to {} {}", tensor.type().text(),
             graph[id].name, graph[id].type.text());
    values[static_cast<std::size_t>(id.index)] = tensor;
  }
  for (const Node& node : graph.nodes) {
    std::vector<HostTensor> inputs;
    for (const ValueId id : node.inputs) {
      inputs.push_back(id ? values[static_cast<std::size_t>(id.index)] : HostTensor());
      PT_CHECK(!id || inputs.back(), kInternal, "value {} was not fed", graph[id].name);
    }
    const std::vector<HostTensor> results =
        run_node(backend, node, inputs, graph.output_types(node), context);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (node.outputs[i]) values[static_cast<std::size_t>(node.outputs[i].index)] = results[i];
    }
  }
  return values;
}

std::vector<TensorType> infer_op(std::string_view op, const Attributes& attributes,
                                 const std::vector<TensorType>& inputs) {
  const OpDef* definition = find_op(op);
  PT_CHECK(definition != nullptr, kInternal, "no canonical operator {}", op);
  InferContext infer{attributes, inputs, {}};
  definition->infer(infer);
  return infer.outputs;
}

std::vector<HostTensor> run_op(std::string_view op, const Attributes& attributes,
                               const std::vector<HostTensor>& inputs, Backend backend,
                               const RunContext& context) {
  std::vector<TensorType> types;
  for (const HostTensor& input : inputs) types.push_back(input.type());
  const std::vector<TensorType> outputs = infer_op(op, attributes, types);
  Node node;
  node.op = find_op(op);
  node.attributes = attributes;
  node.name = "test";
  return run_node(backend, node, inputs, outputs, context);
}

// --- checks ---

void check_gradients(std::string_view op, const Attributes& attributes,
                     const std::vector<InputSpec>& specs, const GradientOptions& options) {
  const std::vector<HostTensor> inputs = make_inputs(specs, DType::kFloat64);
  const std::string what = label(op, attributes, inputs);
  SCOPED_TRACE(what);

  std::vector<bool> wanted;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    wanted.push_back(inputs[i] && specs[i].differentiate && is_float(inputs[i].dtype()));
  }

  // One graph: the operator, and its gradient for the given choice of inputs.
  struct Built {
    Graph graph;
    std::vector<ValueId> inputs, outputs, projections, gradients;
  };
  const auto build = [&](const std::vector<bool>& wants) {
    Built built;
    GraphBuilder builder = make_builder(built.graph);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      built.inputs.push_back(add_input(builder, inputs[i], fmt::format("x{}", i)));
    }
    built.outputs = builder.add_all(op, built.inputs, attributes);
    const NodeId node = built.graph[built.outputs[0]].producer;
    built.projections.resize(built.outputs.size());
    for (const std::size_t output : options.outputs) {
      Value value;
      value.name = fmt::format("dy{}", output);
      value.type = builder.type(built.outputs.at(output));
      value.role = Role::kInput;
      built.projections[output] = builder.add_value(std::move(value));
    }
    PT_CHECK(built.graph[node].op->differentiate != nullptr, kInternal, "{} has no gradient rule",
             op);
    const std::unique_ptr<bool[]> flags(new bool[wants.size()]);
    std::copy(wants.begin(), wants.end(), flags.get());
    builder.set_origin("gradient", Part::kInputGradient, node);
    GradientContext context(builder, node, built.projections,
                            std::span<const bool>(flags.get(), wants.size()));
    built.graph[node].op->differentiate(context);
    built.gradients.assign(context.input_gradients().begin(), context.input_gradients().end());
    built.graph.verify();
    return built;
  };

  const Built built = build(wanted);
  Feeds feeds;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]) feeds[built.inputs[i]] = inputs[i];
  }
  std::vector<HostTensor> projections(built.outputs.size());
  for (const std::size_t output : options.outputs) {
    projections[output] = random_tensor(built.graph[built.projections[output]].type, 991 + output);
    feeds[built.projections[output]] = projections[output];
  }
  const std::vector<HostTensor> values =
      run_graph(built.graph, Backend::kReference, feeds, options.context);

  // The projected outputs as a function of one perturbed input.
  const auto projected = [&](std::size_t changed, const HostTensor& value) {
    std::vector<HostTensor> arguments = inputs;
    arguments[changed] = value;
    const std::vector<HostTensor> outputs =
        run_op(op, attributes, arguments, Backend::kReference, options.context);
    double sum = 0;
    for (const std::size_t output : options.outputs)
      sum += dot(outputs[output], projections[output]);
    return sum;
  };

  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!wanted[i]) continue;
    ASSERT_TRUE(static_cast<bool>(built.gradients[i])) << "no gradient for input " << i;
    const HostTensor& gradient = values[static_cast<std::size_t>(built.gradients[i].index)];
    ASSERT_EQ(gradient.type().text(), inputs[i].type().text()) << "gradient of input " << i;
    for (std::uint64_t trial = 0; trial < 3; ++trial) {
      const HostTensor direction = random_tensor(inputs[i].type(), 5003 * (i + 1) + trial);
      HostTensor plus(inputs[i].type());
      HostTensor minus(inputs[i].type());
      double squares = 0;
      for (std::size_t k = 0; k < plus.span<double>().size(); ++k) {
        const double move = options.step * direction.span<double>()[k];
        plus.span<double>()[k] = inputs[i].span<double>()[k] + move;
        minus.span<double>()[k] = inputs[i].span<double>()[k] - move;
        squares += std::pow(gradient.span<double>()[k] * direction.span<double>()[k], 2);
      }
      const double numeric = (projected(i, plus) - projected(i, minus)) / (2 * options.step);
      const double analytic = dot(gradient, direction);
      EXPECT_NEAR(analytic, numeric,
                  options.tolerance * std::max({std::fabs(numeric), std::sqrt(squares), 1e-3}))
          << "input " << i << ", direction " << trial;
    }
    std::vector<bool> only(inputs.size(), false);
    only[i] = true;
    const Built single = build(only);
    ASSERT_TRUE(static_cast<bool>(single.gradients[i]))
        << "no gradient for input " << i << " alone";
    Feeds single_feeds;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      if (inputs[k]) single_feeds[single.inputs[k]] = inputs[k];
    }
    for (const std::size_t output : options.outputs)
      single_feeds[single.projections[output]] = projections[output];
    const auto alone = run_graph(single.graph, Backend::kReference, single_feeds, options.context);
    expect_close(alone[static_cast<std::size_t>(single.gradients[i].index)], gradient, 1e-12,
                 "gradient asked alone");
  }
}

namespace {

/// Every float of the tensors times 1 + part or 1 - part, at random.
std::vector<HostTensor> moved(const std::vector<HostTensor>& tensors, double part,
                              std::uint64_t seed) {
  std::vector<HostTensor> out;
  for (const HostTensor& tensor : tensors) {
    out.push_back(tensor);
    if (!tensor || tensor.dtype() != DType::kFloat64) continue;
    out.back() = HostTensor(tensor.type());
    Uniform uniform(seed + out.size());
    for (std::size_t i = 0; i < tensor.span<double>().size(); ++i) {
      out.back().span<double>()[i] =
          tensor.span<double>()[i] * (1 + (uniform.next(-1, 1) < 0 ? -part : part));
    }
  }
  return out;
}

/// What Tolerance calls s, of every element of every output: no more than the root mean square of
/// the whole output.
std::vector<std::vector<double>> element_scales(std::string_view op, const Attributes& attributes,
                                                const std::vector<HostTensor>& inputs,
                                                const std::vector<HostTensor>& outputs,
                                                Tolerance tolerance, const RunContext& context) {
  constexpr double kPart = 1e-6;
  constexpr int kDraws = 4;
  const bool by_element = tolerance.scale == Tolerance::Scale::kElement;
  std::vector<std::vector<double>> scales;
  for (const HostTensor& output : outputs)
    scales.emplace_back(output ? static_cast<std::size_t>(output.type().count()) : 0, 0.0);
  for (int draw = 0; by_element && draw < kDraws; ++draw) {
    const std::vector<HostTensor> results =
        run_op(op, attributes, moved(inputs, kPart, 100 * static_cast<std::uint64_t>(draw)),
               Backend::kReference, context);
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      if (!outputs[o] || !is_float(outputs[o].dtype())) continue;
      const std::vector<double> before = outputs[o].to_doubles(), after = results[o].to_doubles();
      for (std::size_t i = 0; i < before.size(); ++i) {
        if (std::isfinite(before[i]) && std::isfinite(after[i]))
          scales[o][i] += std::pow((after[i] - before[i]) / kPart, 2) / kDraws;
      }
    }
  }
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o]) continue;
    const double whole = rms_of(outputs[o].to_doubles());
    for (double& scale : scales[o]) scale = by_element ? std::min(whole, std::sqrt(scale)) : whole;
  }
  return scales;
}

}  // namespace

void check_cpu(std::string_view op, const Attributes& attributes,
               const std::vector<InputSpec>& specs, Tolerance tolerance,
               const RunContext& context) {
  const std::vector<HostTensor> single = make_inputs(specs, DType::kFloat32);
  std::vector<HostTensor> wide;
  for (const HostTensor& input : single) wide.push_back(as_float(input, DType::kFloat64));
  const std::string what = label(op, attributes, single);
  SCOPED_TRACE(what);
  ASSERT_TRUE(has_cpu_kernel(op)) << "no CPU kernel";

  std::vector<HostTensor> exact = run_op(op, attributes, wide, Backend::kReference, context);
  auto scales = element_scales(op, attributes, wide, exact, tolerance, context);
  for (HostTensor& one : exact) one = as_float(one, DType::kFloat32);
  const Expected expected{run_op(op, attributes, single, Backend::kReference, context),
                          std::move(exact), std::move(scales)};
  const int threads_before = omp_get_max_threads();
  for (const int threads : {1, 2}) {
    omp_set_num_threads(threads);
    const std::vector<HostTensor> first = run_op(op, attributes, single, Backend::kCpu, context);
    const std::vector<HostTensor> second = run_op(op, attributes, single, Backend::kCpu, context);
    for (std::size_t i = 0; i < first.size(); ++i) {
      const std::string where = fmt::format("output {} with {} threads", i, threads);
      expect_same_bits(second[i], first[i], where + ", run again");
      if (!is_float(first[i].dtype())) {
        expect_same_bits(first[i], expected.reference[i], where);
        continue;
      }
      expect_close(first[i], expected.reference[i], tolerance.factor,
                   where + " against the float32 reference");
      expect_within(first[i], expected.exact[i], tolerance.factor, expected.scales[i],
                    where + " against the float64 reference");
    }
  }
  omp_set_num_threads(threads_before);
  check_emulated(op, attributes, single, expected, std::max(tolerance.factor, 1e-5), context);
}

// --- import rules ---

ImportInput data(HostTensor value) { return {std::move(value), false}; }
ImportInput constant(HostTensor value) { return {std::move(value), true}; }
ImportInput absent() { return {}; }

Imported import_node(std::string_view op_type, std::int64_t opset, const Attributes& attributes,
                     const std::vector<ImportInput>& inputs, std::size_t output_count,
                     const ImportMode& mode) {
  const ImportRule* rule = find_import(op_type);
  PT_CHECK(rule != nullptr, kModel, "no import rule for {}", op_type);
  Imported out;
  GraphBuilder builder = make_builder(out.graph);
  builder.set_origin("test", Part::kForward);
  for (const ImportInput& input : inputs) {
    ValueId id;
    if (input.value && input.constant) {
      id = builder.constant(input.value);
    } else if (input.value) {
      id = add_input(builder, input.value, fmt::format("x{}", out.inputs.size()));
      out.feeds[id] = input.value;
    }
    out.inputs.push_back(id);
  }
  ImportContext context(builder, op_type, opset, attributes, out.inputs, output_count, mode);
  rule->import(context);
  out.outputs.assign(context.outputs().begin(), context.outputs().end());
  out.graph.verify();
  return out;
}

std::vector<HostTensor> Imported::run(Backend backend, const RunContext& context) const {
  const std::vector<HostTensor> values = run_graph(graph, backend, feeds, context);
  std::vector<HostTensor> out;
  for (const ValueId id : outputs)
    out.push_back(id ? values[static_cast<std::size_t>(id.index)] : HostTensor());
  return out;
}

std::string Imported::ops() const {
  std::string text;
  for (const Node& node : graph.nodes) {
    if (!text.empty()) text += " ";
    text += node.op->name;
  }
  return text;
}

bool Imported::is_constant(std::size_t index) const {
  return graph[outputs.at(index)].role == Role::kConstant;
}

}  // namespace pipetrain::test
