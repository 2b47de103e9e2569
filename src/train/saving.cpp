#include "train/saving.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"

namespace pipetrain {
namespace {

constexpr int kMostFailures = 3;

/// Units of what is counted: k and M before them mean thousands and millions, as in "2kep".
constexpr std::string_view kCounted[] = {"", "step", "steps", "ep", "epoch", "epochs"};

/// "10min" → 10 and "min", with "ep" in `counted` also "2kep" → 2000 and "ep".
std::pair<double, std::string> split_unit(const std::string& option, std::string_view examples,
                                          const std::string& text,
                                          std::span<const std::string_view> counted) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(end, text.data() + text.size());
  const double scale = unit.starts_with('k') ? 1e3 : unit.starts_with('M') ? 1e6 : 1;
  if (scale > 1 && std::ranges::count(counted, unit.substr(1)) > 0) {
    unit.erase(0, 1);
    value *= scale;
  }
  PT_CHECK(error == std::errc() && std::isfinite(value) && value > 0 && value < 1e15, kUsage,
           "{} takes a positive number with a unit, such as {}, not \"{}\"", option, examples,
           printable(text));
  return {value, unit};
}

/// 0: not a unit of time.
double seconds_of(const std::string& unit) {
  if (unit == "s" || unit == "sec") return 1;
  if (unit == "min" || unit == "m") return 60;
  if (unit == "h") return 3600;
  if (unit == "d") return 86400;
  return 0;
}

}  // namespace

void check_finite(const Checkpoint& checkpoint) {
  for (const auto& [name, tensor] : checkpoint.weights) {
    if (tensor.dtype() != DType::kFloat32) continue;
    const auto values = tensor.span<float>();
    PT_CHECK(std::ranges::all_of(values, [](float v) { return std::isfinite(v); }), kDiverged,
             "\"{}\" is not finite after step {}", printable(name), checkpoint.step);
  }
}

double parse_duration(const std::string& option, const std::string& text) {
  const auto [value, unit] = split_unit(option, "90, 10min or 2h", text, {});
  const double scale = unit.empty() ? 1 : seconds_of(unit);
  PT_CHECK(scale > 0, kUsage, "{} takes the units s, min, h and d, not \"{}\"", option,
           printable(unit));
  return value * scale;
}

SaveEvery SaveEvery::parse(const std::string& text) { return parse(text, setting("save-every")); }

SaveEvery SaveEvery::parse(const std::string& text, const std::string& option) {
  if (text == "never" || text == "0") return {};
  const auto [value, unit] = split_unit(option, "100, 2ep or 10min", text, kCounted);
  if (unit.empty() || unit == "step" || unit == "steps") {
    PT_CHECK(value == std::floor(value), kUsage, "{} takes whole steps, not \"{}\"", option,
             printable(text));
    return {Unit::kSteps, value};
  }
  if (unit == "ep" || unit == "epoch" || unit == "epochs") return {Unit::kEpochs, value};
  PT_CHECK(seconds_of(unit) > 0, kUsage, "{} takes the units steps, ep, s, min and h, not \"{}\"",
           option, printable(unit));
  return {Unit::kSeconds, value * seconds_of(unit)};
}

Saving::Saving(const SaveSettings& settings, std::int64_t step, std::int64_t batches_per_epoch)
    : settings_(settings), last_step_(step), last_seconds_(steady_seconds()) {
  if (!enabled()) return;
  if (settings_.every.unit == SaveEvery::Unit::kSteps)
    period_ = static_cast<std::int64_t>(settings_.every.value);
  if (settings_.every.unit == SaveEvery::Unit::kEpochs) {
    period_ = std::max<std::int64_t>(
        1, std::llround(settings_.every.value * static_cast<double>(batches_per_epoch)));
  }
  thread_ = std::thread([this] { write_checkpoints(); });
}

