#include "support/op_check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "support/gpu_kernel_check.h"

namespace pipetrain::test {
namespace {

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

/// One operator, and its gradients of the inputs that `wanted` names.
struct OpWithGradient {
  Graph graph;
  std::vector<ValueId> inputs, outputs, projections, gradients;
};

/// `projected`: the outputs that have a gradient.
OpWithGradient build_with_gradient(std::string_view op, const Attributes& attributes,
                                   const std::vector<HostTensor>& inputs,
                                   const std::vector<std::size_t>& projected,
                                   const std::vector<bool>& wanted) {
  OpWithGradient out;
  GraphBuilder builder = make_builder(out.graph);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    out.inputs.push_back(add_input(builder, inputs[i], fmt::format("x{}", i)));
  out.outputs = builder.add_all(op, out.inputs, attributes);
  const NodeId node = out.graph[out.outputs[0]].producer;
  out.projections.resize(out.outputs.size());
  for (const std::size_t output : projected) {
    Value value;
    value.name = fmt::format("dy{}", output);
    value.type = builder.type(out.outputs.at(output));
    value.role = Role::kInput;
    out.projections[output] = builder.add_value(std::move(value));
  }
  PT_CHECK(out.graph[node].op->differentiate != nullptr, kInternal, "{} has no gradient rule", op);
  const std::unique_ptr<bool[]> flags(new bool[wanted.size()]);
  std::copy(wanted.begin(), wanted.end(), flags.get());
  builder.set_origin("gradient", Part::kInputGradient, node);
  GradientContext context(builder, node, out.projections,
                          std::span<const bool>(flags.get(), wanted.size()));
  out.graph[node].op->differentiate(context);
  out.gradients.assign(context.input_gradients().begin(), context.input_gradients().end());
  out.graph.verify();
  return out;
}

}  // namespace

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

  const OpWithGradient built = build_with_gradient(op, attributes, inputs, options.outputs, wanted);
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
    const OpWithGradient single =
        build_with_gradient(op, attributes, inputs, options.outputs, only);
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
  const ExpectedResults expected{run_op(op, attributes, single, Backend::kReference, context),
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
