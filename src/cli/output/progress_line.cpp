#include "cli/output/progress_line.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace pipetrain {
namespace {

/// A part of the line; those of rank 0 stay longest.
struct LineField {
  int rank;
  std::string text;
};

std::string place_text(const char* kind, std::int64_t step, std::int64_t total) {
  return fmt::format("{:<4} {:>{}}/{}", kind, step, fmt::formatted_size("{}", total), total);
}

std::string epoch_text(double epoch) { return fmt::format("ep {:>6.2f}", epoch); }

/// In nine columns.
std::string step_time_text(double seconds) {
  if (seconds < 0.9995e-3) return fmt::format("{:>6.0f} us", seconds * 1e6);
  if (seconds < 9.9995) return fmt::format("{:>6.1f} ms", seconds * 1e3);
  return fmt::format("{:>7.1f} s", seconds);
}

std::string percent_text(std::string_view name, double share) {
  return fmt::format("{} {:>6.2f}%", name, share * 100);
}

std::vector<LineField> fields_of(const StepReport& report, double eta_seconds) {
  std::vector<LineField> fields;
  fields.push_back({0, place_text("step", report.step, report.total_steps)});
  fields.push_back({9, epoch_text(report.epoch)});
  fields.push_back({1, "loss " + loss_text(report.loss)});
  if (report.accuracy) fields.push_back({3, percent_text("acc", *report.accuracy)});
  if (report.gradient_norm)
    fields.push_back({11, fmt::format("gnorm {:>8.3g}", *report.gradient_norm)});
  fields.push_back({10, fmt::format("lr {:.1e}", report.learning_rate)});
  fields.push_back({5, step_time_text(report.seconds)});
  fields.push_back({4, fmt::format("{:>6.0f} samples/s", report.samples_per_second)});
  if (report.utilisation)
    fields.push_back({6, fmt::format("MFU {:>5.1f}%", *report.utilisation * 100)});
  if (report.bubble && report.stage_busy.size() > 1)
    fields.push_back({7, fmt::format("bubble {:>4.1f}%", *report.bubble * 100)});
  // What is not in every line comes last, so that the columns stay.
  if (report.skipped)
    fields.push_back({1, report.loss_scale
                             ? fmt::format("skipped at scale {:g}", *report.loss_scale)
                             : std::string("skipped")});
  if (report.data_seconds > 0.05 * report.seconds)
    fields.push_back({8, fmt::format("data {:.0f}%", 100 * report.data_seconds / report.seconds)});
  if (report.step == 1)
    fields.push_back({12, "(first step: start-up)"});
  else if (eta_seconds >= 0 && report.step < report.total_steps)
    fields.push_back({2, "ETA " + duration_text(eta_seconds)});
  return fields;
}

std::string joined_fields(const std::vector<LineField>& fields, int most_rank) {
  std::string text;
  for (const LineField& field : fields) {
    if (field.rank > most_rank) continue;
    if (!text.empty()) text += "  ";
    text += field.text;
  }
  return text;
}

/// A bar of that many columns, in eighths of a column.
std::string share_bar(double share, std::size_t columns) {
  static constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<std::size_t>(
      std::lround(std::clamp(share, 0.0, 1.0) * 8 * static_cast<double>(columns)));
  std::string out;
  for (std::size_t i = 0; i < eighths / 8; ++i) out += "█";
  out += kEighths[eighths % 8];
  for (std::size_t i = (eighths + 7) / 8; i < columns; ++i) out += "░";
  return out;
}

/// One character whose height is the share.
const char* share_column(double share) {
  static constexpr std::array<const char*, 8> kHeights = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  return kHeights[static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * 7))];
}

}  // namespace

std::string duration_text(double seconds) {
  const auto whole = static_cast<long>(seconds + 0.5);
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // the first byte of a character
  }));
}

std::string loss_text(double loss) {
  const double size = std::abs(loss);
  const std::string text = size < 100   ? fmt::format("{:.4f}", loss)
                           : size < 1e6 ? fmt::format("{:.6g}", loss)
                                        : fmt::format("{:.1e}", loss);
  return fmt::format("{:>7}", text);
}

std::string validation_line(const EvaluationReport& report, std::int64_t total_steps) {
  std::string text = place_text("val", report.step, total_steps) + "  " + epoch_text(report.epoch) +
                     "  loss " + loss_text(report.loss);
  if (report.accuracy) text += "  " + percent_text("acc", *report.accuracy);
  if (report.top_k) text += "  " + percent_text(fmt::format("top{}", report.k), *report.top_k);
  if (report.perplexity) text += "  perplexity " + loss_text(*report.perplexity);
  if (report.r2) text += fmt::format("  r2 {:.4f}", *report.r2);
  if (report.mae) text += "  mae " + loss_text(*report.mae);
  if (report.f1) text += fmt::format("  f1 {:.4f}", *report.f1);
  if (report.auc) text += fmt::format("  auc {:.4f}", *report.auc);
  if (report.miou) text += fmt::format("  miou {:.4f}", *report.miou);
  return text + fmt::format("  ({} samples, {:.2f} s)", report.samples, report.seconds);
}

std::string progress_line(const StepReport& report, double eta_seconds, std::size_t width) {
  const std::vector<LineField> fields = fields_of(report, eta_seconds);
  for (int rank = 12; rank > 0; --rank) {
    std::string text = joined_fields(fields, rank);
    if (width == 0 || columns_of(text) <= width) return text;
  }
  return joined_fields(fields, 0).substr(0, width);
}

std::string stage_bars(const std::vector<double>& busy, std::size_t width, bool color) {
  if (busy.size() < 2) return {};
  const std::string on = color ? "\033[34m" : "", off = color ? "\033[0m" : "";
  constexpr std::size_t kTitle = 5, kMostColumns = 16, kLeastColumns = 3;
  // " 0 ██████▌░  81%": the device, the bar, the share.
  const std::size_t number = busy.size() > 10 ? 2 : 1, around = number + 7;
  const std::size_t each = width > kTitle ? (width - kTitle) / busy.size() : 0;
  if (each >= around + kLeastColumns) {
    const std::size_t columns = std::min(each - around, kMostColumns);
    std::string out = "busy";
    for (std::size_t s = 0; s < busy.size(); ++s)
      out += fmt::format(" {:>{}} {}{}{} {:>3.0f}%", s, number, on, share_bar(busy[s], columns),
                         off, busy[s] * 100);
    return out;
  }
  std::string out = "busy " + on;
  const std::size_t shown = std::min(busy.size(), width > kTitle ? width - kTitle : 0);
  for (std::size_t s = 0; s < shown; ++s) out += share_column(busy[s]);
  return out + off;
}

}  // namespace pipetrain
