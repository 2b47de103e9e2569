// What is measured of a graph's nodes on the CPU, and what is remembered of it.
#include "profile/measure.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/cache_directory.h"
#include "base/error.h"
#include "graph/op.h"
#include "optim/update.h"
#include "passes/linearise.h"
#include "profile/node_key.h"
#include "profile/perceptron.h"
#include "profile/sample_data.h"
#include "profile/step_timing.h"
#include "support/measured.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

using test::perceptron;
using test::quick;

TEST(Measure, TimesEveryNodeThatHasAKernel) {
  const TrainingGraph training = perceptron(8, 32, 2);
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const Profile profile = measure_profile(training, backend, 1, quick());
    ASSERT_EQ(profile.node_seconds.size(), training.graph.nodes.size());
    for (std::size_t n = 0; n < profile.node_seconds.size(); ++n) {
      const Node& node = training.graph.nodes[n];
      if (node.op->flags & kView) {
        EXPECT_EQ(profile.node_seconds[n], 0) << node.op->name;
      } else {
        EXPECT_GT(profile.node_seconds[n], 0) << node.op->name;
        EXPECT_LT(profile.node_seconds[n], 0.1) << node.op->name;
      }
    }
    EXPECT_GT(profile.accumulate_seconds_per_byte, 0);
    EXPECT_FALSE(profile.device.empty());
  }
}

TEST(Measure, MeasuresEqualNodesOnce) {
  const TrainingGraph small = perceptron(8, 32, 2), deep = perceptron(8, 32, 6);
  const Profile one = measure_profile(small, Backend::kCpu, 1, quick());
  const Profile other = measure_profile(deep, Backend::kCpu, 1, quick());
  EXPECT_EQ(one.distinct_nodes, other.distinct_nodes);
  EXPECT_EQ(other.cached_nodes, 0);
  // Layers 1 … 4 are alike, so their times are the same number.
  std::map<std::string, std::set<double>> times;
  const std::vector<bool> read = values_read(deep);
  for (std::size_t n = 0; n < deep.graph.nodes.size(); ++n) {
    times[node_key(deep.graph, deep.graph.nodes[n], read)].insert(other.node_seconds[n]);
  }
  for (const auto& [key, seconds] : times) EXPECT_EQ(seconds.size(), 1u) << key;
}

TEST(Measure, SeesThatMoreWorkTakesLonger) {
  ProfileOptions options = quick();
  options.seconds = 2e-2;
  const auto total = [&](std::int64_t width) {
    const TrainingGraph training = perceptron(64, width, 1);
    return measure_profile(training, Backend::kCpu, 1, options).total_seconds(training);
  };
  // The products are 64 times as large.
  EXPECT_GT(total(512), 8 * total(64));
}

TEST(Measure, RunsCopiesAtTheSameTime) {
  ProfileOptions options = quick();
  options.busy_threads = 3;
  const TrainingGraph training = perceptron(8, 32, 1);
  const Profile profile = measure_profile(training, Backend::kCpu, 1, options);
  EXPECT_EQ(profile.busy_threads, 3);
  EXPECT_GT(profile.total_seconds(training), 0);
  const Profile wide = measure_profile(training, Backend::kCpu, 2, quick());
  EXPECT_GT(wide.total_seconds(training), 0);
}

TEST(Measure, SaysWhichNodeCannotBeMeasured) {
  TrainingGraph training = perceptron(8, 32, 1);
  static const OpDef kUnknown{.name = "NoSuchOperator"};
  training.graph.nodes[1].op = &kUnknown;
  ProfileOptions options = quick();
  options.busy_threads = 2;
  try {
    measure_profile(training, Backend::kCpu, 1, options);
    FAIL() << "measured an operator that does not exist";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kModel);
    EXPECT_NE(std::string(error.what()).find("while measuring layer0 (NoSuchOperator)"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(measure_profile(training, Backend::kCpu, 0, options), Error);
}

TEST(Measure, FeedsLabelsThatAreClasses) {
  const TrainingGraph training = perceptron(64, 16, 1);
  const SampleData data(training);
  for (const Node& node : training.graph.nodes) {
    for (const ValueId id : node.inputs) {
      const bool given = !training.graph[id].producer;
      EXPECT_EQ(data.content(id).type(), given ? training.graph[id].type : TensorType{});
    }
  }
  std::set<std::int64_t> seen;
  for (const std::int64_t label : data.content(training.loss.label).to_int64s()) seen.insert(label);
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), 10);
  EXPECT_GT(seen.size(), 5u);
}

double ticks = 0;
double count_ticks() { return ticks++; }

