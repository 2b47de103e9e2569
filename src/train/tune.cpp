#include "train/tune.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/statistics.h"
#include "pipeline/schedule/generate.h"
#include "processes/process_group.h"
#include "train/auto_schedule.h"
#include "train/pipeline_run.h"
#include "train/process_agreement.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

constexpr int kLeastSteps = 3;  // the first of which is warm-up
constexpr int kMostTuneSteps = 40;
constexpr double kSearchShare = 0.4;  // of the budget: profiles and simulations
constexpr double kMayWin = 1.15;      // as much faster than predicted as any was so far, and more
constexpr double kFinal = 0.93;       // share of the best speed from which it is measured again
constexpr int kFinalRounds = 2;
constexpr double kClearlyBetter = 1.02;  // than the run as given: less is the noise of short runs

/// What makes two candidates the same run.
using Key = std::tuple<std::string, int, int, std::int64_t, bool, int, int, DType>;

Key key_of(const TuneCandidate& candidate) {
  const PipelineConfig& pipeline = candidate.config.pipeline;
  const bool loop = find_schedule(pipeline.schedule) && stages_per_device(pipeline.schedule, 2) > 1;
  return {is_one_stage(candidate) ? "" : pipeline.schedule,
          candidate.devices,
          candidate.threads,
          candidate.micro_batches,
          pipeline.recompute == Recompute::kAll,
          loop ? pipeline.chunks : 1,
          static_cast<int>(pipeline.replicas.size()),
          candidate.config.model.precision};
}

/// Takes the times of a short run, and ends it where there is no more time.
class StepTimes final : public TrainingObserver {
 public:
  StepTimes(TuneObserver& observer, double end) : observer_(observer), end_(end) {}
  void on_step(const StepReport& report) override { seconds_.push_back(report.seconds); }
  RunRequests requests() override {
    const bool late =
        steady_seconds() > end_ && seconds_.size() >= static_cast<std::size_t>(kLeastSteps);
    has_asked_ = late || observer_.stop();
    return {.stop = has_asked_, .save = false};
  }
  /// Whether the run was to end by what this process has asked for.
  bool has_asked() const { return has_asked_; }
  /// Of the steps after the pipeline is full and memory paged in.
  std::vector<double> warm(int fill) const {
    const std::size_t skip = std::min(static_cast<std::size_t>(fill), seconds_.size() / 2 + 1);
    return seconds_.size() <= skip
               ? std::vector<double>()
               : std::vector<double>(seconds_.begin() + static_cast<std::ptrdiff_t>(skip),
                                     seconds_.end());
  }

 private:
  TuneObserver& observer_;
  double end_;
  bool has_asked_ = false;
  std::vector<double> seconds_;
};

/// The run without what only long runs need.
RunConfig plain(RunConfig config) {
  OptimizationConfig& optimization = config.optimization;
  optimization.evaluate_every = 0;
  optimization.patience = 0;
  optimization.best_metric = "loss";
  optimization.warmup = 0;
  optimization.learning_rate.kind = LearningRateKind::kConstant;
  optimization.learning_rate.minimum = 0;
  optimization.rate_every_epochs = 0;
  optimization.rate_by_time = false;
  optimization.on_nonfinite = OnNonfinite::kIgnore;
  return config;
}

/// What process 0 has the others do with a candidate.
enum class TuneOrder : int { kPlan, kRun, kEnd };

/// Errors that all processes find alike, as they plan from the same numbers, and after which they
/// go on with the next candidate.
bool is_of_all(const Error& error, const ProcessGroup& processes) {
  return (error.kind() == ErrorKind::kUsage || error.kind() == ErrorKind::kResource) &&
         processes.can_go_on();
}

class Tuning {
 public:
  Tuning(const RunConfig& config, const TuneScope& scope, TuneObserver& observer,
         ProcessGroup* processes)
      : config_(plain(config)),
        scope_(scope),
        observer_(observer),
        processes_(processes),
        start_(steady_seconds()),
        data_(config_, RunMode::kTrain, processes) {}

  TuneResult run() {
    TuneCandidate own;
    own.config = config_;
    try_candidate(std::move(own));
    const TuneCandidate& first = result_.candidates.front();
    PT_CHECK(first.failure.empty(), kInternal, "{}", first.failure);
    std::vector<TuneCandidate> queue = propose();
    result_.considered = queue.size();
    result_.search_seconds = elapsed() - result_.search_seconds;
    for (TuneCandidate& candidate : queue) {
      if (!goes_on()) break;
      if (known_.contains(key_of(candidate)) || !may_win(candidate)) continue;
      if (!has_time_for(candidate)) {
        result_.out_of_time = true;
        continue;
      }
      try_candidate(std::move(candidate));
    }
    repeat_the_fastest();
    choose_best();
    tell(TuneOrder::kEnd, {});
    result_.interrupted = is_stopped();
    result_.seconds = elapsed();
    return std::move(result_);
  }

