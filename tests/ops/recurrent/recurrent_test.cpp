#include "ops/recurrent/recurrent.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "base/vectors.h"
#include "ops/matmul/gemm_cpu.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

/// sin(phase + 0.7 i) / 2: the input of the goldens, which were made with PyTorch 2.15 in double.
HostTensor ramp(Shape shape, double phase) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  int i = 0;
  for (float& value : out.span<float>()) {
    value = static_cast<float>(std::sin(phase + 0.7 * i++) * 0.5);
  }
  return out;
}

struct Golden {
  const char* op;
  std::int64_t gates;
  std::vector<double> y;   // (T, directions, N, H)
  std::vector<double> dx;  // for a ramp as the gradient of y
  std::vector<double> dr;  // of direction 0
};

const Golden kGoldens[] = {
    {"LSTM",
     4,
     {-0.212048163, -0.329345656, -0.188758407, -0.327973664, 0.111042954,  -0.128689177,
      0.1041671,    -0.100407543, -0.341433245, -0.338351663, -0.34085609,  -0.283555807,
      0.051714951,  -0.128129083, 0.036233291,  -0.116823079, -0.410708205, -0.365854612,
      -0.381751867, -0.396519135, 0.050591411,  -0.079208369, 0.081596536,  -0.025807697},
     {-0.042206537, -0.025887627, 0.00415053, -0.049291602, -0.048949071, -0.017404207,
      -0.141572203, -0.180715056, 0.015115749, 0.044993879, -0.089797884, -0.051682975},
     {0.001585603, 0.006561705, 0.02090031, 0.026823397, 0.000527043, 0.004020592, 0.02728212,
      0.029227782, -0.000441032, 0.00033404, 0.017965301, 0.026182874, -0.003756306, -0.00452327,
      -0.058020678, -0.085825646}},
    {"GRU",
     3,
     {0.122923516,  0.11027743,   0.081406701,  0.114812577,  -0.308951613, -0.257955764,
      -0.27263186,  -0.247456007, 0.195992931,  -0.002065379, 0.251613173,  -0.117322247,
      -0.328396984, -0.172056027, -0.317894973, -0.198424242, 0.242213446,  0.037992395,
      0.184923595,  0.061558502,  -0.155226917, -0.151797238, -0.006589075, -0.183167715},
     {0.006903641, 0.122610082, -0.146321424, 0.081242168, 0.097785578, 0.092829314, -0.067284577,
      0.19238035, 0.164334539, 0.052484983, -0.13020993, 0.114826831},
     {0.001292294, -0.00442677, -0.005429691, 0.015837784, 0.000198559, 0.000734018, 0.010179994,
      0.005016732, 0.002129673, 0.002395772, 0.046829514, 0.031461695}},
    {"RNN",
     1,
     {0.671318801,  0.776189232,  0.649958907,  0.808362165,  -0.501550939, -0.72315362,
      -0.514048844, -0.810686114, 0.711138015,  0.842526074,  0.691436532,  0.748126357,
      -0.251090661, -0.036304917, -0.244372076, 0.283252576,  0.804009885,  0.893732659,
      0.83416001,   0.947129306,  -0.484980297, -0.653116124, -0.478872237, -0.829337441},
     {0.174900118, 0.225776824, 0.111318784, 0.334325223, 0.05616598, -0.072575196, 0.231741758,
      0.408747441, -0.011542819, -0.179564459, 0.053462305, 0.065692652},
     {0.090207508, 0.112463802, 0.206836297, 0.249306292}},
};

constexpr std::int64_t kSteps = 3, kSamples = 2, kInput = 2, kHidden = 2;

Attributes attributes_of(const Golden& golden) {
  Attributes out = {{"hidden_size", kHidden}, {"direction", std::string("bidirectional")}};
  if (std::string_view(golden.op) == "GRU") out.set("linear_before_reset", std::int64_t{1});
  return out;
}

