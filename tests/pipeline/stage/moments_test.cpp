#include "pipeline/stage/moments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/linearise.h"
#include "pipeline/program/check.h"
#include "pipeline/runtime/oracle.h"
#include "pipeline/runtime/runtime.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "processes/process_group.h"
#include "support/memory_processes.h"
#include "support/op_check.h"
#include "support/recorded_devices.h"
#include "support/small_networks.h"

namespace pipetrain {
namespace {

/// Mean and variance over all values at once, in double.
struct WholeMoments {
  explicit WholeMoments(const std::vector<double>& values) {
    for (const double value : values) mean += value;
    mean /= static_cast<double>(values.size());
    for (const double value : values) squares += (value - mean) * (value - mean);
    biased = squares / static_cast<double>(values.size());
    unbiased = squares / static_cast<double>(values.size() - 1);
  }
  double mean = 0, squares = 0, biased = 0, unbiased = 0;
};

/// Four values 1, 2, 4, 9 in two parts against mean 4 and unbiased variance (9 + 4 + 0 + 25) / 3.
TEST(Moments, MergePartsExactlyAndUseTheUnbiasedVariance) {
  Moments moments;
  moments.reset(1);
  const float mean_a = 1.5F, variance_a = 0.25F, mean_b = 6.5F, variance_b = 6.25F;
  moments.merge({&mean_a, 1}, {&variance_a, 1}, 2);
  moments.merge({&mean_b, 1}, {&variance_b, 1}, 2);
  float mean = 10, variance = 20;
  moments.apply(0.9, {&mean, 1}, {&variance, 1});
  EXPECT_FLOAT_EQ(mean, 0.9F * 10 + 0.1F * 4);
  EXPECT_FLOAT_EQ(variance, 0.9F * 20 + 0.1F * 38 / 3);
  moments.apply(0.9, {&mean, 1}, {&variance, 1});
  EXPECT_FLOAT_EQ(mean, 9.4F);  // nothing was merged since
}

TEST(Moments, OfWeightsCountOnceHoweverManyMicroBatchesBringThem) {
  Moments moments, replica;
  const float mean = 1.5F, variance = 0.75F;
  for (Moments* each : {&moments, &replica}) {
    each->reset(1, /*of_weights=*/true);
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch)
      each->merge({&mean, 1}, {&variance, 1}, 4);
  }
  moments.merge(replica);
  float running_mean = 10, running_variance = 20;
  moments.apply(0.9, {&running_mean, 1}, {&running_variance, 1});
  EXPECT_FLOAT_EQ(running_mean, 0.9F * 10 + 0.1F * 1.5F);
  EXPECT_FLOAT_EQ(running_variance, 0.9F * 20 + 0.1F * 0.75F * 4 / 3);
}

/// Replicas with unequal numbers of micro-batches of unequal sizes, each around a mean of its own.
TEST(Moments, OfReplicasAreThoseOfAllTheirValues) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> all;
    Moments merged, by_numbers;
    merged.reset(1);
    by_numbers.reset(1);
    for (int replica = 0; replica < 1 + round % 4; ++replica) {
      Moments own;
      own.reset(1);
      for (unsigned left = random() % 4; left > 0; --left) {
        std::normal_distribution<double> values(static_cast<double>(replica * 5) - left, 1 + left);
        std::vector<double> micro_batch(2 + random() % 9);
        for (double& value : micro_batch) value = values(random);
        all.insert(all.end(), micro_batch.begin(), micro_batch.end());
        const WholeMoments of_micro_batch(micro_batch);
        const auto mean = static_cast<float>(of_micro_batch.mean),
                   variance = static_cast<float>(of_micro_batch.biased);
        own.merge({&mean, 1}, {&variance, 1}, static_cast<double>(micro_batch.size()));
      }
      merged.merge(own);
      by_numbers.merge(Moments::of(own.numbers()));
    }
    if (all.empty()) continue;
    const WholeMoments whole(all);
    for (Moments* moments : {&merged, &by_numbers}) {
      float mean = 0, variance = 0;
      moments->apply(0, {&mean, 1}, {&variance, 1});
      EXPECT_NEAR(mean, whole.mean, 1e-5 * (1 + std::abs(whole.mean))) << round;
      EXPECT_NEAR(variance, whole.unbiased, 1e-5 * whole.unbiased) << round;
    }
  }
}

/// A network that begins with a BatchNorm, so that what it sees are the data themselves: in stage 0
/// of two, on three replicas.
struct NormedData {
  static constexpr std::int64_t kSamples = 18, kMicroBatch = 4, kPixels = 36;
  static constexpr int kReplicas = 3;