 private:
  double elapsed() const { return steady_seconds() - start_; }
  double left() const { return scope_.budget_seconds - elapsed(); }
  bool goes_on() {
    if (left() <= 0) result_.out_of_time = true;
    return left() > 0 && !is_stopped();
  }
  bool is_stopped() { return stopped_elsewhere_ || observer_.stop(); }

  double best_measured() const {
    double best = 0;
    for (const TuneCandidate& candidate : result_.candidates)
      best = std::max(best, candidate.measured);
    return best;
  }
  bool may_win(const TuneCandidate& candidate) const {
    return candidate.predicted * luck_ * kMayWin >= best_measured();
  }
  double batch() const { return static_cast<double>(config_.optimization.batch_size); }
  bool has_time_for(const TuneCandidate& candidate) const {
    return setup_seconds_ + kLeastSteps * batch() / candidate.predicted < left();
  }

  /// What a run will be predicted to take, cut as it will be.
  static double predicted_seconds(const PlannedNetwork& network) {
    return std::max(network.predicted_step_seconds(), 1e-9);
  }

  PlannedNetwork planned(const TuneCandidate& candidate, TuneOrder order = TuneOrder::kPlan) const {
    tell(order, candidate.config);
    return plan_network(candidate.config, RunMode::kTrain, processes_, &data_);
  }

  void tell(TuneOrder order, const RunConfig& config) const {
    if (!processes_) return;
    ByteWriter writer;
    writer.put(order);
    put_choice(writer, config.pipeline);
    writer.put(config.pipeline.threads);
    writer.put(config.model.precision);
    writer.put(config.optimization.max_steps);
    processes_->broadcast(writer.take());
  }

  /// Runs a candidate, new or again, and notes what came of it.
  void measure(TuneCandidate& candidate) {
    double begin = steady_seconds();
    if (candidate.predicted == 0) {
      candidate.predicted = batch() / predicted_seconds(planned(candidate));
      begin = steady_seconds();  // what comes later finds the profile
    }
    // Enough steps for each candidate's share of the time and for filling asynchronous pipelines.
    const double share = scope_.budget_seconds / 20;
    const std::int64_t steps = std::clamp<std::int64_t>(
        std::llround(share * candidate.predicted / batch()), kLeastSteps, kMostTuneSteps);
    candidate.config.optimization.max_steps = steps + candidate.devices;
    PlannedNetwork network = planned(candidate, TuneOrder::kRun);
    PipelineRun run(network);
    candidate.predicted = batch() / predicted_seconds(network);
    candidate.devices = network.devices();
    candidate.threads = network.threads();
    candidate.micro_batches = network.micro_batches();
    std::vector<std::size_t> bytes(static_cast<std::size_t>(network.devices()), 0);
    candidate.recompute = false;
    for (int s = 0; s < network.stages(); ++s) {
      candidate.recompute |= network.plan().stages[static_cast<std::size_t>(s)].recompute;
      for (const int device : network.predicted_program().placement[static_cast<std::size_t>(s)])
        bytes[static_cast<std::size_t>(device)] += run.runtime().memory(s).total();
    }
    candidate.peak_bytes = *std::max_element(bytes.begin(), bytes.end());
    setup_seconds_ = std::max(setup_seconds_, steady_seconds() - begin);
    const double end = start_ + scope_.budget_seconds;
    StepTimes times(observer_, std::min(end, steady_seconds() + 3 * share));
    const RunEnd ended = train(run, times).end;
    if (ended == RunEnd::kStopped && !times.has_asked()) stopped_elsewhere_ = true;
    for (const double seconds : times.warm(network.asynchronous() ? network.stages() : 1))
      candidate.step_seconds.push_back(seconds);
    if (!candidate.step_seconds.empty())
      candidate.measured = batch() / median(candidate.step_seconds);
  }

  void try_candidate(TuneCandidate candidate) {
    const bool first = result_.candidates.empty();
    try {
      measure(candidate);
    } catch (const Error& error) {
      // Errors of the run as given and unreadable data are reported; other candidates may not suit
      // this model.
      if (first || error.kind() == ErrorKind::kData ||
          (processes_ && !is_of_all(error, *processes_)))
        throw;
      candidate.failure = error.message();
    }
    if (candidate.measured == 0 && candidate.failure.empty() && !first) return;  // interrupted
    if (candidate.measured > 0) luck_ = std::max(luck_, candidate.measured / candidate.predicted);
    known_.insert(key_of(candidate));
    result_.candidates.push_back(std::move(candidate));
    observer_.on_candidate(static_cast<int>(result_.candidates.size()) - 1,
                           result_.candidates.back());
  }