std::vector<ImportInput> inputs_of(const Golden& golden) {
  const std::int64_t rows = golden.gates * kHidden;
  return {data(ramp({kSteps, kSamples, kInput}, 0.4)), data(ramp({2, rows, kInput}, 0.1)),
          data(ramp({2, rows, kHidden}, 0.2)), data(ramp({2, 2 * rows}, 0.3))};
}

TEST(Recurrent, BothDirectionsAsInPyTorch) {
  for (const Golden& golden : kGoldens) {
    SCOPED_TRACE(golden.op);
    const Imported imported =
        import_node(golden.op, 14, attributes_of(golden), inputs_of(golden), 2);
    for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
      const std::vector<HostTensor> out = imported.run(backend);
      expect_values(out[0], {kSteps, 2, kSamples, kHidden}, golden.y, 2e-6);
      // The last states are the last step of one direction and the first of the other.
      std::vector<double> last(golden.y.begin() + 16, golden.y.begin() + 20);
      last.insert(last.end(), golden.y.begin() + 4, golden.y.begin() + 8);
      expect_values(out[1], {2, kSamples, kHidden}, last, 2e-6);
    }
  }
}

/// Differentiates by hand in node order what import_node built and returns the gradients of `of`.
std::vector<HostTensor> gradients(Imported imported, Backend backend, const HostTensor& dy,
                                  const std::vector<ValueId>& of) {
  GraphBuilder builder = make_builder(imported.graph);
  Value value;
  value.name = "dy";
  value.type = dy.type();
  const ValueId seed = builder.add_value(std::move(value));
  imported.feeds[seed] = dy;
  std::map<ValueId, ValueId> known = {{imported.outputs[0], seed}};
  for (int n = static_cast<int>(imported.graph.nodes.size()); n-- > 0;) {
    const Node node = imported.graph.nodes[static_cast<std::size_t>(n)];
    std::vector<ValueId> arrived;
    bool any = false;
    for (const ValueId output : node.outputs) {
      arrived.push_back(known.contains(output) ? known[output] : ValueId{});
      any = any || arrived.back();
    }
    if (!any) continue;
    std::unique_ptr<bool[]> wanted(new bool[node.inputs.size()]);
    for (std::size_t i = 0; i < node.inputs.size(); ++i) wanted[i] = bool(node.inputs[i]);
    GradientContext context(builder, {n}, arrived, {wanted.get(), node.inputs.size()});
    node.op->differentiate(context);
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId gradient = context.input_gradients()[i];
      if (!gradient) continue;
      ValueId& sum = known[node.inputs[i]];
      sum = sum ? builder.add("Add", {sum, gradient}) : gradient;
    }
  }
  const std::vector<HostTensor> values = run_graph(imported.graph, backend, imported.feeds);
  std::vector<HostTensor> out;
  for (const ValueId id : of) out.push_back(values[static_cast<std::size_t>(known.at(id).index)]);
  return out;
}

TEST(Recurrent, GradientsAsInPyTorch) {
  for (const Golden& golden : kGoldens) {
    SCOPED_TRACE(golden.op);
    const Imported imported =
        import_node(golden.op, 14, attributes_of(golden), inputs_of(golden), 1);
    for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
      const std::vector<HostTensor> out =
          gradients(imported, backend, ramp({kSteps, 2, kSamples, kHidden}, 0.5),
                    {imported.inputs[0], imported.inputs[2]});
      expect_values(out[0], {kSteps, kSamples, kInput}, golden.dx, 1e-5);
      std::vector<double> dr = out[1].to_doubles();
      dr.resize(dr.size() / 2);
      expect_values(doubles({golden.gates * kHidden, kHidden}, dr),
                    {golden.gates * kHidden, kHidden}, golden.dr, 1e-5);
    }
  }
}

