// Random tensors: RandomUniform, RandomNormal and Bernoulli of ONNX, with and without a tensor that
// gives the shape.
//
//   RandomUniform{low, high, key}(x), RandomNormal{mean, scale, key}(x): x gives the shape only
// An element is a pure function of (seed, step, key of the node, sample, element), as Dropout's
// masks are: the same whatever the stages, micro-batches and recomputation.
#include <algorithm>

#include "base/error.h"
#include "ops/kernel/constant_size.h"
#include "ops/kernel/element_types.h"
#include "ops/random/dropout.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

void infer_random(InferContext& context) {
  PT_CHECK(context.inputs.size() == 1, kModel, "expected 1 input, got {}", context.inputs.size());
  const TensorType& like = context.inputs[0];
  const bool wide = like.dtype == DType::kFloat64;
  context.outputs = {{wide ? DType::kFloat64 : DType::kFloat32, like.shape}};
}

/// The values do not depend on the content of the input.
void no_gradient(GradientContext&) {}

constexpr OpTraits kRandomTraits = {KernelKind::kElementwise,
                                    {PrecisionRule::kFloat},
                                    LayoutRule::kRowMajor,
                                    {ChunkRule::kWhole},
                                    Fusion::kNever};

constexpr OpDef kRandomOps[] = {
    {"RandomNormal", kRandom, kRandomTraits, infer_random, no_gradient},
    {"RandomUniform", kRandom, kRandomTraits, infer_random, no_gradient},
};

// --- kernels ---

/// One counter per element: the words of a block are not shared.
PhiloxBlock numbers_of(PhiloxKey key, std::uint64_t sample, std::uint64_t element) {
  const PhiloxKey at = philox_key(element);
  const PhiloxKey of = philox_key(sample);
  return philox(key, {{at.word[0], at.word[1], of.word[0], of.word[1]}});
}

/// The CPU's kernels run in parallel, those of the reference do not.
enum class Threads { kOne, kAll };

template <class Draw>
std::unique_ptr<Kernel> random_kernel(const KernelRequest& request, Threads threads, Draw draw) {
  constexpr std::int64_t kParallelElements = 1 << 14;
  const auto node_key = static_cast<std::uint64_t>(request.node.attributes.integer("key"));
  return for_element_type<float, double>(request.outputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [=](std::span<const Tensor>, std::span<const Tensor> out, const RunContext& context) {
          const PhiloxKey key = dropout_key(context, node_key);
          const std::int64_t count = out[0].count();
          const std::int64_t per_sample =
              std::max<std::int64_t>(1, elements_per_sample(count, context));
          const bool is_parallel = threads == Threads::kAll && count > kParallelElements;
#pragma omp parallel for schedule(static) if (is_parallel)
          for (std::int64_t i = 0; i < count; ++i) {
            const auto sample = static_cast<std::uint64_t>(context.first_sample + i / per_sample);
            const PhiloxBlock block =
                numbers_of(key, sample, static_cast<std::uint64_t>(i % per_sample));
            out[0].as<T>()[i] = static_cast<T>(draw(block));
          }
        });
  });
}

template <Threads kThreads>
std::unique_ptr<Kernel> make_uniform(const KernelRequest& request) {
  const double low = request.node.attributes.real("low", 0);
  const double high = request.node.attributes.real("high", 1);
  return random_kernel(request, kThreads, [=](const PhiloxBlock& block) {
    return low + (high - low) * static_cast<double>(uniform_float(block.word[0]));
  });
}

template <Threads kThreads>
std::unique_ptr<Kernel> make_normal(const KernelRequest& request) {
  const double mean = request.node.attributes.real("mean", 0);
  const double scale = request.node.attributes.real("scale", 1);
  return random_kernel(request, kThreads, [=](const PhiloxBlock& block) {
    return mean + scale * static_cast<double>(normal_pair(block.word[0], block.word[1]).first);
  });
}

template <Threads kThreads>
constexpr KernelEntry kKernels[] = {{"RandomNormal", make_normal<kThreads>},
                                    {"RandomUniform", make_uniform<kThreads>}};

// --- import ---

/// A key that is unique among the random nodes of the graph, one more than that of the last one;
/// Dropout's keys are small integers.
std::int64_t next_random_key(const Graph& graph) {
  const auto last = std::find_if(graph.nodes.rbegin(), graph.nodes.rend(), [](const Node& node) {
    return node.op->name == "RandomUniform" || node.op->name == "RandomNormal";
  });
  constexpr std::int64_t kFirst = std::int64_t{1} << 32;
  return last == graph.nodes.rend() ? kFirst : last->attributes.integer("key") + 1;
}

ValueId draw(ImportContext& context, ValueId like) {
  const Attributes& from = context.attributes();
  GraphBuilder& builder = context.builder();
  const std::int64_t key = next_random_key(builder.graph());
  if (context.op_type().starts_with("RandomNormal")) {
    return builder.add(
        "RandomNormal", {like},
        {{"mean", from.real("mean", 0)}, {"scale", from.real("scale", 1)}, {"key", key}});
  }
  return builder.add("RandomUniform", {like},
                     {{"low", from.real("low", 0)}, {"high", from.real("high", 1)}, {"key", key}});
}

void import_shaped(ImportContext& context) {
  const Shape shape(context.attributes().ints("shape"));
  const TensorType type{DType::kBool, shape};
  expect_reasonable(type);
  const ValueId like = context.builder().constant(HostTensor(type));
  context.set_output(0, draw(context, like));
}

void import_like(ImportContext& context) { context.set_output(0, draw(context, context.input(0))); }

// 1 with the probability given by the input, otherwise 0; in evaluation the probability itself.
void import_bernoulli(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const bool drops = context.mode().training && context.mode().dropout;
  const auto given = static_cast<DType>(
      context.attributes().integer("dtype", static_cast<std::int64_t>(context.type(0).dtype)));
  if (!drops && is_float(given)) return context.set_output(0, context.input(0));
  const ValueId uniform = draw(context, context.input(0));
  const ValueId hit = builder.add("Less", {uniform, context.input(0)});
  if (given == DType::kBool) return context.set_output(0, hit);
  const DType dtype = is_float(given) ? context.type(0).dtype : given;
  context.set_output(0, builder.add("Cast", {hit}, {{"to", static_cast<std::int64_t>(dtype)}}));
}

constexpr ImportRule kRandomImports[] = {
    {"Bernoulli", import_bernoulli},    {"RandomNormal", import_shaped},
    {"RandomNormalLike", import_like},  {"RandomUniform", import_shaped},
    {"RandomUniformLike", import_like},
};

}  // namespace

const OpFamily& random_family() {
  static const OpFamily family{"random", kRandomOps, kRandomImports, kKernels<Threads::kOne>,
                               kKernels<Threads::kAll>};
  return family;
}

}  // namespace pipetrain
