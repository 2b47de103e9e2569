#include "profile/measure_device.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/cache_directory.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/statistics.h"
#include "graph/builder.h"
#include "graph/op.h"
#include "ops/registry/host_kernel.h"
#include "ops/registry/registry.h"
#include "optim/update.h"
#include "profile/cost_cache.h"
#include "profile/machine.h"
#include "profile/node_key.h"
#include "profile/sample_data.h"

namespace pipetrain {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kMostSets = 64;  // of operands; smaller ones are bound by their launch anyway
constexpr double kRoundSeconds = 3e-4;  // what a round of runs should take
constexpr int kMostRuns = 32;           // in a round
constexpr double kLongRun = 0.02;       // what takes so long is known well after a few rounds

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class DeviceProfiler {
 public:
  DeviceProfiler(const TrainingGraph& training, Device& device, const ProfileOptions& options)
      : training_(training),
        device_(device),
        options_(options),
        cache_(cache_directory(options), environment(device, options)),
        is_read_(values_read(training)),
        groups_(group_nodes(training, is_read_)) {}

  std::optional<Profile> run(bool only_known) {
    const double start = steady_seconds();
    if (!look_up()) {
      if (only_known) return std::nullopt;
      stream_ = device_.make_stream();
      before_ = device_.make_timed_point();
      after_ = device_.make_timed_point();
      measure();
    }
    out_.device = device_.name();
    out_.backend = "device";
    for (const int group : groups_.of_node) {
      const KernelCost cost = group < 0 ? KernelCost{} : costs_[static_cast<std::size_t>(group)];
      out_.node_seconds.push_back(cost.seconds);
      out_.workspace_bytes.push_back(cost.workspace_bytes);
    }
    out_.distinct_nodes = static_cast<int>(groups_.keys.size());
    cache_.save();
    out_.spent_seconds = steady_seconds() - start;
    return std::move(out_);
  }

 private:
  static std::filesystem::path cache_directory(const ProfileOptions& options) {
    if (!options.use_cache) return {};
    return options.cache_directory.empty() ? default_cache_directory() : options.cache_directory;
  }

  static std::string environment(const Device& device, const ProfileOptions& options) {
    return fmt::format("{}{} | {}", device.make(), options.tensor_floats ? ", TF32" : "",
                       build_name());
  }

  /// Whether everything is in the cache.
  bool look_up() {
    costs_.clear();
    for (const std::string& key : groups_.keys) {
      const auto known = cache_.find(key);
      if (!known) return false;
      costs_.push_back(*known);
    }
    if (trains()) {
      const auto accumulate = cache_.find(kAccumulateKey),
                 update = cache_.find(update_key(options_.optimizer));
      if (!accumulate || !update) return false;
      out_.accumulate_seconds_per_byte = accumulate->seconds;
      out_.update_seconds_per_byte = update->seconds;
    }
    out_.cached_nodes = static_cast<int>(groups_.keys.size());
    return true;
  }

  bool trains() const { return !training_.accumulations.empty(); }

  void measure() {
    costs_.assign(groups_.keys.size(), {});
    std::vector<bool> is_known(groups_.keys.size(), false);
    for (std::size_t n = 0; n < groups_.of_node.size(); ++n) {
      if (groups_.of_node[n] < 0) continue;
      const auto group = static_cast<std::size_t>(groups_.of_node[n]);
      if (is_known[group]) continue;
      is_known[group] = true;
      const Node& node = training_.graph.nodes[n];
      with_context(
          [&] { return fmt::format("measuring {} ({})", printable(node.name), node.op->name); },
          [&] { costs_[group] = cost_of(node); });
      cache_.add(groups_.keys[group], costs_[group]);
      log_debug("profile", "{:.3g} s  {}", costs_[group].seconds, groups_.keys[group]);
    }
    if (!trains()) return;
    out_.accumulate_seconds_per_byte = accumulate_seconds();
    cache_.add(kAccumulateKey, {out_.accumulate_seconds_per_byte, 0});
    out_.update_seconds_per_byte = update_seconds();
    cache_.add(update_key(options_.optimizer), {out_.update_seconds_per_byte, 0});
  }

  KernelCost cost_of(const Node& node) {
    const Graph& graph = training_.graph;
    const std::unique_ptr<Kernel> kernel =
        make_kernel(*stream_, {node, graph.input_types(node), graph.output_types(node)});
    // Operands of one run, one after the other; so many sets of them that none is in the cache.
    std::vector<std::size_t> places;
    std::size_t bytes = 0, used = 1;
    const auto place = [&](ValueId id, bool wanted) {
      places.push_back(bytes);
      if (!id || !wanted) return;
      used += graph[id].type.bytes();
      bytes += aligned(graph[id].type.bytes());
    };
    for (const ValueId id : node.inputs) place(id, true);
    for (const ValueId id : node.outputs) place(id, is_read_[static_cast<std::size_t>(id.index)]);
    bytes = std::max<std::size_t>(bytes, kAlignment);
    const std::size_t sets = std::min(kMostSets, 1 + 2 * device_.cache_bytes() / used);
    const DeviceMemory memory = device_.allocate(bytes * sets);
    const DeviceMemory workspace = device_.allocate(kernel->workspace_bytes());
    std::vector<std::vector<Tensor>> in(sets), out(in);
    for (std::size_t s = 0; s < in.size(); ++s) {
      std::size_t k = 0;
      const auto tensor = [&](ValueId id, bool wanted) -> Tensor {
        std::byte* at = memory.data() + s * bytes + places[k++];
        if (!id) return {};
        return {graph[id].type, wanted ? at : nullptr};
      };
      for (const ValueId id : node.inputs) in[s].push_back(tensor(id, true));
      for (const ValueId id : node.outputs)
        out[s].push_back(tensor(id, is_read_[static_cast<std::size_t>(id.index)]));
    }
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (in[0][i]) fill(in[0][i], sample_of(training_, node.inputs[i]));
    }
    for (std::size_t s = 1; s < in.size(); ++s)
      stream_->copy(memory.data() + s * bytes, memory.data(), bytes);
    stream_->synchronize();
    RunContext context;
    context.workspace = workspace.data();
    context.samples = training_.micro_batch;
    std::size_t next = 0;
    const double seconds = seconds_of_run([&] {
      kernel->run(in[next], out[next], context);
      next = (next + 1) % in.size();
    });
    return {seconds, kernel->workspace_bytes()};
  }