// Expected values from ONNX Runtime: the forget gate is 1 minus the input gate.
TEST(Recurrent, CoupledGatesAsInOnnxRuntime) {
  const auto numbers = [](Shape shape, int period, float step) {
    HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
    int i = 0;
    for (float& value : out.span<float>())
      value = static_cast<float>(i++ % period - period / 2) * step;
    return out;
  };
  const ImportInput x = data(floats({2, 1, 2}, {1, -0.5F, 0.25F, 2}));
  const ImportInput w = data(numbers({1, 8, 2}, 5, 0.25F)), r = data(numbers({1, 8, 2}, 7, 0.125F));
  const ImportInput h0 = data(floats({1, 1, 2}, {0.5F, -0.25F})),
                    c0 = data(floats({1, 1, 2}, {1, -0.5F})),
                    p = data(floats({1, 6}, {0.5F, -0.25F, 0.75F, 0.125F, -0.5F, 1}));
  const Attributes attributes = {{"hidden_size", std::int64_t{2}},
                                 {"input_forget", std::int64_t{1}}};
  const auto expect = [&](const ImportInput& peepholes, const std::vector<double>& y,
                          const std::vector<double>& last_c) {
    const Imported imported =
        import_node("LSTM", 14, attributes, {x, w, r, absent(), absent(), h0, c0, peepholes}, 3);
    for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
      const std::vector<HostTensor> out = imported.run(backend);
      expect_values(out[0], {2, 1, 1, 2}, y, 1e-6);
      expect_values(out[2], {1, 1, 2}, last_c, 1e-6);
    }
  };
  expect(absent(), {0.3585084677, -0.0111650731, 0.1556778848, -0.2300420851},
         {0.5678269267, -0.4762329459});
  expect(p, {0.3177410364, 0.0055015883, 0.1710512489, -0.2151537687},
         {0.4795630574, -0.4610796273});
}

Attributes layer(const char* activations, std::int64_t reverse = 0) {
  return {{"reverse", reverse}, {"activations", std::string(activations)}};
}

InputSpec absent_spec() {
  InputSpec out{Shape{1}};
  out.absent = true;
  return out;
}

InputSpec lengths_spec(std::vector<double> lengths) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  return {{count}, 0, 1, DType::kInt32, std::move(lengths)};
}

TEST(Recurrent, LstmGradients) {
  const GradientOptions all{.outputs = {0, 1, 2}};
  for (const std::int64_t reverse : {0, 1}) {
    const Attributes usual = layer("Sigmoid,Tanh,Tanh", reverse);
    check_gradients("Lstm", usual, {{{3, 2, 8}}, {{8, 2}}}, all);
    check_gradients("Lstm", usual, {{{3, 2, 12}}, {{12, 3}}, {{2, 3}}, {{2, 3}}, {{9}}}, all);
    check_gradients("Lstm", usual,
                    {{{4, 3, 8}}, {{8, 2}}, {{3, 2}}, {{3, 2}}, {{6}}, lengths_spec({2, 4, 0})},
                    all);
    Attributes coupled = layer("HardSigmoid,Softsign,ScaledTanh", reverse);
    coupled.set("input_forget", std::int64_t{1});
    coupled.set("alpha", Reals{0.15, 0, 1.3});
    coupled.set("beta", Reals{0.4, 0, 0.7});
    check_gradients("Lstm", coupled, {{{3, 2, 8}}, {{8, 2}}, {{2, 2}}, {{2, 2}}, {{6}}}, all);
  }
  Attributes clipped = layer("Sigmoid,Tanh,Tanh");
  clipped.set("clip", 0.4);
  check_gradients("Lstm", clipped, {{{3, 2, 8}}, {{8, 2}}}, all);
}

