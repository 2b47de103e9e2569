#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "processes/process_group.h"
#include "train/as_process_0.h"
#include "train/batch_source.h"
#include "train/checkpoint_parts.h"
#include "train/commits.h"
#include "train/export.h"
#include "train/finite_check.h"
#include "train/replica_run.h"
#include "train/replica_updates.h"
#include "train/resume.h"
#include "train/run_rate.h"
#include "train/scores.h"
#include "train/snapshot.h"
#include "train/step_check.h"
#include "train/step_notes.h"
#include "train/step_times.h"
#include "train/stream_round.h"

namespace pipetrain {
namespace {

constexpr const char* kForRestart = "restart";  // why a state is kept that no checkpoint needs

class Training {
 public:
  Training(PipelineRun& run, TrainingObserver& observer, const TrainingOptions& options)
      : run_(run),
        network_(run.network()),
        observer_(observer),
        options_(options),
        settings_(network_.config().optimization),
        first_step_(options.resumed ? std::min(options.resumed->step, network_.total_steps()) : 0),
        saving_(options.save, first_step_, network_.batches_per_epoch()),
        rate_(network_, options.max_seconds, options.seconds_so_far()),
        sampler_(training_sampler(network_)),
        loader_(network_.training_data(), sampler_, static_cast<std::uint64_t>(first_step_),
                // Replicas that do not wait read their own parts.
                static_cast<std::uint64_t>(
                    network_.replica_updates().waits() ? network_.total_steps() : first_step_),
                network_.data().workers,
                // Asynchronous rounds copy each mini-batch into their own memory.
                network_.asynchronous() ? TakeMemory() : network_.batch_memory(),
                network_.config().pipeline.timeout_seconds) {
    if (options.resumed) take_best(network_, *options.resumed, summary_);
    check_metric(network_);
    check_validation_labels(network_);
    if (!network_.replica_updates().waits())
      replicas_.emplace(run, saving_.run(), options.resumed, options.commits);
    if (network_.processes() && !network_.asynchronous()) {
      parts_.emplace(*network_.processes(), saving_, options.save.folder,
                     settings_.on_nonfinite != OnNonfinite::kIgnore);
      notes_.emplace(
          run.runtime(), *parts_,
          StepNotes::Here{[this] { return asked_here(); }, [this] { return due_here(); }});
    }
  }

  TrainingSummary run() {
    rate_.start();
    std::int64_t step = first_step_;
    if (options_.resumed) {
      const bool last = step == network_.total_steps();
      const bool has_lost_best = last && options_.resumed->best && !summary_.best;
      if (lacks_evaluation(network_, *options_.resumed) || has_lost_best)
        save_after(step, evaluate_after(step, last), last);
      else if (!last && has_stalled(settings_, summary_))
        summary_.end = RunEnd::kStalled;
    }
    while (step < network_.total_steps() && summary_.end == RunEnd::kDone) {
      if (network_.asynchronous()) {
        const bool resumes = options_.cut && step == first_step_;
        const std::int64_t begin = resumes ? options_.resumed->round_start : step;
        step = stream(begin, resumes ? options_.cut : nullptr);
        if (summary_.end != RunEnd::kDone) break;  // stopped inside the round and saved there
      } else if (replicas_) {
        replica_update(step++);
      } else {
        begun_steps_ = step + 1;
        synchronous_step(step++);
      }
      look_at_requests();
      const bool last = step == network_.total_steps();
      if (last && summary_.end == RunEnd::kTime) summary_.end = RunEnd::kDone;
      const bool ends = last || (settings_.rate_by_time && summary_.end == RunEnd::kTime);
      save_after(step, evaluate_after(step, ends), last);
      if (!last && summary_.end == RunEnd::kDone) report_saves();
    }
    if (replicas_) {
      replicas_->publish();
      replicas_->end(summary_.end);
    }
    const double before = steady_seconds();
    if (parts_) parts_->finish();
    saving_.finish();
    summary_.save_seconds += steady_seconds() - before;
    summary_.write_seconds = saving_.write_seconds();
    // A failed checkpoint does not lose the trained weights.
    if (summary_.end != RunEnd::kStopped) summary_.save_failure = saving_.reason_to_end();
    if (summary_.save_failure.empty()) tell_outcomes();
    summary_.last_checkpoint = saving_.last_written();
    summary_.steps = step;
    if (step > first_step_) summary_.learning_rate = rate_.at(step - 1);
    summary_.skipped_steps = run_.runtime().loss_scale().skipped;
    summary_.seconds = rate_.seconds_since_start();
    times_.summarize(std::min(settings_.batch_size, network_.epoch_samples()), summary_);
    return summary_;
  }

