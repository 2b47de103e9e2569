#include "pipeline/runtime/device_times.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/index.h"

namespace pipetrain {
namespace {

constexpr std::size_t kMostOpen = 2048;

}  // namespace

void DeviceTimes::start(double round_start) {
  for (Span& span : open_) free_.push_back(std::move(span));
  open_.clear();
  read_.clear();
  if (!origin_) origin_ = stream_.device().make_timed_point();
  stream_.synchronize();
  const double before = steady_seconds();
  stream_.record(*origin_);
  origin_->synchronize();
  origin_seconds_ = (before + steady_seconds()) / 2 - round_start;
}

void DeviceTimes::begin(int index) {
  if (open_.empty() || open_.back().index != index) {
    if (open_.size() >= kMostOpen) read_some();
    if (free_.empty())
      free_.push_back(
          {-1, false, stream_.device().make_timed_point(), stream_.device().make_timed_point()});
    open_.push_back(std::move(free_.back()));
    free_.pop_back();
    open_.back().index = index;
    open_.back().ended = false;
  }
  stream_.record(*open_.back().begin);
}

void DeviceTimes::end() {
  if (open_.empty()) return;
  Span& span = open_.back();
  if (!std::exchange(span.ended, true)) stream_.record(*span.end);
}

Event DeviceTimes::read(Span span) {
  Event event;
  event.index = span.index;
  event.start = origin_seconds_ + span.begin->seconds_since(*origin_);
  event.end = span.ended ? origin_seconds_ + span.end->seconds_since(*origin_) : event.start;
  free_.push_back(std::move(span));
  return event;
}

void DeviceTimes::read_some() {
  for (std::size_t left = kMostOpen / 2; left > 0; --left) {
    Span span = std::move(open_.front());
    open_.pop_front();
    (span.ended ? span.end : span.begin)->synchronize();
    read_.push_back(read(std::move(span)));
  }
  // Clocks are most precise over short times.
  std::swap(origin_, free_.back().begin);
  origin_seconds_ = read_.back().start;
}

void DeviceTimes::finish(std::span<Event> events) {
  for (; !open_.empty(); open_.pop_front()) read_.push_back(read(std::move(open_.front())));
  for (const Event& event : read_) {
    events[at(event.index)].start = event.start;
    events[at(event.index)].end = event.end;
  }
}

void time_receives(const Program& program, std::span<std::vector<Event>> events) {
  // The producer of a micro-batch's values or gradients, by stage.
  using Key = std::tuple<int, int, bool>;
  struct Place {
    std::size_t device, index;
  };
  std::map<Key, Place> computes;
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    for (std::size_t i = 0; i < events[d].size(); ++i) {
      const Instruction& one = program.device[d][i];
      const bool gradient = one.kind == Kind::kBackward || one.kind == Kind::kBackwardInput;
      if (gradient || one.kind == Kind::kForward)
        computes[{one.stage, one.micro_batch, gradient}] = {d, i};
    }
  }
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    const auto& list = program.device[d];
    if (events[d].empty()) continue;
    std::vector<double> free_at(list.size(), 0);  // when all instructions before are over
    for (std::size_t i = 1; i < list.size(); ++i) {
      const bool works = is_compute(list[i - 1].kind) || list[i - 1].kind == Kind::kUpdate;
      free_at[i] = std::max(free_at[i - 1], works ? events[d][i - 1].end : 0);
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind != Kind::kReceive) continue;
      const Transfer& moved = program.transfers[at(list[i].transfer)];
      const auto sender = computes.find({moved.from_stage, moved.micro_batch, moved.gradient});
      const auto reader = computes.find({moved.to_stage, moved.micro_batch, moved.gradient});
      if (sender == computes.end() || reader == computes.end()) continue;
      Event& event = events[d][i];
      event.start = events[sender->second.device][sender->second.index].end;
      const double wanted = free_at[reader->second.index];
      const double begins = events[d][reader->second.index].start;
      event.end = event.start > wanted ? std::max(event.start, begins) : event.start;
    }
  }
}

}  // namespace pipetrain