Saving::~Saving() {
  {
    const std::lock_guard lock(mutex_);
    // After an error the best model may still wait for its turn.
    if (!waiting_) waiting_ = std::exchange(deferred_, std::nullopt);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Saving::is_due(std::int64_t step) const {
  if (!enabled() || step == last_step_) return false;
  const bool due = settings_.every.unit == SaveEvery::Unit::kSeconds
                       ? steady_seconds() - last_seconds_ >= settings_.every.value
                       : period_ > 0 && step / period_ > last_step_ / period_;
  if (!due || !settings_.may_wait) return due;
  if (defers()) return false;
  const std::lock_guard lock(mutex_);
  return !waiting_ && !writing_;
}

void Saving::decided(std::int64_t step) {
  last_step_ = step;
  last_seconds_ = steady_seconds();
}

void Saving::save(Checkpoint checkpoint) {
  // What waited may be newer: parts of several processes come with a later round.
  if (deferred_ && deferred_->step < checkpoint.step)
    hand_over(*std::exchange(deferred_, std::nullopt));
  hand_over(std::move(checkpoint));
}

void Saving::hand_over(Checkpoint checkpoint) {
  const double start = steady_seconds();
  std::unique_lock lock(mutex_);
  wait_until_written(lock, [&] { return !waiting_; });
  waiting_ = std::move(checkpoint);
  changed_.notify_all();
  waited_seconds_ += steady_seconds() - start;
}

void Saving::wait_until_written(std::unique_lock<std::mutex>& lock,
                                const std::function<bool()>& ready) {
  const std::chrono::duration<double> patience(settings_.patience_seconds);
  while (!changed_.wait_for(lock, patience, ready)) {
    log_warning("checkpoint",
                "training waits for the checkpoint of step {}, on which {:.1f} s have been spent",
                written_step_, steady_seconds() - writing_since_);
  }
}

bool Saving::defers() const {
  return settings_.may_wait && steady_seconds() - last_seconds_ < settings_.least_seconds;
}

void Saving::save_deferred() {
  if (!deferred_ || defers()) return;
  last_seconds_ = steady_seconds();
  hand_over(*std::exchange(deferred_, std::nullopt));
}

void Saving::finish() {
  if (deferred_) hand_over(*std::exchange(deferred_, std::nullopt));
  const double start = steady_seconds();
  std::unique_lock lock(mutex_);
  wait_until_written(lock, [&] { return !waiting_ && !writing_; });
  waited_seconds_ += steady_seconds() - start;
}

void Saving::note_failure(std::string failure) {
  const std::lock_guard lock(mutex_);
  ++failures_;
  last_failure_ = failure;
  outcomes_.push_back({std::nullopt, std::move(failure)});
}

double Saving::write_seconds() const {
  const std::lock_guard lock(mutex_);
  return write_seconds_;
}

std::vector<SaveOutcome> Saving::take_outcomes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(outcomes_, {});
}

std::string Saving::reason_to_end() const {
  const std::lock_guard lock(mutex_);
  const int allowed = settings_.stop_on_error ? 1 : kMostFailures;
  if (failures_ < allowed) return {};
  return fmt::format(
      "{}{}{}", last_failure_,
      allowed == 1 ? "" : fmt::format("; {} checkpoints in a row could not be saved", failures_),
      last_written_.empty() ? ""
                            : fmt::format("; the last good one is {}", last_written_.string()));
}

std::filesystem::path Saving::last_written() const {
  const std::lock_guard lock(mutex_);
  return last_written_;
}

void Saving::write_checkpoints() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || waiting_; });
    if (!waiting_) return;
    const Checkpoint checkpoint = *std::exchange(waiting_, std::nullopt);
    writing_ = true;
    written_step_ = checkpoint.step;
    writing_since_ = steady_seconds();
    changed_.notify_all();
    lock.unlock();
    SaveOutcome outcome;
    const double start = steady_seconds();
    try {
      if (settings_.only_finite) check_finite(checkpoint);
      outcome.written = write_checkpoint(settings_.folder, checkpoint);
      outcome.written->deleted = delete_old_checkpoints(
          settings_.folder, settings_.keep,
          checkpoint.best ? std::optional(checkpoint.best->step) : std::nullopt, checkpoint.step);
    } catch (const Error& error) {
      outcome.failure = error.message();
    } catch (const std::exception& error) {
      outcome.failure = fmt::format("a checkpoint could not be written: {}", error.what());
    }
    lock.lock();
    writing_ = false;
    write_seconds_ += steady_seconds() - start;
    failures_ = outcome.written ? 0 : failures_ + 1;
    if (outcome.written) last_written_ = outcome.written->path;
    if (!outcome.written) last_failure_ = outcome.failure;
    outcomes_.push_back(std::move(outcome));
    changed_.notify_all();
  }
}

}  // namespace pipetrain
