#include "profile/measure.h"

#include <algorithm>
#include <utility>

#include "base/cache_directory.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/vectors.h"
#include "graph/op.h"
#include "optim/update.h"
#include "profile/cost_cache.h"
#include "profile/estimate.h"
#include "profile/link_measure.h"
#include "profile/machine.h"
#include "profile/node_key.h"
#include "profile/sample_data.h"
#include "profile/step_timing.h"
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

// An optimizer's step over parameters, gradients and state that are not in a cache.
class Updating final : public Work {
 public:
  static constexpr std::size_t kCount = std::size_t{1} << 20;

  explicit Updating(const OptimizerSettings& settings) : settings_(settings) {
    const int slots = state_slots(settings);
    if (slots > 0) state0_.assign(kCount, 0.0F);
    if (slots > 1) state1_.assign(kCount, 0.0F);
  }
  void prepare() override {}
  void run() override {
    update(settings_, kLearningRate, ++step_, 1.0, std::span(parameter_),
           std::span<const float>(gradient_), std::span(state0_), std::span(state1_));
  }

 private:
  static constexpr double kLearningRate = 1e-6;  // keeps values in a normal range
  OptimizerSettings settings_;
  std::int64_t step_ = 0;
  std::vector<float> parameter_ = std::vector<float>(kCount, 0.5F);
  std::vector<float> gradient_ = std::vector<float>(kCount, 1e-3F);
  std::vector<float> state0_, state1_;
};

