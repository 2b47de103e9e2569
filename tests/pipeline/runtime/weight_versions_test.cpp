// Which weights a micro-batch reads in an asynchronous schedule, from the papers alone: in the
// program's numbers, and in the weights that training ends with. p stages, of which s = 0 is the
// first; micro-batch t of a long run.
//   pipedream           stage s reads version max(0, t - (p-1-s)), backward as forward (Harlap et
//                       al., 2018: weight stashing)
//   pipedream-vertical  every stage reads version max(0, t - (p-1)) (the same: vertical sync)
//   pipedream-2bw       the micro-batches of group g read version max(0, g - 1) of every stage,
//   which so
//                       needs two copies (Narayanan et al., 2021)
#include <gtest/gtest.h>

#include <cmath>

#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/linearise.h"
#include "pipeline/program/check.h"
#include "pipeline/runtime/runtime.h"
#include "support/example_programs.h"
#include "support/small_networks.h"

namespace pipetrain {
namespace {

/// An asynchronous schedule, and what the papers say of it.
struct VersionRule {
  const char* schedule;
  int (*version)(int stage, int stages, int micro_batch, int group_size);
  int (*copies)(int stage, int stages);
};

const VersionRule kVersionRules[] = {
    {"pipedream",
     [](int stage, int stages, int micro_batch, int) {
       return std::max(0, micro_batch - (stages - 1 - stage));
     },
     [](int stage, int stages) { return stages - stage; }},
    {"pipedream-vertical",
     [](int, int stages, int micro_batch, int) { return std::max(0, micro_batch - (stages - 1)); },
     [](int, int stages) { return stages; }},
    {"pipedream-2bw",
     [](int, int, int micro_batch, int group_size) {
       return std::max(0, micro_batch / group_size - 1);
     },
     [](int, int) { return 2; }}};

/// Every group size that pipedream-2bw can have with so many stages, up to one above; else 1.
std::vector<int> group_sizes(const VersionRule& rule, int stages) {
  if (std::string_view(rule.schedule) != "pipedream-2bw") return {1};
  std::vector<int> sizes;
  for (int size = std::max(1, stages - 1); size <= stages + 1; ++size) sizes.push_back(size);
  return sizes;
}

ScheduleOptions asynchronous_options(const VersionRule& rule, int stages, int micro_batches,
                                     int group) {
  ScheduleOptions options = options_for(rule.schedule, stages, micro_batches);
  if (std::string_view(rule.schedule) == "pipedream-2bw") options.micro_batches_per_update = group;
  return options;
}

TEST(WeightVersions, EachMicroBatchReadsThoseOfThePaper) {
  for (const VersionRule& rule : kVersionRules) {
    for (int p = 1; p <= 8; ++p) {
      for (const int group : group_sizes(rule, p)) {
        for (int m = 1; m <= 20; ++m) {
          for (const bool recompute : {false, true}) {
            ScheduleOptions options = asynchronous_options(rule, p, m, group);
            options.recompute.assign(static_cast<std::size_t>(p), recompute);
            const Program program = lowered(options);
            std::vector<int> updates(static_cast<std::size_t>(p), 0);
            for (const auto& list : program.device) {
              for (const Instruction& one : list) {
                const auto what = [&] {
                  return fmt::format("{} p={} m={} group={}: {}", rule.schedule, p, m, group,
                                     to_text(program, one));
                };
                if (is_compute(one.kind))
                  EXPECT_EQ(one.version, rule.version(one.stage, p, one.micro_batch, group))
                      << what();
                if (one.kind != Kind::kUpdate) continue;
                // Updates make one version after the other, the first of them from version 0.
                EXPECT_EQ(one.version, ++updates[static_cast<std::size_t>(one.stage)]) << what();
              }
            }
            for (int s = 0; s < p; ++s) {
              EXPECT_EQ(updates[static_cast<std::size_t>(s)], (m + group - 1) / group);
              if (m < 3 * group * p) continue;  // long enough to need them all
              EXPECT_EQ(program.versions_per_stage[static_cast<std::size_t>(s)], rule.copies(s, p))
                  << rule.schedule << " p=" << p << " m=" << m << " group=" << group;
            }
          }
        }
      }
    }
  }
}

using Rows = std::vector<std::vector<double>>;

Rows product(const Rows& a, const Rows& b) {
  Rows out(a.size(), std::vector<double>(b[0].size(), 0));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < b.size(); ++k) {
      for (std::size_t j = 0; j < b[0].size(); ++j) out[i][j] += a[i][k] * b[k][j];
    }
  }
  return out;
}

Rows transposed(const Rows& a) {
  Rows out(a[0].size(), std::vector<double>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[0].size(); ++j) out[j][i] = a[i][j];
  }
  return out;
}

/// Matrices one after the other, one a stage, and the cross-entropy of what comes out.
constexpr std::int64_t kPixels = 72, kClasses = 5, kSamplesOfMicroBatch = 4;
constexpr int kMicroBatchesOfRun = 14;
constexpr double kRate = 0.05;  // of test::FixedData

Rows initial_weight(int layer) {
  const std::size_t inputs = layer == 0 ? kPixels : kClasses;
  Rows out(inputs, std::vector<double>(kClasses));
  for (std::size_t i = 0; i < inputs; ++i) {
    for (std::size_t j = 0; j < kClasses; ++j)
      out[i][j] =
          0.5F * std::sin(static_cast<float>(7 * i + 3 * j + 1) + static_cast<float>(layer));
  }
  return out;
}

