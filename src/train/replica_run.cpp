#include "train/replica_run.h"

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/index.h"
#include "base/setting.h"
#include "processes/process_group.h"
#include "train/commits.h"
#include "train/process_agreement.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

/// Between two looks at something else than this process's replicas.
constexpr std::chrono::milliseconds kPause(1'000);

/// Whether two runs differ in what a replay takes from its settings rather than from the record.
/// Validations change no update.
bool has_other_settings(const RunRecord& one, const RunRecord& other) {
  static const std::set<std::string> recorded = {"steps", "replica-mode", "lr", "validation"};
  const auto numbers = [&](const RunRecord& run) {
    std::vector<Setting> kept = run.numbers;
    std::erase_if(kept, [&](const Setting& each) {
      return recorded.contains(each.first) || one.predates(each.first) ||
             other.predates(each.first);
    });
    return kept;
  };
  return numbers(one) != numbers(other);
}

ReplicaRecord record_at_start(const PipelineRun& run, const RunRecord& identity,
                              const Checkpoint* resumed) {
  const ReplicaUpdates& updates = run.network().replica_updates();
  if (!resumed) {
    ReplicaRecord record;
    record.start = checksum_of(run.runtime().content(0).weights);
    return record;
  }
  PT_CHECK(resumed->replicas, kData, "the checkpoint has no record of its replicas' updates");
  ReplicaRecord record = *resumed->replicas;
  PT_CHECK(record.rates.size() == at(resumed->step) &&
               record.parts.size() == at(resumed->step) * at(updates.gradients()),
           kUsage,
           "the updates of the checkpoint add another number of gradients than {} says; leave it "
           "out",
           setting("replica-mode"));
  const std::int64_t given = resumed->step + std::ssize(record.unfinished);
  PT_CHECK(
      updates.mode == ReplicaMode::kAsync ? record.next_part == given : record.next_part >= given,
      kData, "the checkpoint's record is damaged: {} parts were given to replicas, not {}", given,
      record.next_part);
  if (record.changed_at == 0 && has_other_settings(identity, resumed->run))
    record.changed_at = resumed->step;
  return record;
}

}  // namespace

ReplicaRun::ReplicaRun(PipelineRun& run, const RunRecord& identity, const Checkpoint* resumed,
                       Commits* commits)
    : run_(run),
      network_(run.network()),
      record_(record_at_start(run, identity, resumed)),
      weights_(network_.graph(), network_.config().optimization, run.runtime().content(0)),
      turns_(network_.replica_updates(),
             {resumed ? resumed->step : 0, record_.next_part, record_.unfinished},
             network_.total_steps()),
      gradients_(at(network_.replica_updates().replicas)),
      has_all_weights_(gradients_.size(), false),
      published_(turns_.version()),
      commits_(commits),
      local_(run, /*uses_run=*/false) {
  ProcessGroup* processes = network_.replica_processes();
  if (!processes) return;
  ReplicaMail::Receivers receivers;
  receivers.gradient = [this](int replica, PartGradient gradient) {
    note_gradient(replica, std::move(gradient));
  };
  receivers.requests = [this](const RunRequests& asked) { requests_.add(asked); };
  receivers.copy_is_kept = [commits](const std::string& why) { commits->copy_is_kept(why); };
  mail_ = std::make_unique<ReplicaMail>(*processes, network_.config().pipeline.timeout_seconds,
                                        std::move(receivers));
  if (!commits) return;
  commits->hand_over_by(
      [this](int process, const std::string& piece) { mail_->send_copy(process, piece); });
}

AppliedUpdate ReplicaRun::next(double learning_rate) {
  const double begin = steady_seconds();
  if (made_at_.empty()) made_at_.push_back(begin);
  for (;;) {
    give_out();
    const std::vector<ReplicaTurns::Contribution> used = turns_.update();
    if (used.empty()) {
      take_in();
      continue;
    }
    AppliedUpdate made = update(used, learning_rate);
    give_out();  // who computes while this thread reports, evaluates and saves
    if (commits_) commits_->note_time(steady_seconds() - begin);
    return made;
  }
}

/// Gives work to all replicas that have a turn.
void ReplicaRun::give_out() {
  for (int r = 0; r < static_cast<int>(gradients_.size()); ++r) {
    const std::optional<DataPart> part = turns_.give_out(r);
    if (!part) continue;
    if (local_.range().contains(r)) {
      local_.start(r, *part, weights_for(r));
    } else {
      const int process =
          process_of(r, static_cast<int>(gradients_.size()), network_.replica_processes());
      mail_->send_part(process, r, *part, weights_for(r));
    }
  }
}

