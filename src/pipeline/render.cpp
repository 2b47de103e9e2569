#include "pipeline/render.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace pipetrain {
namespace {

struct Look {
  char letter;
  const char* fill;
};

Look look_of(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return {'F', "░"};
    case Kind::kBackward:
      return {'B', "▓"};
    case Kind::kBackwardInput:
      return {'I', "▓"};
    case Kind::kBackwardWeight:
      return {'W', "▒"};
    case Kind::kRecompute:
      return {'R', "┄"};
    case Kind::kGradientSync:
      return {'G', "═"};
    default:
      return {'U', "█"};
  }
}

std::string seconds_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.4g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.4g} ms", seconds * 1e3);
  return fmt::format("{:.4g} µs", seconds * 1e6);
}

/// Columns of a text in UTF-8 whose characters are all one column wide.
std::size_t columns_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

/// One device's row of columns, each a character.
class Row {
 public:
  explicit Row(std::size_t columns) : cells_(columns, " ") {}

  void draw(std::size_t first, std::size_t last, const Instruction& instruction) {
    const Look look = look_of(instruction.kind);
    std::string label(1, look.letter);
    if (instruction.unit >= 0) label += fmt::format("{}", instruction.unit);
    // A cell without room for its whole label shows its kind by shade alone.
    if (label.size() > last - first) label.clear();
    for (std::size_t c = first; c < last; ++c) {
      const std::size_t letter = c - first;
      cells_[c] = letter < label.size() ? std::string(1, label[letter]) : look.fill;
    }
  }

  std::string text() const {
    std::string result;
    for (const std::string& cell : cells_) result += cell;
    return result;
  }

 private:
  std::vector<std::string> cells_;
};

struct Extent {
  double end = 0;
  double shortest = std::numeric_limits<double>::infinity();  // compute instruction
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

}  // namespace

std::string render_rows(const Program& program, const std::vector<std::vector<Event>>& events,
                        int width) {
  const Extent extent = extent_of(program, events);
  if (extent.end <= 0) return "";
  std::size_t margin = 0;
  std::vector<std::string> names;
  for (std::size_t d = 0; d < events.size(); ++d) {
    names.push_back(fmt::format("device {} ", d));
    margin = std::max(margin, names.back().size());
  }
  const auto room = static_cast<double>(std::max(width - static_cast<int>(margin) - 2, 10));
  double scale = room / extent.end;  // columns per second
  // Equal instructions shall look equal: a whole number of columns for the shortest, where it fits.
  const double columns_of_shortest = std::floor(scale * extent.shortest);
  if (columns_of_shortest >= 1) scale = columns_of_shortest / extent.shortest;
  const auto columns =
      static_cast<std::size_t>(std::clamp(std::ceil(scale * extent.end), 1.0, room));

  std::string text;
  for (std::size_t d = 0; d < events.size(); ++d) {
    Row row(columns);
    for (const Event& event : events[d]) {
      const Instruction& instruction = program.device[d][static_cast<std::size_t>(event.index)];
      if (is_transfer(instruction.kind) || event.end <= event.start) continue;
      const auto column = [&](double time) {
        return static_cast<std::size_t>(std::llround(std::max(time, 0.0) * scale));
      };
      const std::size_t first = std::min(column(event.start), columns - 1);
      row.draw(first, std::clamp(column(event.end), first + 1, columns), instruction);
    }
    text +=
        fmt::format("{}{}│{}│\n", std::string(margin - names[d].size(), ' '), names[d], row.text());
  }
  const std::string end = seconds_text(extent.end);
  const std::size_t gap = columns > columns_of(end) ? columns - columns_of(end) : 1;
  text += fmt::format("{}0{}{}\n", std::string(margin, ' '), std::string(gap, ' '), end);
  return text;
}

}  // namespace pipetrain
