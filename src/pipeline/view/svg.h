// Gantt charts of timed programs as self-contained SVG files without scripts or fonts; they follow
// the reader's light or dark mode.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "partition/plan.h"
#include "pipeline/program/event.h"
#include "pipeline/program/program.h"
#include "pipeline/simulate/timeline.h"

namespace pipetrain {

/// One panel of a chart: a timed program. The pointers must outlive the call of gantt_svg().
struct GanttPanel {
  std::string title;  // "predicted", "measured"; may be empty
  const Program* program = nullptr;
  const Events* events = nullptr;
  std::span<const BucketEvent> buckets = {};  // of gradients, in a lane of their own
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
  /// Times have no unit.
  bool unitless = false;
  int width = 1100;                       // pixels
  std::vector<std::string> device_names;  // empty: "device 0", …
  std::vector<MemoryBar> memory;          // a strip below; empty: none
  std::size_t memory_limit_bytes = 0;     // a line in the strip; 0: none
};

/// Returns the SVG document. Every bar has its number where there is room, and a tooltip. Throws
/// Error(kInternal) if events do not fit their program.
std::string gantt_svg(const Gantt& gantt);

/// The bars of a plan's stages.
std::vector<MemoryBar> memory_bars(const Plan& plan);

/// The chart of a plan: the predicted round, and the memory of each stage.
std::string plan_svg(const Plan& plan, const Program& program, const Events& predicted,
                     const std::string& title, std::size_t memory_limit_bytes = 0,
                     std::span<const BucketEvent> buckets = {});

/// The tick spacing for about `count` ticks over a length: 1, 2 or 5 times a power of ten.
double tick_distance(double length, int count);

/// `text` with what XML reserves replaced. Line breaks and tabs are left out; what else is no
/// character of XML, such as bytes that are not UTF-8, is escaped as by safe_text() or left out.
std::string xml_text(const std::string& text);

}  // namespace pipetrain
