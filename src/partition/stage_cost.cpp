#include "partition/stage_cost.h"

#include <algorithm>
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

StageCostModel::StageCostModel(const ChainCosts& chain, const PlanRequest& request)
    : chain_(chain), request_(request) {
  const std::size_t count = chain.elements.size();
  PT_CHECK(count > 0, kModel, "the model has no operator that could be put into a stage");
  PT_CHECK(chain.forward_bytes.size() == count + 1 && chain.backward_bytes.size() == count + 1,
           kInternal, "a chain of {} elements came with {} and {} cut sizes", count,
           chain.forward_bytes.size(), chain.backward_bytes.size());
  PT_CHECK(request.micro_batches >= 1, kUsage, "--micro-batches must be at least 1, got {}",
           request.micro_batches);
  PT_CHECK(request.transfer.latency_seconds >= 0 && request.transfer.bytes_per_second > 0, kUsage,
           "a link needs a latency of at least 0 s and a bandwidth above 0 B/s, got {} and {}",
           request.transfer.latency_seconds, request.transfer.bytes_per_second);
  PT_CHECK(std::isfinite(request.optimizer_bytes_per_parameter_byte) &&
               request.optimizer_bytes_per_parameter_byte >= 0,
           kInternal, "optimizer state of {} bytes per parameter byte",
           request.optimizer_bytes_per_parameter_byte);
  for (const ChainCost& element : chain.elements) check_element(element);
  cut_seconds_.assign(count + 1, 0.0);
  for (std::size_t cut = 1; cut < count; ++cut) {
    for (const std::size_t bytes : {chain.forward_bytes[cut], chain.backward_bytes[cut]}) {
      if (bytes == 0) continue;  // nothing to send, no message
      cut_seconds_[cut] += request.transfer.latency_seconds +
                           static_cast<double>(bytes) / request.transfer.bytes_per_second;
    }
  }
}

std::vector<RangeCost> StageCostModel::ranges_from(int first) const {
  std::vector<RangeCost> out;
  out.reserve(static_cast<std::size_t>(count() - first));
  RangeCost sum;
  for (int at = first; at < count(); ++at) {
    const ChainCost& element = chain_.elements[static_cast<std::size_t>(at)];
    sum.forward_seconds += element.forward_seconds;
    sum.input_gradient_seconds += element.input_gradient_seconds;
    sum.weight_gradient_seconds += element.weight_gradient_seconds;
    sum.step_seconds += element.step_seconds;
    sum.parameter_bytes += element.parameter_bytes;
    sum.fixed_bytes += element.fixed_bytes;
    sum.saved_bytes += element.saved_bytes;
    sum.transient_bytes = std::max(sum.transient_bytes, element.transient_bytes);
    for (const Reuse& reuse : element.reuses) {
      if (reuse.previous >= first) continue;
      sum.parameter_bytes += reuse.parameter_bytes;
      sum.fixed_bytes += reuse.fixed_bytes;
      sum.saved_bytes += reuse.saved_bytes;
    }
    out.push_back(sum);
  }
  return out;
}

std::size_t StageCostModel::cut_bytes(int cut) const {
  if (cut == 0 || cut == count()) return 0;
  const auto at = static_cast<std::size_t>(cut);
  return chain_.forward_bytes[at] + chain_.backward_bytes[at];
}

double StageCostModel::compute_seconds(const RangeCost& range, bool recompute) const {
  return (recompute ? 2 : 1) * range.forward_seconds + range.input_gradient_seconds +
         range.weight_gradient_seconds + range.step_seconds / request_.micro_batches;
}

MemoryNeed StageCostModel::memory(const RangeCost& range, int first, ScheduleLoad load,
                                  bool recompute) const {
  const auto in_flight = static_cast<std::size_t>(load.in_flight);
  MemoryNeed out;
  out.weight_bytes =
      (range.parameter_bytes + range.fixed_bytes) * static_cast<std::size_t>(load.weight_versions);
  out.gradient_bytes = range.parameter_bytes;
  out.optimizer_bytes = static_cast<std::size_t>(std::llround(
      static_cast<double>(range.parameter_bytes) * request_.optimizer_bytes_per_parameter_byte));
  // With recompute only the stage's inputs wait; the activations exist for the one micro-batch that
  // runs again.
  out.activation_bytes =
      recompute
          ? in_flight * chain_.forward_bytes[static_cast<std::size_t>(first)] + range.saved_bytes
          : in_flight * range.saved_bytes;
  out.transient_bytes = range.transient_bytes;
  return out;
}

StagePlan StageCostModel::stage(const RangeCost& range, int first, int last, ScheduleLoad load,
                                bool recompute) const {
  StagePlan out;
  out.first = first;
  out.last = last;
  out.forward_seconds = range.forward_seconds;
  out.backward_seconds = range.input_gradient_seconds + range.weight_gradient_seconds;
  out.step_seconds = range.step_seconds / request_.micro_batches;
  out.transfer_seconds = cut_seconds(first) + cut_seconds(last);
  out.seconds = seconds(range, first, last, recompute);
  out.parameter_bytes = range.parameter_bytes;
  out.saved_bytes = range.saved_bytes;
  out.in_flight = load.in_flight;
  out.weight_versions = load.weight_versions;
  out.recompute = recompute;
  out.memory = memory(range, first, load, recompute);
  return out;
}

}  // namespace pipetrain
