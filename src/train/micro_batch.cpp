// How a mini-batch is divided into micro-batches.
#include <algorithm>

#include "base/error.h"
#include "base/setting.h"
#include "train/network.h"
#include "train/replica_updates.h"

namespace pipetrain {
namespace {

/// Error (kUsage) if a mini-batch is divided into another number of micro-batches than the `units`
/// that a schedule's file is written for. `fixed`: the model's samples of a micro-batch, if above
/// 0.
void check_divides_into(int units, std::int64_t micro_batches, std::int64_t fixed,
                        const RunConfig& config) {
  if (micro_batches == units) return;
  const std::int64_t batch = samples_of_part(config);
  const std::int64_t parts = config.pipeline.replica_updates.gradients();
  const std::int64_t step = units * std::max<std::int64_t>(1, fixed);
  const std::int64_t below = fixed > 0 ? 0 : batch / step * step;
  const std::string fits = below > 0
                               ? fmt::format("{} or {}", parts * below, parts * (below + step))
                               : fmt::format("{}", parts * step);
  PT_FAIL(kUsage,
          "{} {} is written for {} micro-batches, into which a batch of {} cannot be divided; give "
          "{} {}",
          setting("schedule"), printable(config.pipeline.schedule), units, batch,
          setting("batch-size"), fits);
}

}  // namespace

void Network::choose_micro_batch() {
  PT_CHECK(config_.optimization.batch_size >= 1, kUsage, "{} must be at least 1",
           setting("batch-size"));
  const std::int64_t batch = samples_of_part(config_);
  const std::int64_t fixed = model_.fixed_batch();
  const PipelineConfig& pipeline = config_.pipeline;
  PT_CHECK(!(pipeline.micro_batches && pipeline.micro_batch_size), kUsage,
           "give {} or {}, not both", setting("micro-batches"), setting("micro-batch-size"));
  const bool whole = sends_whole_mini_batches(schedule_.rule());
  if (fixed > 0) {
    PT_CHECK(batch % fixed == 0, kUsage,
             "the model has a fixed batch of {}; {} must be a multiple of it", fixed,
             setting("batch-size"));
    micro_batch_ = fixed;
    config_.optimization.drop_last = true;
  } else if (whole) {
    PT_CHECK(pipeline.micro_batches <= 1 && pipeline.micro_batch_size == 0, kUsage,
             "{} {} does not split mini-batches; leave out {}", setting("schedule"),
             pipeline.schedule,
             setting(pipeline.micro_batch_size ? "micro-batch-size" : "micro-batches"));
    micro_batch_ = batch;
  } else if (pipeline.micro_batch_size > 0) {
    PT_CHECK(pipeline.micro_batch_size <= batch, kUsage, "{} {} is more than {} {}",
             setting("micro-batch-size"), pipeline.micro_batch_size, setting("batch-size"), batch);
    micro_batch_ = pipeline.micro_batch_size;
  } else {
    const std::int64_t automatic =
        schedule_.fixed_units() > 0
            ? schedule_.fixed_units()
            : std::max<std::int64_t>(1, std::min<std::int64_t>(8, batch / 8));
    const std::int64_t wanted = pipeline.micro_batches > 0 ? pipeline.micro_batches : automatic;
    PT_CHECK(wanted <= batch, kUsage, "{} {} is more than {} {}", setting("micro-batches"), wanted,
             setting("batch-size"), batch);
    micro_batch_ = (batch + wanted - 1) / wanted;
  }
  micro_batches_ = (batch + micro_batch_ - 1) / micro_batch_;
  PT_CHECK(!whole || micro_batches_ == 1, kUsage,
           "{} {} does not split mini-batches, but the model has a fixed batch of {}; use "
           "{} {}",
           setting("schedule"), pipeline.schedule, fixed, setting("batch-size"), fixed);
  const int units = schedule_.fixed_units();
  const bool given = pipeline.micro_batch_size > 0 ||
                     (pipeline.micro_batches > 0 && pipeline.micro_batches != units);
  if (mode_ == RunMode::kTrain && units > 0 && (fixed > 0 || !given))
    check_divides_into(units, micro_batches_, fixed, config_);
}

}  // namespace pipetrain
