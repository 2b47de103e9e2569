#include "cli/output/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/safe_text.h"
#include "base/units.h"
#include "cli/output/progress_line.h"

namespace pipetrain {

std::size_t terminal_width(int descriptor) {
  if (const char* columns = std::getenv("COLUMNS")) {
    const long wanted = std::strtol(columns, nullptr, 10);
    if (wanted > 20 && wanted < 10000) return static_cast<std::size_t>(wanted);
  }
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 100;
}

std::string wrapped_at_words(std::string_view text, std::size_t begin, std::size_t indent,
                             std::size_t width) {
  std::string out;
  std::size_t room = width - std::min(begin, width);
  while (columns_of(text) > room) {
    // The last space within the room; columns are no bytes.
    std::size_t end = std::string_view::npos;
    for (std::size_t at = text.find(' '); at != std::string_view::npos;
         at = text.find(' ', at + 1)) {
      if (end != std::string_view::npos && columns_of(text.substr(0, at)) > room) break;
      end = at;
    }
    if (end == std::string_view::npos) break;
    out += fmt::format("{}\n{:<{}}", text.substr(0, end), "", indent);
    text.remove_prefix(std::min(text.find_first_not_of(' ', end), text.size()));
    room = width - std::min(indent, width);
  }
  return out + std::string(text);
}

std::string message_for_terminal(std::string_view text) {
  constexpr std::size_t kIndent = 9;        // behind "data     "
  const std::size_t end = text.find('\n');  // below it there may be a table
  const std::string first =
      wrapped_at_words(text.substr(0, end), 0, kIndent, terminal_width(STDERR_FILENO));
  return end == std::string_view::npos ? first : first + std::string(text.substr(end));
}

bool colours_suit(int descriptor) {
  const char* refused = std::getenv("NO_COLOR");
  if (!refused || !*refused) refused = std::getenv("PIPETRAIN_NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(descriptor) != 0 && (!refused || !*refused) &&
         (!terminal || std::string_view(terminal) != "dumb");
}

Progress::Progress(int log_every, bool quiet, double seconds, std::int64_t total_steps)
    : log_every_(log_every),
      quiet_(quiet),
      color_(colours_suit(STDERR_FILENO)),
      seconds_(seconds),
      start_(steady_seconds()),
      total_steps_(total_steps) {
  const char* terminal = std::getenv("TERM");
  terminal_ = isatty(STDERR_FILENO) != 0 && (!terminal || std::string_view(terminal) != "dumb");
}

void Progress::clear() {
  if (lines_ > 1) std::fputs("\r\033[K\033[1A", stderr);
  if (lines_ > 0) std::fputs("\r\033[K", stderr);
  lines_ = 0;
}

void Progress::lasting(const std::string& text) {
  if (quiet_) return;
  clear();
  std::fprintf(stderr, "%s%s\n", terminal_ ? "\r\033[K" : "", safe_text(text).c_str());
}

void Progress::live(const std::string& text) {
  if (quiet_) return;
  clear();
  const std::string bars = stage_bars(busy_, terminal_width(STDERR_FILENO) - 1, color_);
  std::fprintf(stderr, "\r\033[K%s%s%s", safe_text(text).c_str(), bars.empty() ? "" : "\n",
               bars.c_str());
  std::fflush(stderr);
  lines_ = bars.empty() ? 1 : 2;
}

void Progress::average(const StepReport& report) {
  if (report.stage_busy.empty()) return;
  if (busy_.size() != report.stage_busy.size()) busy_ = report.stage_busy;
  for (std::size_t s = 0; s < busy_.size(); ++s)
    busy_[s] += 0.2 * (report.stage_busy[s] - busy_[s]);
}

/// By wall-clock time, so that validations and checkpoints count; the first step, which is
/// start-up, does not.
double Progress::remaining_seconds(const StepReport& report) const {
  const std::int64_t done = report.step - first_;
  if (first_ == 0 || done < 1) return -1;
  const double each = (steady_seconds() - second_step_) / static_cast<double>(done);
  const double left = each * static_cast<double>(report.total_steps - report.step);
  return seconds_ > 0 ? std::max(0.0, std::min(left, start_ + seconds_ - steady_seconds())) : left;
}

/// Seconds between two lines by the clock: a long run has less to say.
double Progress::pause(double time) const {
  constexpr double kLeast = 1, kMost = 60, kLines = 100;
  return std::clamp((time - start_) / kLines, kLeast, kMost);
}

void Progress::step(const StepReport& report) {
  const bool first = first_ == 0;
  const double time = steady_seconds();
  const double since = time - last_line_;
  constexpr double kLongest = 60, kLive = 0.1;
  const bool by_clock = log_every_ == 0 ? since >= pause(time) : !terminal_ && since >= kLongest;
  const bool due = first || report.step == 1 || report.step == report.total_steps || by_clock ||
                   (log_every_ > 0 && report.step % log_every_ == 0);
  average(report);
  const std::size_t width = terminal_ ? terminal_width(STDERR_FILENO) - 1 : 0;
  const std::string text = progress_line(report, remaining_seconds(report), width);
  unsaid_step_ = due ? "" : text;
  if (due) {
    last_line_ = last_live_ = time;
    lasting(text);
  } else if (terminal_ && time - last_live_ >= kLive) {
    last_live_ = time;
    live(text);
  }
  if (first) {
    first_ = report.step;
    second_step_ = time;
  }
}

void Progress::status(const StepReport& report) {
  const bool quiet = std::exchange(quiet_, false);
  lasting(progress_line(report, remaining_seconds(report), 0));
  quiet_ = quiet;
}

void Progress::evaluation(const EvaluationReport& report) {
  const std::string text = validation_line(report, total_steps_);
  const double time = steady_seconds();
  const bool due = log_every_ > 0 || time - std::max(last_validation_, start_) >= pause(time);
  unsaid_validation_ = due ? "" : text;
  if (!due) return;
  last_validation_ = time;
  lasting(text);
}

void Progress::finish() {
  if (!unsaid_step_.empty()) lasting(std::exchange(unsaid_step_, {}));
  if (!unsaid_validation_.empty()) lasting(std::exchange(unsaid_validation_, {}));
  if (lines_ > 0) std::fputc('\n', stderr);
  lines_ = 0;
}

std::string plan_table(const PlannedNetwork& network) {
  const Plan& plan = network.plan();
  std::string out = fmt::format("{:<7}{:<9}{:>10}{:>11}{:>11}{:>11}  {}\n", "stage", "nodes",
                                "params", "fwd", "bwd", "memory", "starts at");
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    out +=
        fmt::format("{:<7}{:<9}{:>10}{:>11}{:>11}{:>11}  {}{}\n", s,
                    fmt::format("{}-{}", stage.first, stage.last - 1),
                    fmt::format("{:.2f} M", static_cast<double>(stage.parameter_bytes) / 4e6),
                    seconds_text(stage.forward_seconds), seconds_text(stage.backward_seconds),
                    bytes_text(network.predicted_memory(static_cast<int>(s)).total()),
                    printable(network.costs().elements[static_cast<std::size_t>(stage.first)].name),
                    stage.recompute ? "  (recompute)" : "");
  }
  const double step = network.predicted_step_seconds();
  double alone = 0;
  for (const StagePlan& stage : plan.stages)
    alone += (stage.forward_seconds + stage.backward_seconds) *
             static_cast<double>(network.micro_batches());
  out += fmt::format("predicted step {} · bubble {:.1f} % · {:.1f} % above ideal balance",
                     seconds_text(step), network.predicted_bubble() * 100, plan.gap() * 100);
  if (plan.stages.size() > 1 && step > 0)
    out += fmt::format(" · single-stage baseline {} · speed-up {:.2f}x", seconds_text(alone),
                       alone / step);
  if (network.shares_cores()) {
    out += fmt::format(" · {} devices share {}", network.devices(),
                       network.config().pipeline.gpu_ids.empty() ? "the cores of this machine"
                       : network.processors() == 1               ? "one GPU"
                                                                 : "the GPUs");
  }
  return out + "\n";
}

}  // namespace pipetrain