/// At first all tensors, then those that updates change.
NamedTensors ReplicaRun::weights_for(int replica) {
  const NamedTensors& all = weights_.content().weights;
  if (!has_all_weights_[at(replica)]) {
    has_all_weights_[at(replica)] = true;
    return all;
  }
  NamedTensors trained;
  for (const Parameter& parameter : network_.graph().parameters) {
    if (parameter.gradient) trained.insert(*all.find(parameter.name));
  }
  return trained;
}

/// Waits until a gradient has come.
void ReplicaRun::take_in() {
  PollPause pause;
  for (;;) {
    if (std::optional<LocalReplicas::Done> done = local_.take())
      return note_gradient(done->replica, std::move(done->gradient));
    if (!mail_) {
      local_.wait(kPause);
    } else if (mail_->poll()) {
      return;
    } else {
      pause.rest();
    }
  }
}

void ReplicaRun::note_gradient(int replica, PartGradient gradient) {
  if (turns_.hand_in(replica)) gradients_[at(replica)] = std::move(gradient);
}

AppliedUpdate ReplicaRun::update(const std::vector<ReplicaTurns::Contribution>& used,
                                 double learning_rate) {
  AppliedUpdate made;
  std::vector<PartGradient*> parts;
  for (const ReplicaTurns::Contribution& each : used) {
    PartGradient& gradient = gradients_[at(each.replica)];
    PT_CHECK(gradient.part == each.part, kInternal, "replica {} has computed part {}, not {}",
             each.replica, gradient.part.number, each.part.number);
    parts.push_back(&gradient);
    made.parts.push_back(each.part);
    made.samples += gradient.samples;
    made.counted += gradient.counted;
    made.correct += gradient.correct;
  }
  const std::vector<double> weights = relative_weights(parts);
  for (std::size_t p = 0; p < parts.size(); ++p)
    made.loss += weights[p] * parts[p]->loss / static_cast<double>(parts.size());
  made.gradient_norm = weights_.update(parts, learning_rate, turns_.version());
  record_.parts.insert(record_.parts.end(), made.parts.begin(), made.parts.end());
  record_.rates.push_back(learning_rate);
  // Gradients come in bursts.
  made_at_.push_back(steady_seconds());
  made.seconds = (made_at_.back() - made_at_.front()) / static_cast<double>(made_at_.size() - 1);
  if (made_at_.size() > gradients_.size()) made_at_.pop_front();
  return made;
}

void ReplicaRun::publish() {
  if (std::exchange(published_, turns_.version()) != turns_.version())
    run_.runtime().restore(0, weights_.content());
}

const ReplicaRecord& ReplicaRun::record() {
  ReplicaTurns::Position position = turns_.position();
  record_.next_part = position.next_part;
  record_.unfinished = std::move(position.unfinished);
  return record_;
}

RunRequests ReplicaRun::take_requests() { return std::exchange(requests_, {}); }

void ReplicaRun::end(RunEnd end) {
  if (!mail_) return;
  mail_->send_end(end);
  mail_->close();
}

RunEnd serve_replicas(PipelineRun& run, TrainingObserver& observer, Commits* commits) {
  const Network& network = run.network();
  LocalReplicas local(run, /*uses_run=*/true);
  std::optional<RunEnd> end;
  ReplicaMail::Receivers receivers;
  receivers.part = [&](int replica, const DataPart& part, const NamedTensors& weights) {
    local.start(replica, part, weights);
  };
  receivers.end = [&](RunEnd reason) { end = reason; };
  std::optional<std::string> kept;  // why a piece of a copy could not be, or nothing
  receivers.copy = [&](std::string_view piece) {
    kept = commits ? commits->keep_copy(piece) : "it has no memory for it";
  };
  ReplicaMail mail(*network.replica_processes(), network.config().pipeline.timeout_seconds,
                   std::move(receivers));
  PollPause pause;
  bool has_asked_to_stop = false;
  while (!end) {
    RunRequests asked = observer.requests();
    if (asked.stop && std::exchange(has_asked_to_stop, true)) asked.stop = false;
    if (asked.stop || asked.save) mail.send_requests(asked);
    std::optional<LocalReplicas::Done> done = local.take();
    if (done) mail.send_gradient(done->replica, done->gradient);
    if (kept) mail.send_copy_is_kept(*std::exchange(kept, std::nullopt));
    if (mail.poll() || done) {
      pause = {};
    } else {
      pause.rest();
    }
  }
  mail.close();
  return *end;
}

}  // namespace pipetrain