  NormedData() {
    OnnxBuilder builder("normed");
    builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}, {"", 6}, {"", 6}});
    builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
    const auto filled = [](Shape shape, float value) {
      HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
      for (float& x : out.span<float>()) x = value;
      return out;
    };
    for (const auto& [name, value] :
         {std::pair("scale", 1.0F), {"shift", 0.0F}, {"mean", 0.5F}, {"variance", 2.0F}})
      builder.initializer(name, filled({2}, value));
    builder.node("BatchNormalization", {"x", "scale", "shift", "mean", "variance"}, {"n"}, {},
                 "norm");
    builder.node("Flatten", {"n"}, {"rows"}, {}, "flatten");
    builder.initializer("head", filled({2 * kPixels, 5}, 0.1F));
    builder.node("MatMul", {"rows", "head"}, {"logits"}, {}, "product");
    const std::string bytes = builder.bytes();
    const OnnxModel model =
        read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
    for (const std::int64_t size : sizes) graphs.push_back(test::training_graph(model, size));
    const Chain chain = linearise(*graphs[0]);
    const std::vector<int> stage_of = stages_of_chain(*graphs[0], chain, {0, 1});
    for (const auto& graph : graphs)
      variants.push_back({graph.get(), carry_stages(*graphs[0], stage_of, *graph)});
    std::vector<Edge> edges;
    for (const ValueEdge& edge : slice_stages(*graphs[0], stage_of, 2).edges)
      edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});
    ScheduleOptions options;
    options.stages = 2;
    options.micro_batches = 5;
    options.replicas = {kReplicas, 1};
    program = lower(generate(options), edges);
    check(program);
    runtime.backend = Backend::kReference;
    runtime.timeout_seconds = 20;
    runtime.pin = false;
  }
  /// One step; then the running statistics must be those of all samples of the mini-batch.
  template <class Runner>
  void train_and_compare(Runner& runner) const {
    test::FixedData data(kSamples, 9);
    data.set_mini_batch(0, kSamples, kMicroBatch, 0, sizes);
    runner.run(program, data);
    const HostTensor means = runner.read("mean"), variances = runner.read("variance");
    if (!means) return;  // another process has the stage
    const auto* pixels = reinterpret_cast<const float*>(data.micro_batches()[0].columns[0]);
    for (std::int64_t channel = 0; channel < 2; ++channel) {
      std::vector<double> values;
      for (std::int64_t sample = 0; sample < kSamples; ++sample) {
        const float* plane = pixels + (sample * 2 + channel) * kPixels;
        values.insert(values.end(), plane, plane + kPixels);
      }
      const WholeMoments whole(values);
      EXPECT_NEAR(means.view().template as<float>()[channel], 0.9 * 0.5 + 0.1 * whole.mean, 1e-6);
      EXPECT_NEAR(variances.view().template as<float>()[channel], 0.9 * 2 + 0.1 * whole.unbiased,
                  1e-6);
    }
  }

  const std::vector<std::int64_t> sizes = {4, 2};
  std::vector<std::unique_ptr<TrainingGraph>> graphs;
  std::vector<RuntimeVariant> variants;
  Program program;
  RuntimeOptions runtime;
};

TEST(Moments, RunningStatisticsOfReplicasAreThoseOfAllSamples) {
  const NormedData normed;
  Runtime runtime(normed.variants, {&normed.program}, normed.runtime);
  normed.train_and_compare(runtime);
  Oracle oracle(normed.variants, 2, normed.runtime);
  normed.train_and_compare(oracle);
}