 private:
  /// Evaluates where that is due after a step; true where the model is the best so far.
  bool evaluate_after(std::int64_t step, bool last) {
    unevaluated_ = is_evaluated(network_, step, last);
    if (!unevaluated_ || (!last && summary_.end != RunEnd::kDone)) return false;
    if (replicas_) replicas_->publish();
    saving_on_error(step, [&] {
      summary_.last_evaluation = evaluate(run_, step, epoch_of(step));
      if (needs_outputs(settings_.best_metric))
        output_metrics_.add(*summary_.last_evaluation, top_of(settings_.best_metric));
    });
    unevaluated_ = false;
    observer_.on_evaluation(*summary_.last_evaluation);
    const bool improved = note_best(network_, summary_);
    if (improved) keep_best(step);
    if (!last && has_stalled(settings_, summary_)) summary_.end = RunEnd::kStalled;
    return improved;
  }

  /// Saves a checkpoint if one is due, or defers it.
  void save_after(std::int64_t step, bool improved, bool last) {
    const double before = steady_seconds();
    begun_steps_ = step;
    const SaveDue due = notes_ ? notes_->due() : due_here();
    const bool defers = only_improved(improved, last) && due.defers;
    const char* reason = defers ? "best" : decide_to_save(step, improved, last, due.checkpoint);
    enum : int { kNothing, kWhole, kInParts };
    int how = reason && !defers && parts_ ? kInParts : reason || due.snapshot ? kWhole : kNothing;
    // Process 0 decides, where it may decide at all: the others' folders and clocks differ.
    const bool may_save = !notes_ || due.checkpoint || due.snapshot || improved || last ||
                          save_asked_ || summary_.end != RunEnd::kDone;
    how = may_save ? as_process_0(network_.processes(), how) : int{kNothing};
    if (how == kInParts) save_in_parts(step, reason);
    if (how == kWhole) {
      Checkpoint checkpoint = checkpoint_of(step, reason ? reason : kForRestart);
      if (snapshot_ && (reason || due.snapshot))
        keep_snapshot(checkpoint, steady_seconds() - before);
      if (defers) {
        saving_.defer(std::move(checkpoint));
      } else if (reason) {
        saving_.save(std::move(checkpoint));
      }
    }
    if (!reason && !(parts_ && parts_->is_pending())) saving_.save_deferred();
    if (options_.commits && !last && summary_.end == RunEnd::kDone) {
      options_.commits->after_step(step, [&] {
        if (replicas_) replicas_->publish();
        Checkpoint part =
            make_checkpoint(run_, saving_.run(), step, step, 0, run_.runtime().own_contents());
        part.best_weights = summary_.best_weights;
        return completed(std::move(part), kForRestart);
      });
    }
    summary_.save_seconds += steady_seconds() - before;
  }

  void save_in_parts(std::int64_t step, const char* reason) {
    const std::vector<StageContent> own = run_.runtime().own_contents();
    Checkpoint whole;
    if (network_.leads())
      whole = completed(make_checkpoint(run_, saving_.run(), step, step, 0, {}), reason);
    parts_->save(std::move(whole), make_checkpoint(run_, {}, step, step, 0, own));
  }

  /// `seconds`: what collecting the state has taken.
  void keep_snapshot(Checkpoint checkpoint, double seconds) {
    // Checkpoints of the best model may still be on their way to the disk.
    checkpoint.best_weights = summary_.best_weights;
    try {
      snapshot_->keep(checkpoint, seconds);
    } catch (const Error& error) {
      log_warning("train", "{}; a restart begins with the newest checkpoint", error.message());
      std::exchange(snapshot_, nullptr)->forget();
    }
  }

  double epoch_of(std::int64_t step) const {
    return static_cast<double>(step) / static_cast<double>(network_.batches_per_epoch());
  }
  std::optional<double> accuracy(double correct, std::int64_t counted) const {
    if (!network_.graph().loss.correct) return {};
    return correct / static_cast<double>(counted);
  }