  std::vector<int> thread_counts() const {
    const int own = result_.candidates.front().threads;
    if (!scope_.threads) return {own};
    // All cores for one stage, for as many stages as allowed, and values in between.
    const int cores = available_cores();
    std::vector<int> counts;
    for (int devices = 1; devices <= std::min(cores, scope_.most_devices); ++devices) {
      const int threads = std::max(1, cores / devices);
      if (counts.empty() || counts.back() != threads) counts.push_back(threads);
    }
    if (counts.size() > 6) {  // a large machine: halves
      counts.clear();
      for (int threads = cores; threads >= std::max(1, cores / scope_.most_devices); threads /= 2)
        counts.push_back(threads);
    }
    return counts;
  }

  /// The best configurations in simulation, in the order of measurement.
  std::vector<TuneCandidate> propose() {
    result_.search_seconds = elapsed();
    std::vector<TuneCandidate> all;
    std::vector<DType> precisions = {config_.model.precision};
    if (scope_.precision && config_.pipeline.gpu_ids.empty()) {
      for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
        if (precision != config_.model.precision) precisions.push_back(precision);
      }
    }
    const int cores = available_cores();
    for (const DType precision : precisions) {
      for (const int threads : thread_counts()) {
        if (!all.empty() && (elapsed() - result_.search_seconds >
                                 kSearchShare * (scope_.budget_seconds - result_.search_seconds) ||
                             is_stopped()))
          continue;
        RunConfig config = config_;
        config.model.precision = precision;
        config.pipeline.threads = threads;
        config.pipeline.devices = scope_.most_devices;
        if (scope_.threads && config.pipeline.gpu_ids.empty())
          config.pipeline.devices =
              std::clamp(cores / threads, 1, std::max(1, scope_.most_devices));
        SearchScope search;
        search.micro_batches = scope_.micro_batches;
        search.fewer_devices = true;
        search.topology = scope_.topology;
        search.several_processes = processes_ != nullptr;
        search.asynchronous = scope_.asynchronous;
        search.same_data = &data_;
        if (!config.pipeline.gpu_ids.empty())
          search.processors = different_gpus(config.pipeline.gpu_ids, processes_);
        search.profile_seconds = kSearchShare / 2 * scope_.budget_seconds;
        add_found(config, find_schedules(config, search), all);
        if (scope_.asynchronous && config.pipeline.devices > 1) add_streams(config, all);
        observer_.on_search(threads, all.size());
      }
    }
    mark_pareto(all);
    std::stable_sort(all.begin(), all.end(), [](const TuneCandidate& a, const TuneCandidate& b) {
      if (a.pareto != b.pareto) return a.pareto;
      return a.predicted > b.predicted;
    });
    std::set<Key> seen;
    std::erase_if(all, [&](const TuneCandidate& c) { return !seen.insert(key_of(c)).second; });
    return all;
  }

  void add_found(const RunConfig& config, const FoundSchedules& found,
                 std::vector<TuneCandidate>& all) const {
    for (const Candidate& way : found.candidates) {
      if (!way.fits || (way.replicas > 1 && !scope_.micro_batches)) continue;
      // Every process has devices.
      if (processes_ && way.places * way.replicas != scope_.most_devices) continue;
      if (way.places == 1 && way.chunks > 1) continue;  // the same work in more pieces
      if (changes_results(way)) continue;
      if (!scope_.schedules && way.places > 1 && way.schedule != config.pipeline.schedule) continue;
      if (!scope_.recompute && way.recompute != (config.pipeline.recompute == Recompute::kAll))
        continue;
      TuneCandidate candidate;
      candidate.config = config;
      take_over(way, candidate.config);
      PipelineConfig& pipeline = candidate.config.pipeline;
      if (way.places == 1) pipeline.schedule = "1f1b";
      // It is cut as a run with these options will be.
      pipeline.cuts.clear();
      if (!pipeline.gpu_ids.empty())
        pipeline.gpu_ids.resize(
            std::min(pipeline.gpu_ids.size(), static_cast<std::size_t>(pipeline.devices)));
      candidate.devices = pipeline.devices;
      candidate.threads = config.pipeline.threads;
      candidate.micro_batches = way.micro_batches;
      candidate.recompute = way.recompute;
      candidate.predicted = way.samples_per_second;
      candidate.peak_bytes = way.peak_bytes;
      all.push_back(std::move(candidate));
    }
  }

  /// Whether the run as given has weights of another age, or other samples in its batch norms.
  bool changes_results(const Candidate& way) const {
    const ScheduleDescription* own = find_schedule(config_.pipeline.schedule);
    const bool asynchronous = own && is_asynchronous(own->rule);
    return (!scope_.asynchronous && way.asynchronous != asynchronous) ||
           (!scope_.micro_batches && way.micro_batches != result_.candidates.front().micro_batches);
  }

  /// Schedules that do not split mini-batches, which the search does not simulate otherwise.
  void add_streams(const RunConfig& config, std::vector<TuneCandidate>& all) {
    for (const ScheduleDescription& schedule : schedules()) {
      if (!sends_whole_mini_batches(schedule.rule)) continue;
      TuneCandidate candidate;
      candidate.config = config;
      candidate.config.pipeline.schedule = schedule.name;
      candidate.config.pipeline.micro_batches = candidate.config.pipeline.micro_batch_size = 0;
      try {
        const PlannedNetwork network = planned(candidate);
        candidate.predicted = batch() / predicted_seconds(network);
        for (int s = 0; s < network.stages(); ++s)
          candidate.peak_bytes =
              std::max(candidate.peak_bytes, network.predicted_memory(s).total());
      } catch (const Error&) {
        continue;  // stages with shared weights or a clipped norm cannot update separately
      }
      candidate.devices = config.pipeline.devices;
      candidate.threads = config.pipeline.threads;
      all.push_back(std::move(candidate));
    }
  }

  static void mark_pareto(std::vector<TuneCandidate>& all) {
    std::stable_sort(all.begin(), all.end(), [](const TuneCandidate& a, const TuneCandidate& b) {
      return std::tuple(-a.predicted, a.peak_bytes) < std::tuple(-b.predicted, b.peak_bytes);
    });
    std::size_t least = SIZE_MAX;
    for (TuneCandidate& candidate : all) {
      candidate.pareto = candidate.peak_bytes < least;
      least = std::min(least, candidate.peak_bytes);
    }
  }

  /// Measures the fastest again: on a shared machine the clock varies, and the winner may have been
  /// lucky.
  void repeat_the_fastest() {
    for (int round = 0; round < kFinalRounds; ++round) {
      const double best = best_measured();
      std::vector<std::size_t> fastest;
      for (std::size_t i = 0; i < result_.candidates.size(); ++i) {
        if (result_.candidates[i].measured >= kFinal * best && best > 0) fastest.push_back(i);
      }
      if (fastest.size() < 2) return;
      for (const std::size_t i : fastest) {
        if (!goes_on() || !has_time_for(result_.candidates[i])) return;
        measure(result_.candidates[i]);
      }
    }
  }

  void choose_best() {
    for (std::size_t i = 1; i < result_.candidates.size(); ++i) {
      const TuneCandidate& candidate = result_.candidates[i];
      const TuneCandidate& best = result_.candidates[static_cast<std::size_t>(result_.best)];
      if (candidate.measured > best.measured * (result_.best == 0 ? kClearlyBetter : 1))
        result_.best = static_cast<int>(i);
    }
  }

  RunConfig config_;
  TuneScope scope_;
  TuneObserver& observer_;
  ProcessGroup* processes_;
  double start_;
  Network data_;  // read once: every other network takes its data
  TuneResult result_;
  std::set<Key> known_;
  bool stopped_elsewhere_ = false;  // by a signal to another process
  double luck_ = 1;                 // the largest measured over predicted
  double setup_seconds_ = 0;        // the longest between two runs
};

}  // namespace

