#include "profile/measure.h"

#include <atomic>
#include <cstdlib>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "graph/op.h"
#include "profile/cost_cache.h"
#include "profile/kernel_run.h"
#include "profile/machine.h"
#include "profile/node_key.h"
#include "profile/sample_data.h"
#include "profile/work.h"

namespace pipetrain {
namespace {

// Stages add weight gradients with a plain loop over memory that is not in a cache.
class Accumulating final : public Work {
 public:
  static constexpr std::size_t kCount = std::size_t{1} << 21;

  void prepare() override {}
  void run() override {
    float* __restrict sum = sum_.data();
    const float* __restrict term = term_.data();
    for (std::size_t i = 0; i < kCount; ++i) sum[i] += term[i];
  }

 private:
  std::vector<float> sum_ = std::vector<float>(kCount, 0.0F);
  std::vector<float> term_ = std::vector<float>(kCount, 1e-3F);
};

// What a stage walks through between two uses of the same memory, in coarse steps, so that models
// of similar size share their measurements: 1, 4, 16 or 64 MiB.
std::size_t walked_bytes(const TrainingGraph& training, int stages) {
  std::size_t sum = 0;
  for (const Value& value : training.graph.values) sum += value.type.bytes();
  std::size_t out = std::size_t{1} << 20;
  while (out < std::size_t{64} << 20 && 2 * out < sum / static_cast<std::size_t>(stages)) out *= 4;
  return out;
}

class Profiler {
 public:
  Profiler(const TrainingGraph& training, Backend backend, int threads,
           const ProfileOptions& options)
      : training_(training),
        backend_(backend),
        timing_{threads, options.busy_threads, options.repeats, options.sample_seconds},
        memory_bytes_(walked_bytes(training, options.busy_threads)),
        cache_(cache_directory(options), environment()),
        data_(training, backend),
        is_read_(values_read(training)) {}

  Profile run() {
    const double start = steady_seconds();
    const Graph& graph = training_.graph;
    out_.device = processor_name();
    out_.backend = backend_name();
    out_.threads = timing_.threads;
    out_.busy_threads = timing_.copies;
    for (const Node& node : graph.nodes) {
      const KernelCost cost = node.op->flags & kView ? KernelCost{} : cost_of(node);
      out_.node_seconds.push_back(cost.seconds);
      out_.workspace_bytes.push_back(cost.workspace_bytes);
    }
    out_.distinct_nodes = static_cast<int>(costs_.size());
    if (!training_.accumulations.empty()) {
      out_.accumulate_seconds_per_byte = accumulate_seconds_per_byte();
    }
    cache_.save();
    out_.spent_seconds = steady_seconds() - start;
    return std::move(out_);
  }

 private:
  static std::filesystem::path cache_directory(const ProfileOptions& options) {
    if (!options.use_cache) return {};
    return options.cache_directory.empty() ? default_cache_directory() : options.cache_directory;
  }

  const char* backend_name() const { return backend_ == Backend::kCpu ? "cpu" : "reference"; }

  std::string environment() const {
    return fmt::format("{} | {} | {} x {} threads | {} MiB | {}", processor_name(), backend_name(),
                       timing_.copies, timing_.threads, memory_bytes_ >> 20, build_name());
  }

  KernelCost cost_of(const Node& node) {
    const std::string key = node_key(training_.graph, node, is_read_);
    const auto [found, added] = costs_.try_emplace(key);
    if (!added) return found->second;
    if (const auto known = cache_.find(key)) {
      ++out_.cached_nodes;
      return found->second = *known;
    }
    found->second = with_context(
        [&] { return fmt::format("measuring {} ({})", printable(node.name), node.op->name); },
        [&] { return measure(node); });
    cache_.add(key, found->second);
    log_debug("profile", "{:.3g} s  {}", found->second.seconds, key);
    return found->second;
  }

  KernelCost measure(const Node& node) {
    std::vector<HostTensor> inputs;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) inputs.push_back(data_.input(node, i));
    std::atomic<std::size_t> workspace{0};
    const auto make = [&] {
      auto run =
          std::make_unique<KernelRun>(training_, backend_, node, inputs, is_read_, memory_bytes_);
      workspace = run->workspace_bytes();
      return run;
    };
    const double seconds = median_seconds(make, timing_);
    return {seconds, workspace};
  }

  double accumulate_seconds_per_byte() {
    const std::string key = "accumulate one byte";
    if (const auto known = cache_.find(key)) return known->seconds;
    const double seconds = median_seconds([] { return std::make_unique<Accumulating>(); }, timing_);
    const double result = seconds / static_cast<double>(Accumulating::kCount * sizeof(float));
    cache_.add(key, {result, 0});
    return result;
  }

  const TrainingGraph& training_;
  Backend backend_;
  TimingOptions timing_;
  std::size_t memory_bytes_;
  CostCache cache_;
  SampleData data_;
  std::vector<bool> is_read_;
  std::map<std::string, KernelCost> costs_;
  Profile out_;
};

}  // namespace

std::filesystem::path default_cache_directory() {
  const auto variable = [](const char* name) {
    const char* text = std::getenv(name);
    return std::filesystem::path(text ? text : "");
  };
  if (const auto own = variable("PIPETRAIN_CACHE_DIR"); !own.empty()) return own;
  if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache / "pipetrain";
  if (const auto home = variable("HOME"); !home.empty()) return home / ".cache" / "pipetrain";
  return {};
}

Profile measure_profile(const TrainingGraph& training, Backend backend, int threads,
                        const ProfileOptions& options) {
  PT_CHECK(threads >= 1 && options.busy_threads >= 1 && options.repeats >= 1, kUsage,
           "a profile needs one thread, one copy and one repeat at least, got {}, {} and {}",
           threads, options.busy_threads, options.repeats);
  return Profiler(training, backend, threads, options).run();
}

}  // namespace pipetrain
