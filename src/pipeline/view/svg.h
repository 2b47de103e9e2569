// Gantt pictures of timed programs as SVG files of their own: no script, no font and no network
// behind them; they follow the reader's light or dark colours.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "partition/plan.h"
#include "pipeline/program/event.h"
#include "pipeline/program/program.h"
#include "pipeline/simulate/timeline.h"

namespace pipetrain {

/// One timed program of a picture. The pointers must outlive the call of gantt_svg().
struct GanttPanel {
  std::string title;  // "predicted", "measured"; may be empty
  const Program* program = nullptr;
  const Events* events = nullptr;
};

/// What one stage keeps in memory, bytes by purpose.
struct MemoryBar {
  std::string name;
  std::vector<std::pair<std::string, std::size_t>> parts;
};

struct Gantt {
  std::string title;     // empty: schedule and sizes of the first panel
  std::string subtitle;  // empty: left out
  /// One above the other, on one time axis, so that lengths can be compared.
  std::vector<GanttPanel> panels;
  /// Draws sends, receives and collectives as a thin second lane below each device.
  bool communication = false;
  /// Times are numbers without a micro-batch.
  bool unitless = false;
  int width = 1100;                       // pixels
  std::vector<std::string> device_names;  // empty: "device 0", …
  std::vector<MemoryBar> memory;          // a strip below; empty: none
  std::size_t memory_limit_bytes = 0;     // a line in the strip; 0: none
};

/// Returns the SVG document. Every bar carries its number where there is room, and a title that
/// shows when the pointer rests on it. Throws Error(kInternal) if events do not fit their program.
std::string gantt_svg(const Gantt& gantt);

/// The bars of a plan's stages.
std::vector<MemoryBar> memory_bars(const Plan& plan);

/// The picture of a plan: the predicted round, and what each stage keeps in memory.
std::string plan_svg(const Plan& plan, const Program& program, const Events& predicted,
                     const std::string& title, std::size_t memory_limit_bytes = 0);

/// The round distance of about `count` marks over a length: 1, 2 or 5 times a power of ten.
double tick_distance(double length, int count);

/// `text` with what XML reserves replaced, and control characters left out.
std::string xml_text(const std::string& text);

}  // namespace pipetrain