  void synchronous_step(std::int64_t step) {
    if (step > first_step_) times_.ask_for_peak();
    const double start = steady_seconds();
    const double waited = loader_.waited_seconds();
    const Batch* batch = nullptr;
    saving_on_error(step, [&] { batch = loader_.next(); });
    PT_CHECK(batch != nullptr, kInternal, "the data end before the run");
    const auto samples = static_cast<std::int64_t>(batch->samples);
    double rate = rate_.at(step);
    if (settings_.rate_by_time) rate = as_process_0(network_.processes(), rate);
    units_.set(batch->columns, samples, static_cast<std::uint64_t>(step), rate);
    const Program& program = run_.program(network_.units_of(samples));
    const bool twice = options_.verify_every > 0 && (step + 1) % options_.verify_every == 0;
    const bool follows = twice && std::exchange(checked_steps_, step + 1) == step;
    const RoundResult result =
        twice ? check_.run(program, units_, follows) : run_.runtime().run(program, units_);
    observer_.on_round(step + 1, program, result);
    StepReport report;
    report.step = step + 1;
    report.total_steps = network_.total_steps();
    report.epoch = epoch_of(step + 1);
    report.loss = units_.loss();
    report.accuracy = accuracy(units_.correct(), units_.counted());
    if (settings_.clip_norm > 0) report.gradient_norm = result.gradient_norm;
    report.learning_rate = rate;
    if (network_.loss_scaling().adapts) report.loss_scale = result.loss_scale;
    if (twice) report.weights_digest = check_.weights_digest();
    report.skipped = result.skipped;
    report.skipped_steps = run_.runtime().loss_scale().skipped;
    report.seconds = steady_seconds() - start;
    report.data_seconds = loader_.waited_seconds() - waited;
    report.samples_per_second = static_cast<double>(samples) / report.seconds;
    times_.set_model_utilisation(report);
    StepTimes::set_utilisation(report, result);
    note_times(samples, result.seconds, *report.bubble);
    observer_.on_step(report);
    finite_.check(report);
  }

  /// The next update where replicas do not wait for each other.
  void replica_update(std::int64_t step) {
    AppliedUpdate made;
    saving_on_error(step, [&] { made = replicas_->next(rate_.at(step)); });
    left_requests_.add(replicas_->take_requests());
    StepReport report;
    report.step = step + 1;
    report.total_steps = network_.total_steps();
    report.epoch = epoch_of(report.step);
    report.parts = made.parts;
    report.loss = made.loss;
    report.accuracy = accuracy(made.correct, made.counted);
    if (settings_.clip_norm > 0) report.gradient_norm = made.gradient_norm;
    report.learning_rate = rate_.at(step);
    report.seconds = made.seconds;
    report.samples_per_second = static_cast<double>(made.samples) / report.seconds;
    times_.note_seconds(report.seconds);
    observer_.on_step(report);
    if (!std::isfinite(report.loss)) replicas_->publish();
    finite_.check(report);
  }

  /// Of the steps that predictions are for, which a short batch at the end of an epoch is not.
  void note_times(std::int64_t samples, double seconds, double bubble) {
    if (samples < std::min(settings_.batch_size, network_.epoch_samples())) return;
    times_.note_seconds(seconds);
    times_.note_bubble(bubble);
  }

  SaveDue due_here() const {
    return {saving_.is_due(begun_steps_), snapshot_ && snapshot_->is_due(), saving_.defers()};
  }

  /// Requests from signals and the clock to this process.
  RunRequests asked_here() {
    RunRequests asked = observer_.requests();
    const double seconds = settings_.rate_by_time ? rate_.seconds() : rate_.seconds_since_start();
    asked.out_of_time = options_.max_seconds > 0 && seconds >= options_.max_seconds;
    asked.add(std::exchange(left_requests_, {}));
    return asked;
  }

  void look_at_requests() {
    // A signal may have reached any process.
    ProcessGroup* processes = network_.processes();
    obey(notes_      ? notes_->take_requests()
         : processes ? requests_of_all(*processes, asked_here())
                     : asked_here());
  }

  /// Requests are kept until they are done.
  void obey(const RunRequests& asked) {
    save_asked_ = asked.save;
    save_wanted_ = save_wanted_ || asked.save;
    if (asked.stop) {
      summary_.end = RunEnd::kStopped;
    } else if (asked.out_of_time && summary_.end == RunEnd::kDone) {
      summary_.end = RunEnd::kTime;
    }
  }

