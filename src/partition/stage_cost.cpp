#include "partition/stage_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace pipetrain {
namespace {

void check_element(const ChainCost& element) {
  for (const double seconds : {element.forward_seconds, element.input_gradient_seconds,
                               element.weight_gradient_seconds, element.step_seconds}) {
    PT_CHECK(std::isfinite(seconds) && seconds >= 0, kUsage,
             "the profile gives node \"{}\" a time of {} seconds; profile again",
             printable(element.name), seconds);
  }
}

}  // namespace

RangeCost between(const RangeCost& begin, const RangeCost& end) {
  RangeCost out;
  // Rounding may leave a range of idle elements a little below zero.
  out.forward_seconds = std::max(0.0, end.forward_seconds - begin.forward_seconds);
  out.input_gradient_seconds =
      std::max(0.0, end.input_gradient_seconds - begin.input_gradient_seconds);
  out.weight_gradient_seconds =
      std::max(0.0, end.weight_gradient_seconds - begin.weight_gradient_seconds);
  out.step_seconds = std::max(0.0, end.step_seconds - begin.step_seconds);
  out.parameter_bytes = end.parameter_bytes - begin.parameter_bytes;
  out.more_gradient_bytes = end.more_gradient_bytes - begin.more_gradient_bytes;
  out.fixed_bytes = end.fixed_bytes - begin.fixed_bytes;
  out.constant_bytes = end.constant_bytes - begin.constant_bytes;
  out.saved_bytes = end.saved_bytes - begin.saved_bytes;
  return out;
}

ChainRanges::ChainRanges(const ChainCosts& chain) : chain_(chain) {
  const std::size_t count = chain.elements.size();
  PT_CHECK(count > 0, kModel, "the model has no operator that could be put into a stage");
  PT_CHECK(chain.forward_bytes.size() == count + 1 && chain.backward_bytes.size() == count + 1,
           kInternal, "a chain of {} elements came with {} and {} cut sizes", count,
           chain.forward_bytes.size(), chain.backward_bytes.size());
  sums_.emplace_back();
  transient_.emplace_back();
  for (const ChainCost& element : chain.elements) {
    check_element(element);
    RangeCost sum = sums_.back();
    add_to(sum, element);
    sum.more_gradient_bytes += element.more_gradient_bytes;
    sum.fixed_bytes += element.fixed_bytes;
    sum.constant_bytes += element.constant_bytes;
    sums_.push_back(sum);
    transient_[0].push_back(element.transient_bytes);
  }
  for (std::size_t width = 2; width <= count; width *= 2) {
    const std::vector<std::size_t>& half = transient_.back();
    std::vector<std::size_t> row(count - width + 1);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = std::max(half[i], half[i + width / 2]);
    transient_.push_back(std::move(row));
  }
  add_repeated();
}

void ChainRanges::add_repeated() {
  std::vector<std::vector<Repeated>> of_first(chain_.elements.size());
  for (int element = 0; element < count(); ++element) {
    for (const Reuse& reuse : chain_.elements[at(element)].reuses) {
      for (int first = reuse.previous + 1; first <= element; ++first) {
        std::vector<Repeated>& list = of_first[at(first)];
        Repeated sum = list.empty() ? Repeated{} : list.back();
        sum.element = element;
        sum.parameter_bytes += reuse.parameter_bytes;
        sum.more_gradient_bytes += reuse.more_gradient_bytes;
        sum.fixed_bytes += reuse.fixed_bytes;
        sum.constant_bytes += reuse.constant_bytes;
        sum.saved_bytes += reuse.saved_bytes;
        if (list.empty() || list.back().element != element) list.emplace_back();
        list.back() = sum;
      }
    }
  }
  repeated_begin_.push_back(0);
  for (const std::vector<Repeated>& list : of_first) {
    repeated_.insert(repeated_.end(), list.begin(), list.end());
    repeated_begin_.push_back(static_cast<int>(repeated_.size()));
  }
}