TEST(StepWalk, RunsEveryKernelOnce) {
  const TrainingGraph training = perceptron(8, 32, 3);
  const SampleData data(training);
  StepWalk walk(training, Backend::kCpu, data, values_read(training));
  std::vector<double> seconds(training.graph.nodes.size(), -1);
  ticks = 0;
  walk.run(count_ticks, seconds);
  double kernels = 0;
  for (std::size_t n = 0; n < seconds.size(); ++n) {
    const bool view = (training.graph.nodes[n].op->flags & kView) != 0;
    EXPECT_EQ(seconds[n], view ? -1 : 1) << n;
    kernels += view ? 0 : 1;
  }
  EXPECT_EQ(ticks, 2 * kernels);
}

TEST(StepTiming, GivesGroupsTheirMean) {
  const TrainingGraph training = perceptron(64, 128, 3);
  const SampleData data(training);
  const std::vector<bool> read = values_read(training);
  // One group against one for each node: the one is the mean of the others.
  std::vector<int> together(training.graph.nodes.size(), 0), apart;
  for (std::size_t n = 0; n < together.size(); ++n) apart.push_back(static_cast<int>(n));
  const StepTimingOptions options{1, 2, 9, 0};
  EXPECT_TRUE(test::once_in_a_while([&] {
    const StepTiming one = time_step(training, Backend::kCpu, data, read, together, options);
    const StepTiming all = time_step(training, Backend::kCpu, data, read, apart, options);
    EXPECT_EQ(one.seconds.size(), 1u);
    EXPECT_EQ(all.seconds.size(), apart.size());
    double mean = 0;
    for (const double seconds : all.seconds) mean += seconds / static_cast<double>(apart.size());
    return one.seconds.at(0) > mean / 3 && one.seconds.at(0) < mean * 3;
  }));
}

TEST(Measure, TimesUpdatesOfTheOptimizer) {
  const TrainingGraph training = perceptron(8, 32, 1);
  ProfileOptions options = quick();
  EXPECT_TRUE(test::once_in_a_while([&] {
    options.optimizer = default_settings(OptimizerKind::kSgd);
    const double sgd = measure_profile(training, Backend::kCpu, 1, options).update_seconds_per_byte;
    options.optimizer = default_settings(OptimizerKind::kLamb);
    const double lamb =
        measure_profile(training, Backend::kCpu, 1, options).update_seconds_per_byte;
    EXPECT_GT(sgd, 0);
    return lamb > sgd;  // two states and two norms
  }));
}

TEST(Measure, RemembersBetweenRuns) {
  const TemporaryDirectory folder;
  const TrainingGraph training = perceptron(8, 32, 2);
  ProfileOptions options = quick();
  options.use_cache = true;
  options.cache_directory = folder.path() / "not" / "yet" / "there";
  const Profile first = measure_profile(training, Backend::kCpu, 1, options);
  EXPECT_EQ(first.cached_nodes, 0);
  const Profile second = measure_profile(training, Backend::kCpu, 1, options);
  EXPECT_EQ(second.cached_nodes, second.distinct_nodes);
  EXPECT_EQ(second.node_seconds, first.node_seconds);
  EXPECT_EQ(second.workspace_bytes, first.workspace_bytes);
  EXPECT_EQ(second.accumulate_seconds_per_byte, first.accumulate_seconds_per_byte);
  // Another environment has numbers of its own, and both stay.
  options.busy_threads = 2;
  EXPECT_EQ(measure_profile(training, Backend::kCpu, 1, options).cached_nodes, 0);
  options.busy_threads = 1;
  EXPECT_EQ(measure_profile(training, Backend::kCpu, 1, options).cached_nodes,
            first.distinct_nodes);
  EXPECT_EQ(measure_profile(training, Backend::kReference, 1, options).cached_nodes, 0);
  options.use_cache = false;
  EXPECT_EQ(measure_profile(training, Backend::kCpu, 1, options).cached_nodes, 0);
}

TEST(NodeKey, TellsLayoutsApart) {
  std::set<std::string> keys;
  const Layout layouts[] = {Layout::kRowMajor, Layout::kBlocked8, Layout::kBlocked16,
                            Layout::kChannelsLast};
  for (const Layout layout : layouts) {
    Graph graph;
    GraphBuilder builder = make_builder(graph);
    builder.set_origin("relu", Part::kForward);
    Value x;
    x.type = {DType::kFloat32, Shape{2, 16, 4, 4}, layout};
    const ValueId out = builder.add("Relu", {builder.add_value(x)});
    keys.insert(node_key(graph, graph[graph[out].producer], {true, true}));
  }
  EXPECT_EQ(keys.size(), std::size(layouts));
}