// The working set between two uses of the same memory, rounded to 1, 4, 16 or 64 MiB so that models
// of similar size share measurements.
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
        threads_(threads),
        options_(options),
        memory_bytes_(walked_bytes(training, options.busy_threads)),
        cache_(cache_directory(options), environment()),
        is_read_(values_read(training)) {
    NodeGroups groups = group_nodes(training, is_read_);
    group_of_ = std::move(groups.of_node);
    keys_ = std::move(groups.keys);
  }

  /// A cost below 0 is none.
  void forget() {
    for (const std::string& key : keys_) cache_.add(key, {-1, 0});
    cache_.save();
    if (options_.wakes) forget_wakes();
  }

  Profile run() {
    const double start = steady_seconds();
    out_.device = processor_name();
    out_.backend = backend_name();
    out_.threads = threads_;
    out_.busy_threads = options_.busy_threads;
    if (!look_up()) {
      out_.is_estimate = options_.brief && walk_seconds() > kLongWalk;
      if (out_.is_estimate) {
        estimate();
      } else {
        walk();
      }
    }
    for (const int group : group_of_) {
      const KernelCost cost = group < 0 ? KernelCost{} : costs_[static_cast<std::size_t>(group)];
      out_.node_seconds.push_back(cost.seconds);
      out_.workspace_bytes.push_back(cost.workspace_bytes);
    }
    out_.distinct_nodes = static_cast<int>(keys_.size());
    if (!training_.accumulations.empty() && !out_.is_estimate) {
      out_.accumulate_seconds_per_byte = seconds_per_byte<Accumulating>(
          "accumulate one byte", [] { return std::make_unique<Accumulating>(); });
      out_.update_seconds_per_byte = seconds_per_byte<Updating>(
          update_key(options_.optimizer),
          [&] { return std::make_unique<Updating>(options_.optimizer); });
    }
    cache_.save();
    if (options_.wakes) {
      const WakeSeconds wakes = measure_wakes(options_.use_cache);
      out_.wake_seconds = wakes.idle_core;
      out_.switch_seconds = wakes.same_core;
      out_.notify_seconds = wakes.notify;
    }
    out_.spent_seconds = steady_seconds() - start;
    return std::move(out_);
  }

 private:
  static std::filesystem::path cache_directory(const ProfileOptions& options) {
    if (!options.use_cache) return {};
    return options.cache_directory.empty() ? default_cache_directory() : options.cache_directory;
  }

  const char* backend_name() const { return backend_ == Backend::kCpu ? "cpu" : "reference"; }

  // "in a step": where kernels were measured, in case they are measured elsewhere one day.
  std::string environment() const {
    return fmt::format("{} ({}) | {} | {} x {} threads | {} MiB, in a step | {}", processor_name(),
                       vector_instructions(), backend_name(), options_.busy_threads, threads_,
                       memory_bytes_ >> 20, build_name());
  }

  /// Whether all groups are in the cache. If one is not, all are measured again: numbers of
  /// different moments do not compare well.
  bool look_up() {
    costs_.clear();
    for (const std::string& key : keys_) {
      const auto known = cache_.find(key);
      if (!known) return false;
      costs_.push_back(*known);
    }
    out_.cached_nodes = static_cast<int>(keys_.size());
    return true;
  }

  /// The roofline model: seconds of a node.
  double roughly(const Node& node) const {
    const DeviceSpeed core = ordinary_core();
    return core.launch_seconds +
           std::max(node_flops(training_.graph, node) / (core.flops_per_second * threads_),
                    node_bytes(training_.graph, node, is_read_) / core.bytes_per_second);
  }

  double walk_seconds() const {
    double sum = 0;
    for (const Node& node : training_.graph.nodes) sum += roughly(node);
    return sum;
  }

  /// Times by a formula. Kernels are made, since only they know their workspace.
  void estimate() {
    costs_.assign(keys_.size(), {});
    std::vector<bool> is_known(keys_.size(), false);
    for (std::size_t n = 0; n < group_of_.size(); ++n) {
      if (group_of_[n] < 0) continue;
      const auto group = static_cast<std::size_t>(group_of_[n]);
      if (is_known[group]) continue;
      is_known[group] = true;
      const Node& node = training_.graph.nodes[n];
      with_context(
          [&] { return fmt::format("making {} ({})", printable(node.name), node.op->name); },
          [&] {
            const auto kernel = make_kernel(backend_, {node, training_.graph.input_types(node),
                                                       training_.graph.output_types(node)});
            costs_[group] = {roughly(node), kernel->workspace_bytes()};
          });
    }
  }

  void walk() {
    const SampleData data(training_);
    const StepTiming timing = time_step(
        training_, backend_, data, is_read_, group_of_,
        {threads_, options_.busy_threads, options_.repeats, options_.seconds, options_.brief});
    costs_.assign(keys_.size(), {});
    for (std::size_t n = 0; n < group_of_.size(); ++n) {
      if (group_of_[n] < 0) continue;
      const auto group = static_cast<std::size_t>(group_of_[n]);
      costs_[group] = {timing.seconds[group], timing.workspace_bytes[n]};
    }
    for (std::size_t group = 0; group < keys_.size(); ++group) {
      if (!timing.one_walk) cache_.add(keys_[group], costs_[group]);
      log_debug("profile", "{:.3g} s  {}", costs_[group].seconds, keys_[group]);
    }
  }

  template <class Kind, class Make>
  double seconds_per_byte(const std::string& key, const Make& make) {
    if (const auto known = cache_.find(key)) return known->seconds;
    const double seconds =
        median_seconds(make, {threads_, options_.busy_threads, options_.repeats, kWorkSeconds});
    const double result = seconds / static_cast<double>(Kind::kCount * sizeof(float));
    cache_.add(key, {result, 0});
    return result;
  }

  static constexpr double kWorkSeconds = 2e-3;
  static constexpr double kLongWalk = 0.1;  // seconds

  const TrainingGraph& training_;
  Backend backend_;
  int threads_;
  const ProfileOptions& options_;
  std::size_t memory_bytes_;
  CostCache cache_;
  std::vector<bool> is_read_;
  std::vector<int> group_of_;      // by node
  std::vector<std::string> keys_;  // by group
  std::vector<KernelCost> costs_;  // by group
  Profile out_;
};

}  // namespace

Profile measure_profile(const TrainingGraph& training, Backend backend, int threads,
                        const ProfileOptions& options) {
  PT_CHECK(threads >= 1 && options.busy_threads >= 1 && options.repeats >= 1, kUsage,
           "a profile needs one thread, one copy and one repeat at least, got {}, {} and {}",
           threads, options.busy_threads, options.repeats);
  return Profiler(training, backend, threads, options).run();
}

void forget_profile(const TrainingGraph& training, Backend backend, int threads,
                    const ProfileOptions& options) {
  Profiler(training, backend, threads, options).forget();
}

}  // namespace pipetrain