  /// Fills a tensor of the device with what is given, again and again.
  void fill(const Tensor& to, const HostTensor& from) {
    const std::size_t bytes = to.bytes();
    std::size_t done = std::min(bytes, from.type().bytes());
    stream_->copy(to.data, from.view().data, done);
    stream_->synchronize();
    while (done < bytes) {
      const std::size_t more = std::min(done, bytes - done);
      stream_->copy(to.as<std::byte>() + done, to.data, more);
      done += more;
    }
  }

  /// The device's seconds of one of many runs, each of which `put` puts into the stream. Never 0.
  template <class Put>
  double seconds_of_run(const Put& put) {
    for (int i = 0; i < 2; ++i) put();
    stream_->synchronize();
    const auto round = [&](int runs) {
      stream_->record(*before_);
      for (int i = 0; i < runs; ++i) put();
      stream_->record(*after_);
      after_->synchronize();
      return after_->seconds_since(*before_) / runs;
    };
    const double one = round(1);
    const int runs = static_cast<int>(
        std::clamp(kRoundSeconds / std::max(one, 1e-9), 1.0, static_cast<double>(kMostRuns)));
    const int rounds = one > kLongRun ? std::min(options_.repeats, 3) : options_.repeats;
    std::vector<double> seconds;
    for (int i = 0; i < rounds; ++i) seconds.push_back(round(runs));
    return std::max(median(seconds), 1e-9);
  }