TEST(SampleOf, KeepsIndicesBelowWhatTheyIndex) {
  TrainingGraph training;
  GraphBuilder builder = make_builder(training.graph);
  Value ids;
  ids.name = "ids";
  ids.type = {DType::kInt32, Shape{4, 50}};
  ids.role = Role::kInput;
  const ValueId input = builder.add_value(ids);
  training.inputs = {{"ids", input, 7}};
  builder.set_origin("widen", Part::kForward);
  const ValueId cast =
      builder.add("Cast", {input}, {{"to", static_cast<std::int64_t>(DType::kInt64)}});
  for (const ValueId id : {input, cast}) {
    const HostTensor sample = sample_of(training, id);
    std::set<std::int64_t> seen;
    for (const std::int64_t value : sample.to_int64s()) seen.insert(value);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), 6);
    EXPECT_EQ(sample.dtype(), training.graph[id].type.dtype);
  }
}

TEST(Measure, IgnoresACacheThatIsBroken) {
  const TrainingGraph training = perceptron(8, 32, 1);
  for (const char* text :
       {"", "{", "[]", R"({"schema": "pipetrain.kernel-times/9"})",
        R"({"schema": "pipetrain.kernel-times/1", "environments": 7})",
        R"({"schema": "pipetrain.kernel-times/1", "environments": {"x": {"y": ["z"]}}})"}) {
    const TemporaryDirectory folder;
    std::ofstream(folder.path() / "kernel-times.json") << text;
    ProfileOptions options = quick();
    options.use_cache = true;
    options.cache_directory = folder.path();
    testing::internal::CaptureStderr();
    EXPECT_EQ(measure_profile(training, Backend::kCpu, 1, options).cached_nodes, 0) << text;
    // It is replaced by a good one.
    const Profile again = measure_profile(training, Backend::kCpu, 1, options);
    EXPECT_EQ(again.cached_nodes, again.distinct_nodes) << text;
    testing::internal::GetCapturedStderr();
  }
}

TEST(Measure, WorksWithoutAPlaceForTheCache) {
  const TrainingGraph training = perceptron(8, 32, 1);
  ProfileOptions options = quick();
  options.use_cache = true;
  options.cache_directory = "/proc/nowhere";
  testing::internal::CaptureStderr();
  EXPECT_NO_THROW(measure_profile(training, Backend::kCpu, 1, options));
  EXPECT_NO_THROW(measure_profile(training, Backend::kCpu, 1, options));
  const std::string said = testing::internal::GetCapturedStderr();
  const std::size_t first = said.find(
      "warning: measurements are not kept: cannot create the folder /proc/nowhere: No such file");
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_NE(said.find("PIPETRAIN_CACHE_DIR"), std::string::npos) << said;
  EXPECT_EQ(said.rfind("warning:"), first) << said;
}

TEST(Measure, FindsTheCacheDirectory) {
  const auto with = [](const char* own, const char* xdg, const char* home) {
    const auto set = [](const char* name, const char* value) {
      value ? ::setenv(name, value, 1) : ::unsetenv(name);
    };
    const std::string old_home = std::getenv("HOME") ? std::getenv("HOME") : "";
    set("PIPETRAIN_CACHE_DIR", own);
    set("XDG_CACHE_HOME", xdg);
    set("HOME", home);
    const std::string out = default_cache_directory().string();
    set("PIPETRAIN_CACHE_DIR", nullptr);
    set("XDG_CACHE_HOME", nullptr);
    set("HOME", old_home.c_str());
    return out;
  };
  EXPECT_EQ(with("/a", "/b", "/c"), "/a");
  EXPECT_EQ(with(nullptr, "/b", "/c"), "/b/pipetrain");
  EXPECT_EQ(with(nullptr, nullptr, "/c"), "/c/.cache/pipetrain");
  EXPECT_EQ(with(nullptr, nullptr, nullptr), "");
}

TEST(ProfileFile, ComesBackAsItWas) {
  const TemporaryDirectory folder;
  const TrainingGraph training = perceptron(8, 32, 2);
  Profile profile = measure_profile(training, Backend::kCpu, 1, quick());
  profile.notify_seconds = 1e-6;
  const auto path = folder.path() / "profile.json";
  write_profile(path, profile, training, "mlp.onnx");
  const Profile read = read_profile(path, training);
  EXPECT_EQ(read.node_seconds, profile.node_seconds);
  EXPECT_EQ(read.workspace_bytes, profile.workspace_bytes);
  EXPECT_EQ(read.accumulate_seconds_per_byte, profile.accumulate_seconds_per_byte);
  EXPECT_EQ(read.update_seconds_per_byte, profile.update_seconds_per_byte);
  EXPECT_EQ(read.notify_seconds, profile.notify_seconds);
  EXPECT_EQ(read.device, profile.device);
  EXPECT_EQ(read.threads, 1);
}