TEST(Recurrent, GruGradients) {
  const GradientOptions all{.outputs = {0, 1}};
  for (const std::int64_t after : {0, 1}) {
    for (const std::int64_t reverse : {0, 1}) {
      Attributes usual = layer("Sigmoid,Tanh", reverse);
      usual.set("linear_before_reset", after);
      const InputSpec bias = after ? InputSpec{{2}} : absent_spec();
      check_gradients("Gru", usual, {{{3, 2, 6}}, {{6, 2}}, bias}, all);
      check_gradients("Gru", usual,
                      {{{4, 3, 6}}, {{6, 2}}, bias, {{3, 2}}, lengths_spec({2, 4, 0})}, all);
    }
  }
  Attributes other = layer("Softsign,Elu");
  other.set("alpha", Reals{0, 0.7});
  check_gradients("Gru", other, {{{3, 2, 6}}, {{6, 2}}}, all);
}

/// The gradient of one step of a Rnn of one unit by its input x, in the stored type.
double slope_at(const Attributes& attributes, double x, DType stored, Backend backend) {
  const HostTensor one = as_float(doubles({1, 1, 1}, {1}), stored),
                   r = as_float(doubles({1, 1}, {0}), stored);
  const auto y = run_op("Rnn", attributes, {as_float(doubles({1, 1, 1}, {x}), stored), r}, backend);
  return run_op("RnnGrad", attributes, {one, {}, r, y[0]}, backend)[0].to_doubles()[0];
}

TEST(Recurrent, NotANumberStaysOneBehindARelu) {
  const Attributes attributes = layer("Relu");
  const HostTensor x = floats({1, 1, 1}, {std::numeric_limits<float>::quiet_NaN()});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const auto y = run_op("Rnn", attributes, {x, floats({1, 1}, {0})}, backend);
    EXPECT_TRUE(std::isnan(y[0].to_doubles()[0]));
  }
}

// Beyond the clip the gradient is 0, however the value at the limit was rounded.
TEST(Recurrent, NothingPassesAClip) {
  for (const char* activation : {"Affine", "Elu", "HardSigmoid", "LeakyRelu", "ScaledTanh",
                                 "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"}) {
    for (const double alpha : {0.3, -0.3}) {
      const std::string name = activation;
      if (alpha < 0 && (name == "Elu" || name == "LeakyRelu")) continue;
      for (const double clip : {0.05, 0.1, 0.3, 0.7, 1.0}) {
        SCOPED_TRACE(fmt::format("{} {} clip {}", activation, alpha, clip));
        Attributes attributes = layer(activation);
        attributes.set("alpha", Reals{alpha});
        attributes.set("beta", Reals{0.6});
        attributes.set("clip", clip);
        for (const DType stored : {DType::kFloat32, DType::kBFloat16}) {
          for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
            EXPECT_EQ(slope_at(attributes, 2, stored, backend), 0);
            EXPECT_EQ(slope_at(attributes, -2, stored, backend), 0);
          }
        }
        const bool zero = name == "ThresholdedRelu" && (alpha > 0 || clip > 0.3);
        const double inside = name == "ThresholdedRelu" ? -clip / 2 : clip / 2;
        if (!zero) EXPECT_NE(slope_at(attributes, inside, DType::kFloat32, Backend::kCpu), 0);
      }
    }
  }
}

TEST(Recurrent, SlopesThatValuesDoNotShowAreRefused) {
  for (const char* activation : {"Elu", "LeakyRelu"}) {
    Attributes attributes = layer(activation);
    attributes.set("alpha", Reals{-0.2});
    expect_error(ErrorKind::kModel, "cannot be trained with the negative alpha -0.2", [&] {
      check_gradients("Rnn", attributes, {{{3, 2, 2}}, {{2, 2}}});
    });
  }
}

TEST(Recurrent, RnnGradients) {
  const GradientOptions all{.outputs = {0, 1}};
  for (const char* activation : {"Tanh", "Sigmoid", "Softplus", "LeakyRelu"}) {
    Attributes attributes = layer(activation, 1);
    attributes.set("alpha", Reals{0.2});
    check_gradients("Rnn", attributes, {{{3, 2, 2}}, {{2, 2}}}, all);
    check_gradients("Rnn", attributes, {{{4, 3, 2}}, {{2, 2}}, {{3, 2}}, lengths_spec({2, 4, 0})},
                    all);
  }
  // Away from the kink at 0.
  check_gradients("Rnn", layer("Relu"), {{{3, 2, 2}, 0.5, 1}, {{2, 2}, 0.1, 0.4}}, all);
}

