#include "pipeline/view/render.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "pipeline/program/palette.h"

namespace pipetrain {
namespace {

std::string time_text(double seconds, bool unitless) {
  if (unitless) return fmt::format("{:.6g}", seconds);
  if (seconds >= 1) return fmt::format("{:.4g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.4g} ms", seconds * 1e3);
  return fmt::format("{:.4g} us", seconds * 1e6);
}

/// The width of a UTF-8 text of single-width characters.
std::size_t columns_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

/// Switches to the colours of a kind, with `odd_chunk` the alternate ones.
std::string paint(const KindLook& look, bool odd_chunk) {
  return odd_chunk ? fmt::format("\033[48;5;{};38;5;16m", look.terminal_next_chunk)
                   : fmt::format("\033[48;5;{};38;5;231m", look.terminal);
}
constexpr const char* kNoColour = "\033[0m";

/// One device's row of columns, each a character and its colours.
class Row {
 public:
  Row(std::size_t columns, bool colour)
      : characters_(columns, " "), paints_(columns), colour_(colour) {}

  void draw(std::size_t first, std::size_t last, const Instruction& instruction, int chunk) {
    const KindLook& look = look_of(instruction.kind);
    std::string label(colour_ && instruction.micro_batch >= 0 ? 0 : 1, look.letter);
    if (instruction.micro_batch >= 0) label += fmt::format("{}", instruction.micro_batch);
    // A cell without room for its whole label shows its kind alone.
    if (label.size() > last - first) label.clear();
    for (std::size_t c = first; c < last; ++c) {
      const std::size_t letter = c - first;
      characters_[c] = letter < label.size() ? std::string(1, label[letter])
                       : colour_             ? " "
                                             : look.shade;
      if (colour_) paints_[c] = paint(look, chunk % 2 != 0);
    }
  }

  std::string text() const {
    std::string result;
    std::string now;
    for (std::size_t c = 0; c < characters_.size(); ++c) {
      if (paints_[c] != now) {
        now = paints_[c];
        result += now.empty() ? kNoColour : now;
      }
      result += characters_[c];
    }
    if (!now.empty()) result += kNoColour;
    return result;
  }

 private:
  std::vector<std::string> characters_;
  std::vector<std::string> paints_;  // escape sequence; empty: none
  bool colour_;
};

struct Extent {
  double end = 0;
  /// Compute instruction; infinite where none takes time.
  double shortest = std::numeric_limits<double>::infinity();
};

Extent extent_of(const Program& program, const std::vector<std::vector<Event>>& events) {
  Extent extent;
  for (std::size_t d = 0; d < events.size(); ++d) {
    for (const Event& event : events[d]) {
      const Kind kind = program.device.at(d).at(static_cast<std::size_t>(event.index)).kind;
      extent.end = std::max(extent.end, event.end);
      const double seconds = event.end - event.start;
      if (is_compute(kind) && seconds > 0) extent.shortest = std::min(extent.shortest, seconds);
    }
  }
  return extent;
}

/// The time axis: columns per second, and how many columns.
struct Axis {
  double scale = 1;
  std::size_t columns = 1;

  Axis(const Extent& extent, double room) : scale(room / extent.end) {
    // The shortest instruction gets a whole number of columns where that fits, so that equal
    // instructions look equal.
    const double columns_of_shortest = std::floor(scale * extent.shortest);
    if (columns_of_shortest >= 1 && std::isfinite(extent.shortest))
      scale = columns_of_shortest / extent.shortest;
    columns = static_cast<std::size_t>(std::clamp(std::ceil(scale * extent.end), 1.0, room));
  }
  std::size_t column(double time) const {
    return static_cast<std::size_t>(std::llround(std::max(time, 0.0) * scale));
  }
};

Row row_of(const Program& program, const std::vector<Event>& events, std::size_t device,
           const Axis& axis, bool colour) {
  Row row(axis.columns, colour);
  const std::vector<int> chunk = chunks_on(program, static_cast<int>(device));
  // Collectives first, so that overlapping compute is drawn over them.
  for (const bool collectives : {true, false}) {
    for (const Event& event : events) {
      const Instruction& instruction =
          program.device[device][static_cast<std::size_t>(event.index)];
      if (is_transfer(instruction.kind) || event.end <= event.start) continue;
      if (is_work(instruction.kind) == collectives) continue;
      const std::size_t first = std::min(axis.column(event.start), axis.columns - 1);
      row.draw(first, std::clamp(axis.column(event.end), first + 1, axis.columns), instruction,
               instruction.stage < 0 ? 0 : chunk[static_cast<std::size_t>(instruction.stage)]);
    }
  }
  return row;
}

}  // namespace

std::string render_rows(const Program& program, const std::vector<std::vector<Event>>& events,
                        int width) {
  RowsOptions options;
  options.width = width;
  return render_rows(program, events, options);
}

std::string render_rows(const Program& program, const std::vector<std::vector<Event>>& events,
                        const RowsOptions& options) {
  const Extent extent = extent_of(program, events);
  if (extent.end <= 0) return "";
  const std::string last_name = fmt::format("device {} ", events.size() - 1);
  const std::size_t margin = last_name.size();
  const Axis axis(extent,
                  static_cast<double>(std::max(options.width - static_cast<int>(margin) - 2, 10)));
  const auto most = static_cast<std::size_t>(std::max(options.most_rows, 0));
  const std::size_t left_out = most > 0 && events.size() > most ? events.size() - most : 0;

  std::string text;
  for (std::size_t d = 0; d < events.size(); ++d) {
    if (left_out > 0 && d == (most + 1) / 2) {
      text += fmt::format("{}⋮ {} more\n", std::string(margin, ' '), left_out);
      d += left_out - 1;
      continue;
    }
    const std::string name = fmt::format("device {} ", d);
    text += fmt::format("{}{}│{}│\n", std::string(margin - name.size(), ' '), name,
                        row_of(program, events[d], d, axis, options.colour).text());
  }
  const std::string end = time_text(extent.end, options.unitless);
  const std::size_t gap = axis.columns > columns_of(end) ? axis.columns - columns_of(end) : 1;
  text += fmt::format("{}0{}{}\n", std::string(margin, ' '), std::string(gap, ' '), end);
  return text;
}

std::string render_legend(const Program& program, const std::vector<std::vector<Event>>& events,
                          bool colour) {
  std::array<bool, 16> seen{};
  std::string text;
  for (const auto& list : events) {
    for (const Event& event : list) {
      const Instruction& instruction = program.device.at(static_cast<std::size_t>(event.device))
                                           .at(static_cast<std::size_t>(event.index));
      bool& known = seen.at(static_cast<std::size_t>(instruction.kind));
      if (known || is_transfer(instruction.kind) || event.end <= event.start) continue;
      known = true;
      const KindLook& look = look_of(instruction.kind);
      const std::string sample =
          colour ? fmt::format("{} {} {}", paint(look, /*odd_chunk=*/false), look.letter, kNoColour)
                 : fmt::format("{}{}", look.letter, look.shade);
      text += fmt::format("{}{} {}", text.empty() ? "" : "  ", sample, look.word);
    }
  }
  return text + "\n";
}

}  // namespace pipetrain