// What computes for four micro-batches at once runs once in four.
TEST(ProfileFile, SaysHowOftenANodeRuns) {
  TrainingGraph training = perceptron(8, 32, 2);
  std::vector<Node>& nodes = training.graph.nodes;
  training.batched_micro_batches = 4;
  const auto batched = std::ranges::find(nodes, Part::kWeightGradient, &Node::part);
  ASSERT_NE(batched, nodes.end());
  batched->part = Part::kBatchGradient;
  nodes[0].part = Part::kPrepare;  // once a step
  Profile profile;
  profile.node_seconds.assign(nodes.size(), 1e-3);
  profile.workspace_bytes.assign(nodes.size(), 0);
  nlohmann::json document = nlohmann::json::parse(profile_text(profile, training, "mlp.onnx"));
  ASSERT_EQ(document["nodes"].size(), nodes.size());
  for (nlohmann::json& node : document["nodes"]) {
    const auto part = node["part"].get<std::string>();
    EXPECT_EQ(node["runs"].get<double>(), part == "batch gradient" ? 0.25
                                          : part == "prepare"      ? 0.0
                                                                   : 1.0);
  }
  EXPECT_NO_THROW(parse_profile(document.dump(), "profile.json", training));
  // Earlier files do not say it.
  for (nlohmann::json& node : document["nodes"]) node.erase("runs");
  EXPECT_NO_THROW(parse_profile(document.dump(), "profile.json", training));
}

TEST(ProfileFile, RefusesAProfileOfAnotherModel) {
  const TrainingGraph training = perceptron(8, 32, 2);
  const std::string text =
      profile_text(measure_profile(training, Backend::kCpu, 1, quick()), training, "mlp.onnx");
  const auto refusal = [&](const std::string& changed, const TrainingGraph& graph) {
    try {
      parse_profile(changed, "profile.json", graph);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.message();
    }
    ADD_FAILURE() << "accepted " << changed.substr(0, 200);
    return std::string();
  };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string out = text;
    const std::size_t position = out.find(from);
    EXPECT_NE(position, std::string::npos) << from;
    return out.replace(position, from.size(), to);
  };
  EXPECT_NE(refusal(text, perceptron(8, 32, 3)).find("nodes lists"), std::string::npos);
  EXPECT_NE(refusal(text, perceptron(16, 32, 2)).find("micro_batch is 8"), std::string::npos);
  EXPECT_NE(refusal(text, perceptron(8, 48, 2)).find("nodes[0].output_bytes is 1024, but"),
            std::string::npos);
  // The logits (8, 10), whose rows are padded to 16 on GPUs.
  EXPECT_NO_THROW(parse_profile(replaced("\"output_bytes\": 320,", "\"output_bytes\": 512,"),
                                "profile.json", training));
  EXPECT_NE(refusal(replaced("\"output_bytes\": 320,", "\"output_bytes\": 516,"), training)
                .find("output_bytes is 516, but the model's node head writes 320"),
            std::string::npos);
  EXPECT_NE(refusal(replaced("\"op\": \"MatMul\"", "\"op\": \"Conv\""), training)
                .find("nodes[0].op is Conv"),
            std::string::npos);
  EXPECT_NE(refusal(replaced("\"seconds\": ", "\"seconds\": -"), training).find("seconds"),
            std::string::npos);
  EXPECT_NE(refusal(replaced("\"threads\": 1", "\"threads\": null"), training).find("threads"),
            std::string::npos);
}

TEST(Measure, FeedsThePlanner) {
  const TrainingGraph training = perceptron(16, 64, 5);
  const Chain chain = linearise(training);
  const Profile profile = measure_profile(training, Backend::kCpu, 1, quick());
  const ChainCosts costs = chain_costs(training, chain, profile);
  double sum = 0;
  std::size_t parameters = 0;
  for (const ChainCost& element : costs.elements) {
    sum +=
        element.forward_seconds + element.input_gradient_seconds + element.weight_gradient_seconds;
    parameters += element.parameter_bytes;
  }
  double additions = 0;
  for (const Accumulation& accumulation : training.accumulations) {
    additions += profile.accumulate_seconds_per_byte *
                 static_cast<double>(training.graph[accumulation.contribution].type.bytes());
  }
  EXPECT_NEAR(sum, profile.total_seconds(training) + additions, 1e-9);
  EXPECT_EQ(parameters, 4u * (5 * (64 * 64 + 64) + 640));
}

}  // namespace
}  // namespace pipetrain