  /// Keeps the weights of the best model where no checkpoint will.
  void keep_best(std::int64_t step) {
    const bool alone = options_.save.every.unit == SaveEvery::Unit::kNever || snapshot_ ||
                       options_.commits != nullptr;
    best_is_saved_ = options_.save.every.unit != SaveEvery::Unit::kNever;
    summary_.best_weights = {};  // of the one before
    if (!as_process_0(network_.processes(), alone && step != network_.total_steps())) return;
    summary_.best_weights = exported_weights(checkpoint_of(step, "best"));
  }

  /// Whether a checkpoint is due only because of the best model.
  bool only_improved(bool improved, bool last) const {
    return improved && !last && saving_.enabled() && !save_wanted_ &&
           summary_.end == RunEnd::kDone && options_.save.every.unit != SaveEvery::Unit::kNever;
  }

  /// The reason for a checkpoint after a step; null: none is due.
  const char* decide_to_save(std::int64_t step, bool improved, bool last, bool due) {
    const char* reason = saving_.enabled() ? reason_to_save(improved, last, due) : nullptr;
    if (reason) saving_.decided(step);
    return reason;
  }

  const char* reason_to_save(bool improved, bool last, bool due) {
    if (summary_.end == RunEnd::kStopped) return "signal";
    if (summary_.end == RunEnd::kTime) return "time";
    if (summary_.end == RunEnd::kStalled && !improved) return "final";
    if (std::exchange(save_wanted_, false)) return "asked";
    const bool on = options_.save.every.unit != SaveEvery::Unit::kNever;
    if (improved && on) return "best";
    if (last && on) return "final";
    const bool waits = options_.save.may_wait && parts_ && parts_->is_pending();
    return !waits && due ? "every" : nullptr;
  }

  Checkpoint checkpoint_of(std::int64_t step, const char* reason) {
    if (replicas_) replicas_->publish();
    const std::vector<StageContent> contents = run_.runtime().contents();
    if (!network_.leads()) return {};
    return completed(make_checkpoint(run_, saving_.run(), step, step, 0, contents), reason);
  }

  Checkpoint completed(Checkpoint checkpoint, const char* reason) {
    if (replicas_) checkpoint.replicas = replicas_->record();
    checkpoint.reason = reason;
    checkpoint.learning_rate = rate_.at(checkpoint.step - 1);
    checkpoint.seconds = rate_.seconds();
    checkpoint.best = summary_.best;
    checkpoint.unmeasured = summary_.unmeasured;
    checkpoint.unevaluated = unevaluated_;
    if (!best_is_saved_) checkpoint.best_weights = summary_.best_weights;
    return checkpoint;
  }

  /// Runs what reads data or the model between two steps. If it fails, what the steps before have
  /// trained is saved, and the error says where.
  template <class Body>
  void saving_on_error(std::int64_t step, Body&& body) {
    try {
      body();
    } catch (Error& error) {
      // The stages are as they were; other processes may not have failed.
      const bool sound = error.kind() == ErrorKind::kData || error.kind() == ErrorKind::kModel ||
                         error.kind() == ErrorKind::kUsage;
      if (sound && !network_.processes() && saving_.enabled() && step > first_step_) {
        saving_.finish();
        if (saving_.last_written().filename() != checkpoint_name(step))
          saving_.save(checkpoint_of(step, "error"));
        saving_.finish();
        tell_outcomes();
        const std::filesystem::path saved = saving_.last_written();
        if (!saved.empty()) error.add_frame("training; the last checkpoint is " + saved.string());
      }
      throw;
    }
  }

  void tell_outcomes() {
    for (const SaveOutcome& outcome : saving_.take_outcomes()) {
      summary_.checkpoints += outcome.written ? 1 : 0;
      observer_.on_checkpoint(outcome);
    }
  }

  void report_saves() {
    const std::string reason = saving_.reason_to_end();
    PT_CHECK(reason.empty(), kResource, "{}", reason);
    tell_outcomes();
  }