OnnxModel matrices(int layers) {
  OnnxBuilder builder("matrices");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}, {"", 6}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", kClasses}});
  builder.node("Flatten", {"x"}, {"h0"}, {}, "flatten");
  for (int layer = 0; layer < layers; ++layer) {
    const Rows weight = initial_weight(layer);
    HostTensor value(
        TensorType{DType::kFloat32, Shape{static_cast<std::int64_t>(weight.size()), kClasses}});
    float* to = value.view().as<float>();
    for (const auto& row : weight)
      to = std::transform(row.begin(), row.end(), to,
                          [](double x) { return static_cast<float>(x); });
    builder.initializer(fmt::format("w{}", layer), value);
    builder.node("MatMul", {fmt::format("h{}", layer), fmt::format("w{}", layer)},
                 {layer + 1 == layers ? "logits" : fmt::format("h{}", layer + 1)}, {},
                 fmt::format("product{}", layer));
  }
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

/// The run as the papers write it down, one micro-batch after the other, in double.
std::vector<Rows> trained_by_the_paper(const VersionRule& rule, int stages, int group,
                                       test::FixedData& data) {
  std::vector<std::vector<Rows>> history;  // [stage][version]
  for (int s = 0; s < stages; ++s) history.push_back({initial_weight(s)});
  std::vector<Rows> sums(history.size());
  for (int micro_batch = 0; micro_batch < kMicroBatchesOfRun; ++micro_batch) {
    const auto weight = [&](int s) -> const Rows& {
      return history[static_cast<std::size_t>(s)].at(
          static_cast<std::size_t>(rule.version(s, stages, micro_batch, group)));
    };
    const MicroBatch& given = data.acquire(micro_batch);
    const auto* x = reinterpret_cast<const float*>(given.columns[0]);
    const auto* labels = reinterpret_cast<const std::int64_t*>(given.columns[1]);
    std::vector<Rows> values(1);
    for (std::int64_t i = 0; i < kSamplesOfMicroBatch; ++i)
      values[0].emplace_back(x + i * kPixels, x + (i + 1) * kPixels);
    for (int s = 0; s < stages; ++s) values.push_back(product(values.back(), weight(s)));
    Rows gradient = values.back();
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      double sum = 0;
      for (double& value : gradient[i]) sum += value = std::exp(value);
      for (double& value : gradient[i]) value /= sum * kSamplesOfMicroBatch;
      gradient[i][static_cast<std::size_t>(labels[i])] -= 1.0 / kSamplesOfMicroBatch;
    }
    for (int s = stages; s-- > 0;) {
      const auto stage = static_cast<std::size_t>(s);
      const Rows own = product(transposed(values[stage]), gradient);
      gradient = product(gradient, transposed(weight(s)));
      Rows& sum = sums[stage];
      if (sum.empty()) sum.assign(own.size(), std::vector<double>(kClasses, 0));
      for (std::size_t i = 0; i < own.size(); ++i) {
        for (std::size_t j = 0; j < kClasses; ++j) sum[i][j] += own[i][j];
      }
    }
    if ((micro_batch + 1) % group != 0 && micro_batch + 1 < kMicroBatchesOfRun) continue;
    for (std::size_t s = 0; s < history.size(); ++s) {
      Rows next = history[s].back();
      for (std::size_t i = 0; i < next.size(); ++i) {
        for (std::size_t j = 0; j < kClasses; ++j) next[i][j] -= kRate * sums[s][i][j];
      }
      history[s].push_back(std::move(next));
      sums[s].clear();
    }
  }
  std::vector<Rows> last;
  for (const auto& versions : history) last.push_back(versions.back());
  return last;
}

TEST(WeightVersions, TrainingEndsWithTheWeightsOfThePaper) {
  for (const VersionRule& rule : kVersionRules) {
    for (int p = 1; p <= 4; ++p) {
      const OnnxModel model = matrices(p);
      const auto graph = test::training_graph(model, kSamplesOfMicroBatch);
      const Chain chain = linearise(*graph);
      std::vector<int> starts = {0};
      for (std::size_t at = 0; at < chain.order.size(); ++at) {
        const std::string& name = graph->graph[chain.order[at]].name;
        for (int s = 1; s < p; ++s) {
          if (name == fmt::format("product{}", s)) starts.push_back(static_cast<int>(at));
        }
      }
      ASSERT_EQ(starts.size(), static_cast<std::size_t>(p));
      const std::vector<int> stage_of = stages_of_chain(*graph, chain, starts);
      std::vector<Edge> edges;
      for (const ValueEdge& edge : slice_stages(*graph, stage_of, p).edges)
        edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});
      for (const int group : group_sizes(rule, p)) {
        const Program program =
            lower(generate(asynchronous_options(rule, p, kMicroBatchesOfRun, group)), edges);
        check(program);
        RuntimeOptions options;
        options.backend = Backend::kReference;
        options.optimizer = {.kind = OptimizerKind::kSgd};  // without momentum or decay
        options.timeout_seconds = 20;
        options.pin = false;
        Runtime runtime({{graph.get(), stage_of}}, {&program}, options);
        test::FixedData data(kMicroBatchesOfRun * kSamplesOfMicroBatch, 6);
        data.set_stream(kMicroBatchesOfRun, kSamplesOfMicroBatch, 0);
        const std::vector<Rows> expected = trained_by_the_paper(rule, p, group, data);
        runtime.run(program, data);
        for (int s = 0; s < p; ++s) {
          const HostTensor weight = runtime.read(fmt::format("w{}", s));
          const float* value = weight.view().as<float>();
          double most = 0;
          for (const auto& row : expected[static_cast<std::size_t>(s)]) {
            for (const double number : row) most = std::max(most, std::abs(number - *value++));
          }
          EXPECT_LT(most, 1e-5) << rule.schedule << " p=" << p << " group=" << group << " stage "
                                << s;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pipetrain