TEST(Recurrent, CpuAgreesWithReference) {
  for (const std::int64_t reverse : {0, 1}) {
    for (const auto& [t, n, h] : {std::array<std::int64_t, 3>{5, 3, 7},
                                  {3, 50, 40},
                                  {1, 2, 16},
                                  {0, 2, 3},
                                  {3, 13, 64},
                                  {2, 5, 256}}) {
      const Attributes lstm = layer("Sigmoid,Tanh,Tanh", reverse);
      const InputSpec r4{{4 * h, h}, -0.3, 0.3}, r3{{3 * h, h}, -0.3, 0.3}, r1{{h, h}, -0.3, 0.3};
      const InputSpec sequence{{t, n, h}}, state{{n, h}}, none = absent_spec();
      check_cpu("Lstm", lstm, {{{t, n, 4 * h}, -3, 3}, r4, state, state}, 2e-5);
      check_cpu("Lstm", lstm, {{{t, n, 4 * h}, -3, 3}, r4}, 2e-5);
      const InputSpec activated4{{t, n, 4 * h}, 0.1, 0.9}, activated3{{t, n, 3 * h}, 0.1, 0.9};
      check_cpu("LstmGrad", lstm, {sequence, state, state, r4, activated4, sequence, state}, 2e-5);
      check_cpu("LstmGrad", lstm, {none, state, none, r4, activated4, sequence}, 2e-5);
      Attributes gru = layer("Sigmoid,Tanh", reverse);
      gru.set("linear_before_reset", std::int64_t{1});
      check_cpu("Gru", gru, {{{t, n, 3 * h}, -3, 3}, r3, {{h}}, state}, 2e-5);
      check_cpu("Gru", gru, {{{t, n, 3 * h}, -3, 3}, r3}, 2e-5);
      check_cpu("GruGrad", gru, {sequence, state, r3, activated3, sequence, sequence, state}, 2e-5);
      check_cpu("GruGrad", gru, {sequence, none, r3, activated3, sequence, sequence}, 2e-5);
      for (const char* activation : {"Tanh", "Relu"}) {
        const Attributes rnn = layer(activation, reverse);
        check_cpu("Rnn", rnn, {{{t, n, h}, -2, 2}, r1, state}, 2e-5);
        check_cpu("RnnGrad", rnn, {sequence, state, r1, sequence}, 2e-5);
        check_cpu("RnnGrad", rnn, {none, state, r1, sequence}, 2e-5);
      }
      check_cpu("RecurrentWeightGrad", lstm, {{{t, n, 4 * h}}, sequence, state}, 2e-5);
      check_cpu("RecurrentWeightGrad", lstm, {{{t, n, 4 * h}}, sequence}, 2e-5);
      check_cpu("RecurrentWeightGrad", lstm, {{{0, n, 4 * h}}, {{0, n, h}}, state}, 2e-5);
    }
  }
}

HostTensor cast(const HostTensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  return run_op("Cast", {{"to", static_cast<std::int64_t>(dtype)}}, {tensor})[0];
}

/// Step `t` of a sequence, as a sequence of floats of its own.
HostTensor step_of(const HostTensor& sequence, std::int64_t t) {
  const HostTensor all = cast(sequence, DType::kFloat32);
  const Shape& shape = all.shape();
  const std::int64_t count = shape[1] * shape[2];
  const auto values = all.view().span<const float>().subspan(static_cast<std::size_t>(t * count),
                                                             static_cast<std::size_t>(count));
  return floats({1, shape[1], shape[2]}, {values.begin(), values.end()});
}

HostTensor as_state(const HostTensor& step) {
  return step.reshaped({step.shape()[1], step.shape()[2]});
}