  /// Mini-batches without a drain between them, to the end of the epoch, of the round that began at
  /// a step. Returns the step that it ends with: earlier where the run is to stop.
  std::int64_t stream(std::int64_t first, const ProgramCut* cut) {
    times_.ask_for_peak();
    last_done_ = steady_seconds();
    StreamCallbacks callbacks;
    callbacks.saves.decide = [&](std::int64_t batches, RunRequests others) {
      left_requests_ = others;
      return decide_inside(first + batches);
    };
    callbacks.saves.save = [&](std::int64_t batches, const char* reason, const auto& saved) {
      save_inside(first, batches, reason, saved);
    };
    callbacks.saves.requests = [&] { return observer_.requests(); };
    callbacks.learning_rate = [&](std::uint64_t step) {
      return rate_.at(static_cast<std::int64_t>(step));
    };
    callbacks.done = [&](const StreamUnits::Done& batch) { note_done(batch); };
    const StreamEnd end = run_stream(run_, loader_, first, cut, callbacks);
    left_requests_ = end.left;
    summary_.end = end.reason;
    if (end.reason != RunEnd::kDone) return first + end.batches;
    observer_.on_round(first + 1, cut ? cut->rest : run_.program(network_.round_units(first)),
                       end.result);
    StepReport utilisation;
    StepTimes::set_utilisation(utilisation, end.result);
    times_.note_bubble(*utilisation.bubble);
    return first + end.batches;
  }

  /// A mini-batch of an asynchronous round.
  void note_done(const StreamUnits::Done& done) {
    StepReport report;
    report.step = static_cast<std::int64_t>(done.step) + 1;
    report.total_steps = network_.total_steps();
    report.epoch = epoch_of(report.step);
    report.loss = done.loss;
    report.accuracy = accuracy(done.correct, done.counted);
    report.learning_rate = rate_.at(static_cast<std::int64_t>(done.step));
    report.seconds = steady_seconds() - last_done_;
    last_done_ = steady_seconds();
    report.samples_per_second = static_cast<double>(done.samples) / report.seconds;
    times_.set_model_utilisation(report);
    times_.note_seconds(report.seconds);
    observer_.on_step(report);
    finite_.check(report);
    report_saves();
  }

  /// What is done after a step inside an asynchronous round.
  RoundSaves::Decision decide_inside(std::int64_t step) {
    obey(asked_here());
    const char* reason =
        decide_to_save(step, /*improved=*/false, /*last=*/false, saving_.is_due(step));
    if (!reason && snapshot_ && snapshot_->is_due()) reason = kForRestart;
    return {reason, summary_.end};
  }

  void save_inside(std::int64_t first, std::int64_t batches, const char* reason,
                   const RoundSaves::Saved& saved) {
    const double before = steady_seconds();
    Checkpoint checkpoint =
        completed(make_checkpoint(run_, saving_.run(), first + batches, first,
                                  network_.round_batches(first), saved.contents),
                  reason);
    if (snapshot_) keep_snapshot(checkpoint, saved.copy_seconds + steady_seconds() - before);
    if (reason != kForRestart) saving_.save(std::move(checkpoint));
    summary_.save_seconds += steady_seconds() - before;
  }

  PipelineRun& run_;
  PlannedNetwork& network_;
  TrainingObserver& observer_;
  const TrainingOptions& options_;
  const OptimizationConfig& settings_;
  std::int64_t first_step_;
  Snapshot* snapshot_ = options_.snapshot;  // null: none is kept, or no longer
  Saving saving_;
  std::optional<CheckpointParts> parts_;  // of several processes, where rounds are steps
  std::optional<StepNotes> notes_;        // likewise
  std::int64_t begun_steps_ = 0;          // of which due_here() speaks
  RunRate rate_;
  Sampler sampler_;
  Loader loader_;
  std::optional<ReplicaRun> replicas_;  // where they do not wait for each other
  BatchUnits units_{run_, /*evaluation=*/false};
  StepCheck check_{run_};
  std::int64_t checked_steps_ = -1;  // done when the last one was computed twice
  TrainingSummary summary_;
  bool best_is_saved_ = false;  // a checkpoint of the best model is written
  bool unevaluated_ = false;    // a validation is due after the last step
  bool save_asked_ = false;     // in the last step
  bool save_wanted_ = false;
  RunRequests left_requests_;  // of other processes in an asynchronous round
  double last_done_ = 0;       // when the mini-batch before was done there
  FiniteCheck finite_{run_, sampler_, saving_};
  OutputMetrics output_metrics_{run_};
  StepTimes times_{network_.graph(), options_.peak_flops};
};

}  // namespace

TrainingSummary train(PipelineRun& run, TrainingObserver& observer,
                      const TrainingOptions& options) {
  return Training(run, observer, options).run();
}

}  // namespace pipetrain
