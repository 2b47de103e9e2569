#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace pipetrain {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<long>(seconds + 0.5);
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

std::size_t terminal_width() {
  if (const char* columns = std::getenv("COLUMNS")) {
    const long wanted = std::strtol(columns, nullptr, 10);
    if (wanted > 20 && wanted < 10000) return static_cast<std::size_t>(wanted);
  }
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 100;
}

}  // namespace

Progress::Progress(int log_every, bool quiet)
    : log_every_(log_every), quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::line(const std::string& text, bool lasting) {
  if (quiet_) return;
  if (!terminal_) {
    std::fprintf(stderr, "%s\n", text.c_str());
    return;
  }
  std::fprintf(stderr, "\r\033[K%s%s",
               text.substr(0, lasting ? text.size() : terminal_width() - 1).c_str(),
               lasting ? "\n" : "");
  std::fflush(stderr);
  open_ = !lasting;
}

void Progress::step(const StepReport& report) {
  const bool due =
      report.step == 1 || report.step % log_every_ == 0 || report.step == report.total_steps;
  const double time = now();
  if (report.step > 1) {
    average_seconds_ =
        average_seconds_ == 0 ? report.seconds : 0.9 * average_seconds_ + 0.1 * report.seconds;
  }
  const double since = time - last_line_;
  if (!due && since < (terminal_ ? 0.1 : 60)) return;
  if (terminal_ && since < 0.1 && !due) return;
  last_line_ = time;
  line(text_of(report), due);
}

void Progress::status(const StepReport& report) {
  const bool quiet = std::exchange(quiet_, false);
  line(text_of(report), /*lasting=*/true);
  quiet_ = quiet;
}

std::string Progress::text_of(const StepReport& report) const {
  std::string text = fmt::format("step {:>6}/{}  ep {:.2f}  loss {:.4f}", report.step,
                                 report.total_steps, report.epoch, report.loss);
  if (report.accuracy) text += fmt::format("  acc {:.1f}%", *report.accuracy * 100);
  if (report.gradient_norm) text += fmt::format("  gnorm {:.3g}", *report.gradient_norm);
  text += fmt::format("  lr {:.1e}  {:.1f} ms  {:.0f} samples/s", report.learning_rate,
                      report.seconds * 1e3, report.samples_per_second);
  if (report.bubble && report.stage_busy.size() > 1)
    text += fmt::format("  bubble {:.1f}%", *report.bubble * 100);
  if (report.data_seconds > 0.05 * report.seconds)
    text += fmt::format("  data {:.0f}%", 100 * report.data_seconds / report.seconds);
  if (report.step == 1) {
    text += "  (first step: start-up)";
  } else if (report.step < report.total_steps) {
    text += "  ETA " +
            duration_text(average_seconds_ * static_cast<double>(report.total_steps - report.step));
  }
  return text;
}

void Progress::evaluation(const EvaluationReport& report) {
  std::string text =
      fmt::format("val  {:>6}  ep {:.2f}  loss {:.4f}", report.step, report.epoch, report.loss);
  if (report.accuracy) text += fmt::format("  acc {:.2f}%", *report.accuracy * 100);
  if (report.perplexity) text += fmt::format("  perplexity {:.2f}", *report.perplexity);
  if (report.r2) text += fmt::format("  R² {:.4f}", *report.r2);
  line(text + fmt::format("  ({} samples, {:.2f} s)", report.samples, report.seconds), true);
}

void Progress::finish() {
  if (open_) std::fputc('\n', stderr);
  open_ = false;
}

std::string plan_table(const Session& session) {
  const Plan& plan = session.the_plan();
  std::string out = fmt::format("{:<7}{:<9}{:>10}{:>11}{:>11}{:>11}  {}\n", "stage", "nodes",
                                "params", "fwd", "bwd", "memory", "starts at");
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    out +=
        fmt::format("{:<7}{:<9}{:>10}{:>11}{:>11}{:>11}  {}{}\n", s,
                    fmt::format("{}-{}", stage.first, stage.last - 1),
                    fmt::format("{:.2f} M", static_cast<double>(stage.parameter_bytes) / 4e6),
                    seconds_text(stage.forward_seconds), seconds_text(stage.backward_seconds),
                    bytes_text(session.predicted_memory(static_cast<int>(s)).total()),
                    printable(session.costs().elements[static_cast<std::size_t>(stage.first)].name),
                    stage.recompute ? "  (recompute)" : "");
  }
  const Simulation& prediction = session.prediction();
  const double step = session.predicted_step_seconds();
  double alone = 0;
  for (const StagePlan& stage : plan.stages)
    alone += (stage.forward_seconds + stage.backward_seconds) *
             static_cast<double>(session.micro_batches());
  out += fmt::format("predicted step {} · bubble {:.1f} % · balance within {:.1f} % of the bound",
                     seconds_text(step), prediction.bubble * 100, plan.gap() * 100);
  if (plan.stages.size() > 1 && step > 0)
    out += fmt::format(" · one stage would take {} · speed-up {:.2f}x", seconds_text(alone),
                       alone / step);
  if (session.shares_cores()) {
    out += fmt::format(" · {} devices share the cores of this machine", session.devices());
  }
  return out + "\n";
}

}  // namespace pipetrain