std::vector<HostTensor> run_narrow(const char* op, const Attributes& attributes,
                                   const std::vector<HostTensor>& inputs,
                                   std::vector<TensorType> outputs, int threads) {
  Node node;
  node.op = find_op(op);
  node.attributes = attributes;
  KernelRequest request{node, {}, outputs};
  for (const HostTensor& input : inputs) request.inputs.push_back(input.type());
  EXPECT_TRUE(recurrent::takes_bfloat16(request)) << op;
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  std::vector<HostTensor> out = run_node(Backend::kCpu, node, inputs, outputs);
  omp_set_num_threads(before);
  return out;
}

// Each step is the reference's from the states that the step before has stored; the gradient as a
// whole is the reference's but for what is rounded on the way.
TEST(Recurrent, BFloat16LstmsRoundWhatTheyStore) {
  if (!has_fast_bfloat16_products()) GTEST_SKIP() << "this processor multiplies bfloat16 as floats";
  const DType narrow = DType::kBFloat16, wide = DType::kFloat32;
  const auto number = [&](Shape shape, unsigned seed, double size) {
    return cast(random_tensor({wide, std::move(shape)}, seed, -size, size), narrow);
  };
  for (const std::int64_t reverse : {0, 1}) {
    for (const auto& [t, n, h] :
         {std::array<std::int64_t, 3>{5, 3, 6}, {3, 50, 40}, {1, 2, 48}, {3, 5, 128}}) {
      const Attributes lstm = layer("Sigmoid,Tanh,Tanh", reverse);
      const HostTensor gates = number({t, n, 4 * h}, 1, 3), r = number({4 * h, h}, 2, 0.3);
      const HostTensor h0 = cast(number({n, h}, 3, 1), wide);
      const HostTensor c0 = random_tensor({wide, {n, h}}, 4);
      const std::vector<TensorType> types = {{narrow, {t, n, h}},
                                             {wide, {n, h}},
                                             {wide, {n, h}},
                                             {narrow, {t, n, 4 * h}},
                                             {wide, {t, n, h}}};
      const auto made = run_narrow("Lstm", lstm, {gates, r, h0, c0}, types, 1);
      const auto again = run_narrow("Lstm", lstm, {gates, r, h0, c0}, types, 2);
      for (std::size_t i = 0; i < made.size(); ++i) expect_same_bits(again[i], made[i]);
      const HostTensor wide_r = cast(r, wide);
      for (std::int64_t order = 0; order < t; ++order) {
        const std::int64_t now = reverse ? t - 1 - order : order;
        const std::int64_t before = reverse ? now + 1 : now - 1;
        const auto expected =
            run_op("Lstm", layer("Sigmoid,Tanh,Tanh"),
                   {step_of(gates, now), wide_r, order ? as_state(step_of(made[0], before)) : h0,
                    order ? as_state(step_of(made[4], before)) : c0});
        expect_close(step_of(made[0], now), expected[0], 0.004, "y");
        expect_close(step_of(made[3], now), expected[3], 0.004, "activated");
        expect_close(step_of(made[4], now), expected[4], 2e-5, "cells");
      }
      const std::vector<HostTensor> in = {number({t, n, h}, 5, 1),
                                          random_tensor({wide, {n, h}}, 6),
                                          random_tensor({wide, {n, h}}, 7),
                                          r,
                                          made[3],
                                          made[4],
                                          c0};
      const std::vector<TensorType> gradients = {
          {narrow, {t, n, 4 * h}}, {wide, {n, h}}, {wide, {n, h}}};
      const auto back = run_narrow("LstmGrad", lstm, in, gradients, 1);
      const auto twice = run_narrow("LstmGrad", lstm, in, gradients, 2);
      std::vector<HostTensor> widened;
      for (const HostTensor& tensor : in) widened.push_back(cast(tensor, wide));
      const auto expected = run_op("LstmGrad", lstm, widened);
      for (std::size_t i = 0; i < back.size(); ++i) {
        expect_same_bits(twice[i], back[i]);
        expect_close(cast(back[i], wide), expected[i], 0.01);
      }
      if (t == 1) continue;
      const auto weights =
          run_narrow("RecurrentWeightGrad", lstm, {back[0], made[0]}, {{wide, {4 * h, h}}}, 2);
      expect_close(
          weights[0],
          run_op("RecurrentWeightGrad", lstm, {cast(back[0], wide), cast(made[0], wide)})[0], 1e-5);
    }
  }
}