TEST(Moments, RunningStatisticsOfReplicasInSeveralProcessesAreThoseOfAllSamples) {
  const NormedData normed;
  constexpr int kProcesses = 2;
  test::MemoryWorld world(kProcesses, 4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kProcesses; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ProcessGroup group(world.process(rank));
        RuntimeOptions options = normed.runtime;
        options.processes = &group;
        for (int device = 0; device < normed.program.devices; ++device)
          options.process_of_device.push_back(device * kProcesses / normed.program.devices);
        {
          Runtime runtime(normed.variants, {&normed.program}, options);
          normed.train_and_compare(runtime);
        }
        group.leave();
      } catch (const Error& error) {
        ADD_FAILURE() << "process " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// `norms` trained BatchNorms behind one that no backward pass reads, and one over the weights of
/// the product that follows; one stage.
struct ManyNorms {
  static constexpr std::int64_t kSamples = 18, kMicroBatch = 4;

  explicit ManyNorms(int norms) {
    OnnxBuilder builder("norms");
    builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}, {"", 6}, {"", 6}});
    builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
    const auto tensor = [&](const std::string& name, Shape shape, double low, double high) {
      builder.initializer(
          name, test::random_tensor({DType::kFloat32, std::move(shape)}, ++tensors, low, high));
      return name;
    };
    const auto norm = [&](const std::string& name, const std::string& from,
                          const std::string& scale, const std::string& shift,
                          std::int64_t channels) {
      for (const char* kind : {".mean", ".variance"})
        statistics.push_back(tensor(name + kind, {channels}, 0.5, 1.5));
      builder.node("BatchNormalization", {from, scale, shift, name + ".mean", name + ".variance"},
                   {name}, {}, name);
      return name;
    };
    for (const char* name : {"one", "zero"}) {
      builder.node("Constant", {}, {name},
                   {OnnxAttribute::of_floats("value_floats", std::vector<float>(2, *name == 'o'))},
                   name);
    }
    std::string at = norm("unread", "x", "one", "zero", 2);
    for (int i = 0; i < norms; ++i) {
      const std::string name = "norm" + std::to_string(i);
      at = norm(name, at, tensor(name + ".scale", {2}, 0.5, 1.5),
                tensor(name + ".shift", {2}, -1, 1), 2);
    }
    builder.node("Flatten", {at}, {"rows"}, {}, "flatten");
    builder.node(
        "MatMul",
        {"rows", norm("weights", tensor("head", {72, 5}, -1, 1),
                      tensor("head.scale", {5}, 0.5, 1.5), tensor("head.shift", {5}, -1, 1), 5)},
        {"logits"}, {}, "product");
    const std::string bytes = builder.bytes();
    const OnnxModel model =
        read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
    for (const std::int64_t size : sizes) graphs.push_back(test::training_graph(model, size));
    const std::vector<int> stage_of =
        stages_of_chain(*graphs[0], linearise(*graphs[0]), std::vector<int>{0});
    for (const auto& graph : graphs)
      variants.push_back({graph.get(), carry_stages(*graphs[0], stage_of, *graph)});
  }

  /// Trains on `device` (null: in host memory). Returns the bits of all running statistics.
  std::string train(Device* device, bool recompute, int steps) const {
    ScheduleOptions options;
    options.stages = 1;
    options.micro_batches = 5;
    options.recompute.assign(1, recompute);
    const Program program = lower(generate(options), {});
    check(program);
    RuntimeOptions settings;
    settings.timeout_seconds = 20;
    settings.pin = false;
    if (device) settings.devices.push_back(device);
    Runtime runtime(variants, {&program}, settings);
    test::FixedData data(steps * kSamples, 9);
    for (std::int64_t step = 0; step < steps; ++step) {
      data.set_mini_batch(step * kSamples, kSamples, kMicroBatch, step, sizes);
      runtime.run(program, data);
    }
    std::string bits;
    for (const std::string& name : statistics) {
      const HostTensor value = runtime.read(name);
      bits.append(static_cast<const char*>(value.view().data), value.type().bytes());
    }
    return bits;
  }

  const std::vector<std::int64_t> sizes = {4, 2};
  std::uint64_t tensors = 0;
  std::vector<std::string> statistics;
  std::vector<std::unique_ptr<TrainingGraph>> graphs;
  std::vector<RuntimeVariant> variants;
};

TEST(Moments, OfAllNormsOfADeviceComeInOneCopyAMicroBatch) {
  for (const bool recompute : {false, true}) {
    for (const bool records : {false, true}) {
      std::vector<std::uint64_t> downloads;
      for (const int norms : {1, 6}) {
        const ManyNorms network(norms);
        ASSERT_EQ(network.graphs[0]->statistics.size(), static_cast<std::size_t>(norms + 2));
        const std::string expected = network.train(nullptr, recompute, 3);
        for (const int steps : {1, 3}) {
          test::RecordedMachine machine(1, 5);
          if (records) machine.allow_recordings();
          const std::string bits = network.train(&machine.device(0), recompute, steps);
          if (steps == 3) {
            EXPECT_TRUE(bits == expected) << norms << recompute << records;
          }
          // The values that are read in the end are no moments; statistics are the host's.
          downloads.push_back(machine.downloads());
          EXPECT_EQ(machine.replayed() > 0, records);
          for (const std::string& problem : machine.problems()) ADD_FAILURE() << problem;
        }
      }
      EXPECT_EQ(downloads[0], downloads[2]);
      EXPECT_EQ(downloads[1], downloads[3]);
      // A micro-batch's moments: of norms in its slot, and of the weights' norm. The loss: sum and
      // correct predictions, once more when it is recomputed.
      EXPECT_EQ(downloads[1] - downloads[0], 2U * 5 * (recompute ? 6 : 4));
    }
  }
}

}  // namespace
}  // namespace pipetrain
