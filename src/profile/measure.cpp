#include "profile/measure.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/statistics.h"
#include "graph/op.h"
#include "profile/cost_cache.h"
#include "profile/machine.h"
#include "profile/node_key.h"
#include "profile/sample_data.h"

namespace pipetrain {
namespace {

// Something to be run again and again on one thread; made on the thread that runs it.
using Work = std::function<void()>;
using MakeWork = std::function<Work()>;

// Runs copies of one piece of work on all threads at once and times each.
class Stopwatch {
 public:
  Stopwatch(int threads, const ProfileOptions& options)
      : threads_(threads), options_(options), start_(options.busy_threads) {}

  double median_seconds(const MakeWork& make) {
    std::vector<std::thread> team;
    for (int i = 0; i < options_.busy_threads; ++i) team.emplace_back([&] { run(make); });
    for (std::thread& thread : team) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    return median(seconds_);
  }

 private:
  double now() const { return threads_ == 1 ? thread_cpu_seconds() : steady_seconds(); }

  double time(const Work& work, int count) const {
    const double start = now();
    for (int i = 0; i < count; ++i) work();
    return (now() - start) / count;
  }

  void run(const MakeWork& make) {
    omp_set_num_threads(threads_);
    Work work;
    int count = 1;
    try {
      work = make();
      work();  // first use of memory
      const double once = std::max(time(work, 1), 1e-7);
      count = static_cast<int>(std::clamp(options_.sample_seconds / once, 1.0, 10000.0));
    } catch (...) {
      fail();
    }
    start_.arrive_and_wait();
    if (failed_) return;
    try {
      measure(work, count);
    } catch (...) {
      fail();
    }
    // Those who are done keep the shared memory busy until all are.
    if (++finished_ == options_.busy_threads) return;
    while (finished_ < options_.busy_threads && !failed_) work();
  }

  void measure(const Work& work, int count) {
    // Nodes that take long are known well after three samples.
    const double once = time(work, count);
    const int repeats = once * count > 0.1 ? std::min(options_.repeats, 3) : options_.repeats;
    std::vector<double> samples = {once};
    while (static_cast<int>(samples.size()) < repeats) samples.push_back(time(work, count));
    const std::lock_guard lock(mutex_);
    seconds_.insert(seconds_.end(), samples.begin(), samples.end());
  }

  void fail() {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
    failed_ = true;
  }

  int threads_;
  const ProfileOptions& options_;
  std::barrier<> start_;
  std::atomic<int> finished_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::vector<double> seconds_;
  std::exception_ptr failure_;
};

// A kernel with memory of its own, as a stage has it.
class KernelRun {
 public:
  KernelRun(const TrainingGraph& training, Backend backend, const Node& node,
            const std::vector<HostTensor>& inputs, const std::vector<bool>& is_read)
      : kernel_(make_kernel(
            backend, {node, training.graph.input_types(node), training.graph.output_types(node)})),
        workspace_(kernel_->workspace_bytes()) {
    for (const HostTensor& tensor : inputs) {
      in_.push_back(tensor ? own_copy(tensor) : Tensor{});
    }
    for (const ValueId id : node.outputs) {
      const TensorType& type = training.graph[id].type;
      const bool read = is_read[static_cast<std::size_t>(id.index)];
      out_.push_back(read ? own(type) : Tensor{type, nullptr});
    }
    context_.workspace = workspace_.data();
    context_.samples = training.micro_batch;
  }

  void run() { kernel_->run(in_, out_, context_); }
  std::size_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  Tensor own(const TensorType& type) { return memory_.emplace_back(type).view(); }
  Tensor own_copy(const HostTensor& from) {
    const Tensor to = own(from.type());
    std::memcpy(to.data, from.view().data, from.type().bytes());
    return to;
  }

  std::unique_ptr<Kernel> kernel_;
  Buffer workspace_;
  std::vector<HostTensor> memory_;
  std::vector<Tensor> in_, out_;
  RunContext context_;
};

KernelCost measure_node(const TrainingGraph& training, Backend backend, int threads,
                        const ProfileOptions& options, const Node& node, SampleData& data,
                        const std::vector<bool>& is_read) {
  std::vector<HostTensor> inputs;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) inputs.push_back(data.input(node, i));
  std::atomic<std::size_t> workspace{0};
  const MakeWork make = [&]() -> Work {
    auto run = std::make_shared<KernelRun>(training, backend, node, inputs, is_read);
    workspace = run->workspace_bytes();
    return [run] { run->run(); };
  };
  const double seconds = Stopwatch(threads, options).median_seconds(make);
  return {seconds, workspace};
}

// Stages add weight gradients with a plain loop over memory that is not in a cache.
double measure_accumulation(int threads, const ProfileOptions& options) {
  constexpr std::size_t kCount = std::size_t{1} << 21;
  const MakeWork make = [=]() -> Work {
    auto to = std::make_shared<std::vector<float>>(kCount, 0.0F);
    auto from = std::make_shared<std::vector<float>>(kCount, 1e-3F);
    return [=] {
      float* __restrict sum = to->data();
      const float* __restrict term = from->data();
      for (std::size_t i = 0; i < kCount; ++i) sum[i] += term[i];
    };
  };
  return Stopwatch(threads, options).median_seconds(make) /
         static_cast<double>(kCount * sizeof(float));
}

std::string environment(Backend backend, int threads, const ProfileOptions& options) {
  return fmt::format("{} | {} | {} x {} threads | {}", processor_name(),
                     backend == Backend::kCpu ? "cpu" : "reference", options.busy_threads, threads,
                     build_name());
}

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
  const double start = steady_seconds();
  const Graph& graph = training.graph;
  Profile out;
  out.node_seconds.assign(graph.nodes.size(), 0.0);
  out.workspace_bytes.assign(graph.nodes.size(), 0);
  out.device = processor_name();
  out.backend = backend == Backend::kCpu ? "cpu" : "reference";
  out.threads = threads;
  out.busy_threads = options.busy_threads;

  std::filesystem::path directory;
  if (options.use_cache) {
    directory =
        options.cache_directory.empty() ? default_cache_directory() : options.cache_directory;
  }
  CostCache cache(directory, environment(backend, threads, options));
  SampleData data(training, backend);
  const std::vector<bool> is_read = values_read(training);
  std::map<std::string, KernelCost> costs;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.op->flags & kView) continue;
    const std::string key = node_key(graph, node, is_read);
    const auto [found, added] = costs.try_emplace(key);
    if (added) {
      if (const auto known = cache.find(key)) {
        found->second = *known;
        ++out.cached_nodes;
      } else {
        found->second = with_context(
            [&] { return fmt::format("measuring {} ({})", printable(node.name), node.op->name); },
            [&] { return measure_node(training, backend, threads, options, node, data, is_read); });
        cache.add(key, found->second);
        log_debug("profile", "{:.3g} s  {}", found->second.seconds, key);
      }
    }
    out.node_seconds[n] = found->second.seconds;
    out.workspace_bytes[n] = found->second.workspace_bytes;
  }
  out.distinct_nodes = static_cast<int>(costs.size());
  if (!training.accumulations.empty()) {
    const std::string key = "accumulate one byte";
    auto cost = cache.find(key);
    if (!cost) {
      cost = KernelCost{measure_accumulation(threads, options), 0};
      cache.add(key, *cost);
    }
    out.accumulate_seconds_per_byte = cost->seconds;
  }
  cache.save();
  out.spent_seconds = steady_seconds() - start;
  return out;
}

}  // namespace pipetrain