TEST(Recurrent, BatchFirstIsTheSameTransposed) {
  const HostTensor x = ramp({2, 3, 2}, 0.4);  // (N, T, I)
  const HostTensor w = ramp({1, 8, 2}, 0.1), r = ramp({1, 8, 2}, 0.2);
  const std::vector<HostTensor> y =
      import_node("LSTM", 14, {{"layout", std::int64_t{1}}}, {data(x), data(w), data(r)}, 3).run();
  const std::vector<double> rows = x.to_doubles();
  std::vector<double> turned(rows.size());
  for (int n = 0; n < 2; ++n) {
    for (int t = 0; t < 3; ++t) {
      for (int i = 0; i < 2; ++i) turned[(t * 2 + n) * 2 + i] = rows[(n * 3 + t) * 2 + i];
    }
  }
  const HostTensor steps = as_float(doubles({3, 2, 2}, turned), DType::kFloat32);
  const std::vector<HostTensor> z =
      import_node("LSTM", 14, {}, {data(steps), data(w), data(r)}, 3).run();
  EXPECT_EQ(y[0].shape(), (Shape{2, 3, 1, 2}));
  EXPECT_EQ(y[1].shape(), (Shape{2, 1, 2}));
  for (int n = 0; n < 2; ++n) {
    for (int t = 0; t < 3; ++t) {
      EXPECT_EQ(y[0].to_doubles()[static_cast<std::size_t>((n * 3 + t) * 2)],
                z[0].to_doubles()[static_cast<std::size_t>((t * 2 + n) * 2)]);
    }
  }
}

TEST(Recurrent, AShortSampleEndsEarly) {
  const HostTensor x = ramp({3, 2, 2}, 0.4), w = ramp({1, 6, 2}, 0.1), r = ramp({1, 6, 2}, 0.2);
  const std::vector<HostTensor> y =
      import_node("GRU", 14, {},
                  {data(x), data(w), data(r), absent(), constant(int32s({2}, {1, 3}))}, 2)
          .run();
  const std::vector<HostTensor> whole =
      import_node("GRU", 14, {},
                  {data(x), data(w), data(r), absent(), constant(int32s({2}, {3, 3}))}, 2)
          .run();
  const std::vector<double> got = y[0].to_doubles(), full = whole[0].to_doubles();
  EXPECT_EQ(got[0], full[0]);
  EXPECT_EQ(got[4], 0);  // step 1 of sample 0
  EXPECT_EQ(got[6], full[6]);
  EXPECT_EQ(y[1].to_doubles()[0], full[0]);
}

TEST(Recurrent, RefusesWhatDoesNotFit) {
  const HostTensor x = ramp({3, 2, 2}, 0.4), w = ramp({1, 8, 2}, 0.1), r = ramp({1, 8, 2}, 0.2);
  expect_error(ErrorKind::kModel, "do not fit hidden_size 3", [&] {
    import_node("LSTM", 14, {{"hidden_size", std::int64_t{3}}}, {data(x), data(w), data(r)});
  });
  expect_error(ErrorKind::kModel, "unknown activation \"Gelu\"", [&] {
    import_node("LSTM", 14, {{"activations", std::string("Gelu,Tanh,Tanh")}},
                {data(x), data(w), data(r)});
  });
  expect_error(ErrorKind::kModel, "direction \"sideways\"", [&] {
    import_node("LSTM", 14, {{"direction", std::string("sideways")}}, {data(x), data(w), data(r)});
  });
}

}  // namespace
}  // namespace pipetrain::test
