#include "train/round_saves.h"

#include <utility>

#include "base/clock.h"
#include "pipeline/program/program_cut.h"

namespace pipetrain {

RoundSaves::RoundSaves(
    PipelineRun& run, const Program& program, int micro_batches,
    std::function<const char*(std::int64_t)> wanted,
    std::function<void(std::int64_t, const char*, const std::vector<StageContent>&)> save)
    : run_(run), micro_batches_(micro_batches), wanted_(std::move(wanted)), save_(std::move(save)) {
  for (const int units : cut_points(program)) {
    if (units % micro_batches == 0) points_.insert(units);
  }
}

void RoundSaves::updated(int stage, int replica, int unit, int version) {
  const int units = unit + 1;
  if (replica != 0 || !points_.contains(units)) return;
  const int stages = run_.network().stages();
  std::unique_lock lock(mutex_);
  const auto [place, first] = boundaries_.try_emplace(units);
  Boundary& boundary = place->second;
  if (first) {
    boundary.reason = wanted_(units / micro_batches_);
    if (boundary.reason) boundary.contents.resize(static_cast<std::size_t>(stages));
  }
  if (boundary.reason) {
    lock.unlock();
    const double before = steady_seconds();
    StageContent content = run_.runtime().content(stage, version);
    const double seconds = steady_seconds() - before;
    lock.lock();
    boundary.copy_seconds += seconds;
    boundary.contents[static_cast<std::size_t>(stage)] = std::move(content);
  }
  if (++boundary.arrived < stages) return;
  const Boundary complete = std::move(boundary);
  boundaries_.erase(place);
  if (!complete.reason) return;
  newest_ = complete.contents;
  copy_seconds_ = complete.copy_seconds;
  save_(units / micro_batches_, complete.reason, complete.contents);
}

void RoundSaves::restore_newest() {
  for (int s = 0; s < run_.network().stages(); ++s) {
    StageContent content = newest_[static_cast<std::size_t>(s)];
    content.stashed.clear();
    run_.runtime().restore(s, content);
  }
}

}  // namespace pipetrain