RangeCost ChainRanges::range(int first, int last) const {
  RangeCost out = between(sums_[at(first)], sums_[at(last)]);
  const int level = std::bit_width(static_cast<unsigned>(last - first)) - 1;
  out.transient_bytes =
      std::max(transient_[at(level)][at(first)], transient_[at(level)][at(last - (1 << level))]);
  const auto list = repeated_.begin() + repeated_begin_[at(first)];
  const auto list_end = repeated_.begin() + repeated_begin_[at(first + 1)];
  const auto after = std::lower_bound(
      list, list_end, last, [](const Repeated& entry, int value) { return entry.element < value; });
  if (after != list) {
    const Repeated& sum = *(after - 1);
    out.parameter_bytes += sum.parameter_bytes;
    out.more_gradient_bytes += sum.more_gradient_bytes;
    out.fixed_bytes += sum.fixed_bytes;
    out.constant_bytes += sum.constant_bytes;
    out.saved_bytes += sum.saved_bytes;
  }
  return out;
}

StageCostModel::StageCostModel(const ChainCosts& chain, const PlanRequest& request, int devices)
    : ranges_(chain), pricing_(request, devices) {
  for (int level = 0; level < pricing_.levels(); ++level) {
    std::vector<double>& row = cut_seconds_.emplace_back();
    for (int cut = 0; cut <= count(); ++cut) {
      row.push_back(pricing_.transfer_seconds(level, ranges_.forward_bytes(cut),
                                              ranges_.backward_bytes(cut)));
    }
  }
}

StagePlace StageCostModel::single_place(int stage, int stages) const {
  StagePlace out;
  out.devices = {stage, 1};
  out.after = stages - stage - 1;
  if (stage > 0) out.level_before = pricing_.level_between(stage - 1, stage);
  if (out.after > 0) out.level_after = pricing_.level_between(stage, stage + 1);
  return out;
}

double StageCostModel::latency(const RangeCost& range, int first, int last, const StagePlace& place,
                               bool recompute) const {
  return pricing_.compute_seconds(range, recompute) /
             pricing_.speed(place.devices.first, place.devices.count) +
         cut_seconds(place.level_before, first) + cut_seconds(place.level_after, last);
}

double StageCostModel::seconds(const RangeCost& range, int first, int last, const StagePlace& place,
                               bool recompute) const {
  const DeviceRange& devices = place.devices;
  return pricing_.seconds(
      latency(range, first, last, place, recompute),
      range.step_seconds / pricing_.speed(devices.first, devices.count),
      pricing_.all_reduce_seconds(range.parameter_bytes, devices.first, devices.count),
      devices.count);
}

StagePlan StageCostModel::stage(int first, int last, const StagePlace& place,
                                bool recompute) const {
  const RangeCost range = ranges_.range(first, last);
  const DeviceRange& devices = place.devices;
  const double speed = pricing_.speed(devices.first, devices.count);
  const ScheduleLoad held = load(place);
  StagePlan out;
  out.first = first;
  out.last = last;
  out.first_device = devices.first;
  out.replicas = devices.count;
  out.forward_seconds = range.forward_seconds / speed;
  out.backward_seconds = (range.input_gradient_seconds + range.weight_gradient_seconds) / speed;
  out.step_seconds = range.step_seconds / request().micro_batches / speed;
  out.transfer_seconds =
      cut_seconds(place.level_before, first) + cut_seconds(place.level_after, last);
  out.all_reduce_seconds =
      pricing_.all_reduce_seconds(range.parameter_bytes, devices.first, devices.count);
  out.seconds = seconds(range, first, last, place, recompute);
  out.parameter_bytes = range.parameter_bytes;
  out.saved_bytes = range.saved_bytes;
  out.in_flight = held.in_flight;
  out.weight_versions = held.weight_versions;
  out.recompute = recompute;
  out.memory = memory(range, first, place, recompute);
  return out;
}

}  // namespace pipetrain
