#include "simulation/pipelines.h"

#include <span>

#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/batch_weight_gradients.h"
#include "passes/linearise.h"
#include "passes/pack_weights.h"
#include "pipeline/program/check.h"
#include "pipeline/runtime/oracle.h"
#include "pipeline/schedule/lower.h"

namespace pipetrain::simulation {
namespace {

const std::vector<std::int64_t> kSizes = {2, 1};
constexpr std::int64_t kLargest = 2;

HostTensor weight(std::vector<std::int64_t> dimensions, int seed) {
  HostTensor out(TensorType{DType::kFloat32, Shape(std::move(dimensions))});
  int i = seed;
  for (float& value : out.span<float>()) value = 0.3F * static_cast<float>((++i * 37) % 19 - 9) / 9;
  return out;
}

/// Four layers of four units.
OnnxModel four_layers(bool tied) {
  OnnxBuilder builder("tiny");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}, {"", 6}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
  builder.node("Flatten", {"x"}, {"rows"}, {}, "flatten");
  builder.initializer("w1", weight({72, 4}, 1));
  builder.node("MatMul", {"rows", "w1"}, {"h1"}, {}, "layer1");
  builder.node("Tanh", {"h1"}, {"t1"}, {}, "tanh1");
  builder.initializer("w2", weight({4, 4}, 2));
  builder.node("MatMul", {"t1", "w2"}, {"h2"}, {}, "layer2");
  builder.node("Tanh", {"h2"}, {"t2"}, {}, "tanh2");
  if (!tied) builder.initializer("w3", weight({4, 4}, 3));
  builder.node("MatMul", {"t2", tied ? "w2" : "w3"}, {"h3"}, {}, "layer3");
  builder.node("Tanh", {"h3"}, {"t3"}, {}, "tanh3");
  builder.initializer("w4", weight({4, 5}, 4));
  builder.initializer("b4", weight({5}, 5));
  builder.node("Gemm", {"t3", "w4", "b4"}, {"logits"}, {}, "layer4");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

}  // namespace

SimulatedPipeline::SimulatedPipeline(const PipelineCase& what)
    : what_(what),
      model_(what.difficult ? test::difficult_network(what.tied) : four_layers(what.tied)) {
  const bool batches = what.backend == Backend::kCpu && !what.difficult;
  for (const std::int64_t size : kSizes) {
    graphs_.push_back(test::training_graph(model_, size));
    if (!batches) continue;
    pack_weights(*graphs_.back());
    if (graphs_.size() == 1) {
      batch_weight_gradients(*graphs_.back(), what.micro_batches);
    } else {
      batch_weight_gradients_like(*graphs_.front(), *graphs_.back());
    }
  }
  const Chain chain = linearise(*graphs_[0]);
  std::vector<int> starts;
  for (int s = 0; s < what.stages; ++s)
    starts.push_back(static_cast<int>(chain.order.size()) * s / what.stages);
  const std::vector<int> stage_of = stages_of_chain(*graphs_[0], chain, starts);
  for (const auto& graph : graphs_)
    variants_.push_back({graph.get(), carry_stages(*graphs_[0], stage_of, *graph)});
  const Slices slices = slice_stages(*graphs_[0], stage_of, what.stages);
  std::vector<Edge> edges;
  for (const ValueEdge& edge : slices.edges)
    edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});
  ScheduleOptions options;
  options.name = what.schedule;
  options.stages = what.stages;
  options.micro_batches = what.micro_batches;
  options.replicas = what.replicas;
  options.recompute.assign(static_cast<std::size_t>(what.stages), what.recompute);
  const bool synchronous = !is_asynchronous(describe_schedule(what.schedule).rule);
  options.gradient_sync = synchronous && (slices.has_tied_stages || what.clip);
  program_ = lower(generate(options), edges);
  check(program_);
  for (const Value& value : graphs_[0]->graph.values) {
    if (value.role == Role::kParameter || value.role == Role::kState) names_.push_back(value.name);
  }
  Oracle oracle(variants_, what.stages, this->options());
  test::FixedData source = data();
  std::vector<double> losses;
  for (int step = 0; step < kMostSteps; ++step) {
    set_step(source, step);
    oracle.run(program_, source);
    losses.push_back(loss(source));
    expected_.push_back(bits(oracle, losses));
  }
}

std::string SimulatedPipeline::describe() const {
  return fmt::format("{}, {} stages on {} devices, {} micro-batches, {}{}{}{}{}", what_.schedule,
                     what_.stages, program_.devices, what_.micro_batches,
                     what_.backend == Backend::kCpu ? "CPU" : "reference",
                     what_.difficult ? ", difficult" : "", what_.tied ? ", tied" : "",
                     what_.clip ? ", clipped" : "", what_.recompute ? ", recomputing" : "");
}

RuntimeOptions SimulatedPipeline::options() const {
  RuntimeOptions options;
  options.backend = what_.backend;
  options.optimizer = default_settings(OptimizerKind::kAdamW);
  options.clip_norm = what_.clip ? 0.5 : 0;
  options.shard_optimizer = what_.shares_updates;
  options.pin = false;
  return options;
}

test::FixedData SimulatedPipeline::data() const {
  return test::FixedData(kMostSteps * kLargest * what_.micro_batches, 5);
}

void SimulatedPipeline::set_step(test::FixedData& data, std::int64_t step) const {
  const std::int64_t samples = kLargest * what_.micro_batches;
  if (is_asynchronous(program_.rule)) {
    data.set_stream(what_.micro_batches, kLargest, step * what_.micro_batches);
  } else {
    data.set_mini_batch(step * samples, samples - 1, kLargest, step, kSizes);
  }
}

double SimulatedPipeline::loss(const test::FixedData& data) {
  double sum = 0;
  for (const MicroBatch& micro_batch : data.micro_batches())
    sum += micro_batch.loss_sum * micro_batch.loss_scale;
  return sum;
}

}  // namespace pipetrain::simulation