bool is_one_stage(const TuneCandidate& candidate) {
  const std::string& schedule = candidate.config.pipeline.schedule;
  return candidate.devices == 1 &&
         (!find_schedule(schedule) || stages_per_device(schedule, 2) == 1);
}

TuneResult tune(const RunConfig& config, const TuneScope& scope, TuneObserver& observer,
                ProcessGroup* processes) {
  return Tuning(config, scope, observer, processes).run();
}

void follow_tune(const RunConfig& config, ProcessGroup& processes,
                 const std::function<bool()>& stop) {
  struct Stops final : TrainingObserver {
    explicit Stops(const std::function<bool()>& ask) : asks(ask) {}
    RunRequests requests() override { return {.stop = asks(), .save = false}; }
    const std::function<bool()>& asks;
  } observer(stop);
  RunConfig candidate = plain(config);
  const Network data(candidate, RunMode::kTrain, &processes);
  for (;;) {
    const std::string bytes = processes.broadcast({});
    ByteReader reader(bytes);
    const auto order = reader.get<TuneOrder>();
    if (order == TuneOrder::kEnd) return;
    take_choice(reader, candidate.pipeline);
    candidate.pipeline.threads = reader.get<int>();
    candidate.model.precision = reader.get<DType>();
    candidate.optimization.max_steps = reader.get<std::int64_t>();
    try {
      PlannedNetwork network = plan_network(candidate, RunMode::kTrain, &processes, &data);
      if (order == TuneOrder::kPlan) continue;
      PipelineRun run(network);
      train(run, observer);
    } catch (const Error& error) {
      if (!is_of_all(error, processes)) throw;  // else process 0 has found the same
    }
  }
}

}  // namespace pipetrain
