#include "train/round_saves.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "pipeline/program/program_cut.h"

namespace pipetrain {

RoundSaves::RoundSaves(PipelineRun& run, const Program& program, int micro_batches, int done,
                       Callbacks callbacks)
    : run_(run), micro_batches_(micro_batches), callbacks_(std::move(callbacks)) {
  for (const int units : cut_points(program)) {
    if (units % micro_batches == 0 && units > done) points_.push_back(units);
  }
  for (const auto& replicas : program.placement)
    stages_here_ += run.network().is_here(replicas.front()) ? 1 : 0;
}

bool RoundSaves::is_decided(int unit) const {
  const std::lock_guard lock(mutex_);
  return end_ != kNever || decided_ == points_.size() || points_[decided_] > unit;
}

int RoundSaves::end_before(int unit) {
  if (mail_) mail_->poll();
  if (!leads()) {
    const RunRequests asked = callbacks_.requests();
    if (asked.stop || asked.save) mail_->send(asked);
    mail_->wait_until([&] { return is_decided(unit); });
  } else if (!is_decided(unit)) {
    const std::lock_guard lock(mutex_);
    while (end_ == kNever && decided_ < points_.size() && points_[decided_] <= unit) decide_next();
  }
  const int end = this->end();
  return end <= unit ? end : kNever;
}

void RoundSaves::decide_next() {
  const int units = points_[decided_++];
  const Decision decision =
      callbacks_.decide(units / micro_batches_, std::exchange(others_, RunRequests{}));
  const RoundMail::Decision told = {units, decision.reason != nullptr, decision.end};
  if (mail_) mail_->send(told);
  if (decision.end != RunEnd::kDone) {
    end_ = units;
    reason_ = decision.end;
  }
  if (decision.reason) boundaries_[units].reason = decision.reason;
}

void RoundSaves::take(const RoundMail::Decision& decision) {
  const std::lock_guard lock(mutex_);
  ++decided_;
  if (decision.end != RunEnd::kDone) {
    end_ = decision.units;
    reason_ = decision.end;
  }
  if (decision.saves) boundaries_[decision.units];
}

void RoundSaves::take(RunRequests requests) {
  const std::lock_guard lock(mutex_);
  others_.add(requests);
}

void RoundSaves::take(RoundMail::Content content) {
  const std::lock_guard lock(mutex_);
  Boundary& boundary = boundaries_[content.units];
  boundary.saved.contents.resize(at(run_.network().stages()));
  boundary.saved.contents[at(content.stage)] = std::move(content.content);
  boundary.saved.copy_seconds += content.copy_seconds;
  ++boundary.arrived;
}

void RoundSaves::updated(int stage, int replica, int unit, int version) {
  const int units = unit + 1;
  if (replica != 0 || !std::binary_search(points_.begin(), points_.end(), units)) return;
  end_before(units);  // what is done here is known from now on
  {
    const std::lock_guard lock(mutex_);
    if (!boundaries_.contains(units)) return;
  }
  const double before = steady_seconds();
  RoundMail::Content content = {stage, units, 0, run_.runtime().content(stage, version)};
  content.copy_seconds = steady_seconds() - before;
  if (!leads()) return mail_->send(content);
  take(std::move(content));
  std::unique_lock lock(mutex_);
  if (++boundaries_[units].arrived_from_here < stages_here_) return;
  lock.unlock();
  finish(units);
}

/// The last stage here saves, when the others' contents are there.
void RoundSaves::finish(int units) {
  const auto is_complete = [&] {
    const std::lock_guard lock(mutex_);
    return boundaries_[units].arrived == run_.network().stages();
  };
  if (mail_) mail_->wait_until(is_complete);
  const std::lock_guard lock(mutex_);
  const auto place = boundaries_.find(units);
  const Boundary complete = std::move(place->second);
  boundaries_.erase(place);
  callbacks_.save(units / micro_batches_, complete.reason, complete.saved);
}

int RoundSaves::end() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

RunEnd RoundSaves::reason_to_end() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

RunRequests RoundSaves::left_requests() const {
  const std::lock_guard lock(mutex_);
  return others_;
}

}  // namespace pipetrain