  /// Of adding one byte of a weight gradient to its accumulator.
  double accumulate_seconds() {
    const std::size_t count = floats_beyond_cache();
    const DeviceMemory memory = device_.allocate(2 * count * sizeof(float));
    auto* sum = reinterpret_cast<float*>(memory.data());
    const double seconds = seconds_of_run([&] { device_.add(*stream_, sum, sum + count, count); });
    return seconds / static_cast<double>(count * sizeof(float));
  }

  /// Of the optimizer's step over one byte of a parameter.
  double update_seconds() {
    const std::size_t count = floats_beyond_cache();
    const auto slots = static_cast<std::size_t>(state_slots(options_.optimizer));
    const DeviceMemory memory = device_.allocate((2 + slots) * count * sizeof(float));
    const auto part = [&](std::size_t k) {
      return std::span(reinterpret_cast<float*>(memory.data()) + k * count, count);
    };
    DeviceUpdate update{&options_.optimizer, 1e-6, part(0), part(1), {}, {}, {}};
    if (slots > 0) update.state0 = part(2);
    if (slots > 1) update.state1 = part(3);
    std::int64_t step = 0;
    const double seconds =
        seconds_of_run([&] { device_.update(*stream_, ++step, 1.0, 0.0, std::span(&update, 1)); });
    return seconds / static_cast<double>(count * sizeof(float));
  }

  std::size_t floats_beyond_cache() const {
    return std::max(device_.cache_bytes(), std::size_t{1} << 20) / sizeof(float);
  }

  static constexpr const char* kAccumulateKey = "accumulate one byte";

  const TrainingGraph& training_;
  Device& device_;
  const ProfileOptions& options_;
  CostCache cache_;
  std::vector<bool> is_read_;
  NodeGroups groups_;
  std::vector<KernelCost> costs_;  // by group
  Profile out_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<TimedPoint> before_, after_;
};

}  // namespace

Profile measure_device_profile(const TrainingGraph& training, Device& device,
                               const ProfileOptions& options) {
  PT_CHECK(options.repeats >= 1, kUsage, "a profile needs one repeat at least, got {}",
           options.repeats);
  return *DeviceProfiler(training, device, options).run(/*only_known=*/false);
}

std::optional<Profile> known_device_profile(const TrainingGraph& training, Device& device,
                                            const ProfileOptions& options) {
  return DeviceProfiler(training, device, options).run(/*only_known=*/true);
}

DeviceSpeed measure_device_speed(Device& device, DType operands, const ProfileOptions& options) {
  // Matrices of twice the cache.
  const double elements =
      2.0 * static_cast<double>(device.cache_bytes()) / static_cast<double>(size_of(operands));
  const std::int64_t n =
      std::max<std::int64_t>(256, static_cast<std::int64_t>(std::sqrt(elements)) / 256 * 256);
  TrainingGraph training;
  GraphBuilder builder = make_builder(training.graph);
  const auto input = [&](const char* name, DType dtype) {
    Value value;
    value.name = name;
    value.type = {dtype, Shape{n, n}};
    value.role = Role::kInput;
    return builder.add_value(std::move(value));
  };
  builder.add("MatMul", {input("a", operands), input("b", operands)});
  builder.add("Neg", {input("x", DType::kFloat32)});
  // What nobody reads is not computed.
  for (Node& node : training.graph.nodes) training.outputs.push_back(node.outputs[0]);
  const Profile profile = measure_device_profile(training, device, options);
  const auto cube = static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  const auto square = static_cast<double>(n) * static_cast<double>(n);
  return {.name = device.name(),
          .flops_per_second = 2 * cube / profile.node_seconds[0],
          .bytes_per_second = 2 * sizeof(float) * square / profile.node_seconds[1]};
}

}  // namespace pipetrain
