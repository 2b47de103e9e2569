#include "pipeline/view/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <string_view>

#include "base/error.h"
#include "base/safe_text.h"
#include "base/units.h"
#include "pipeline/program/palette.h"

namespace pipetrain {
namespace {

constexpr double kLeft = 150, kRight = 24;
constexpr const char* kStyle =
    "<style>\n"
    "text{font-family:system-ui,'DejaVu Sans',Helvetica,sans-serif;font-size:12px;fill:#1f2328}\n"
    ".page{fill:#fff}.idle{fill:#e9ebee}.axis{stroke:#9aa1a9}.soft{fill:#656d76}\n"
    ".name{text-anchor:end}.small{font-size:10px}.head{font-size:15px;font-weight:600}\n"
    ".n{fill:#fff;text-anchor:middle;font-size:11px;pointer-events:none}.chunk{opacity:.72}\n"
    ".tick{text-anchor:middle;fill:#656d76}.limit{stroke:#d1242f;stroke-dasharray:4 3}\n"
    ".m0{fill:#3b7dd8}.m1{fill:#7f95bd}.m2{fill:#8659b5}.m3{fill:#d9791f}.m4{fill:#b8860b}\n"
    ".m5{fill:#2a9d74}\n"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#14171c}\n"
    ".idle{fill:#2a2f37}.axis{stroke:#6e7681}.soft,.tick{fill:#9aa4af}.n{fill:#fff}}\n";

std::string tick_text(double seconds, bool unitless) {
  return unitless ? fmt::format("{:.6g}", seconds) : seconds_text(seconds);
}

class Drawing {
 public:
  explicit Drawing(const Gantt& gantt) : gantt_(gantt) {
    std::size_t rows = 0;
    for (const GanttPanel& panel : gantt.panels) {
      timelines_.push_back(timeline_of(*panel.program, *panel.events));
      end_ = std::max(end_, timelines_.back().seconds);
      rows += panel.events->size();
    }
    // Charts of many devices get thin rows, so that they fit on a page.
    bar_ = rows <= 24 ? 30 : rows <= 96 ? 16 : 8;
    lane_ = gantt.communication ? std::max(3.0, bar_ / 5) : 0;
    for (const GanttPanel& panel : gantt.panels) {
      if (!panel.buckets.empty()) bucket_lane_ = std::max(3.0, bar_ / 4);
    }
  }

  std::string text() {
    draw_head();
    for (std::size_t p = 0; p < gantt_.panels.size(); ++p) draw_panel(p);
    draw_axis();
    draw_legend();
    if (!gantt_.memory.empty()) draw_memory();
    std::string fills;
    for (const auto& [kind, look] : used_)
      fills += fmt::format(".{}{{fill:{}}}", look->css, look->fill);
    if (bucket_lane_ > 0) fills += ".bucket{fill:#2a9d74}";
    const double height = y_ + 12;
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1:.0f}\" "
               "viewBox=\"0 0 {0} {1:.0f}\" role=\"img\">\n<title>{2}</title>\n",
               gantt_.width, height, xml_text(title())) +
           kStyle + fills +
           fmt::format("\n</style>\n<rect class=\"page\" width=\"{}\" height=\"{:.0f}\"/>\n",
                       gantt_.width, height) +
           body_ + "</svg>\n";
  }

 private:
  template <class... Values>
  void put(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(body_), format, std::forward<Values>(values)...);
    body_ += '\n';
  }
  double x(double seconds) const {
    const double room = gantt_.width - kLeft - kRight;
    return kLeft + (end_ > 0 ? std::max(seconds, 0.0) / end_ * room : 0);
  }
  std::string title() const {
    if (!gantt_.title.empty() || gantt_.panels.empty()) return gantt_.title;
    const Program& program = *gantt_.panels.front().program;
    return fmt::format("{} · {} stage{} · {} micro-batch{}", printable(program.schedule),
                       program.stages, program.stages == 1 ? "" : "s", program.micro_batches,
                       program.micro_batches == 1 ? "" : "es");
  }

  void draw_head() {
    put(R"(<text class="head" x="{:.0f}" y="24">{}</text>)", kLeft, xml_text(title()));
    y_ = 34;
    if (!gantt_.subtitle.empty()) {
      put(R"(<text class="soft" x="{:.0f}" y="42">{}</text>)", kLeft, xml_text(gantt_.subtitle));
      y_ = 52;
    }
  }

  void draw_panel(std::size_t p) {
    const GanttPanel& panel = gantt_.panels[p];
    const Timeline& timeline = timelines_[p];
    put(R"(<text class="soft" x="{:.0f}" y="{:.1f}">{}{}{} · bubble {:.1f} %</text>)", kLeft,
        y_ + 12, xml_text(panel.title), panel.title.empty() ? "" : " · ",
        tick_text(timeline.seconds, gantt_.unitless), timeline.bubble * 100);
    y_ += 20;
    if (const std::string text = buckets_text(*panel.program, *panel.events, panel.buckets);
        !text.empty()) {
      put(R"(<text class="soft" x="{:.0f}" y="{:.1f}">{}</text>)", kLeft, y_ + 8, xml_text(text));
      y_ += 16;
    }
    const std::vector<int> peak = peak_in_flight(*panel.program);
    for (std::size_t d = 0; d < panel.events->size(); ++d) {
      draw_device(panel, timeline, peak, d);
      y_ += bar_ + lane_ + bucket_lane_ + (bar_ > 20 ? 8 : 3);
    }
    y_ += 4;
  }

  void draw_device(const GanttPanel& panel, const Timeline& timeline, const std::vector<int>& peak,
                   std::size_t d) {
    const Program& program = *panel.program;
    const std::string name =
        d < gantt_.device_names.size() ? gantt_.device_names[d] : fmt::format("device {}", d);
    put(R"(<text class="name" x="{:.0f}" y="{:.1f}"{}>{}</text>)", kLeft - 8,
        y_ + (bar_ > 20 ? 13 : bar_ - 2), bar_ < 12 ? R"( style="font-size:8px")" : "",
        xml_text(name));
    if (bar_ > 20) {
      std::string in_flight;
      for (int s = 0; s < program.stages; ++s) {
        if (program.replica_on(s, static_cast<int>(d)) < 0) continue;
        in_flight +=
            fmt::format("{}{}", in_flight.empty() ? "" : "+", peak[static_cast<std::size_t>(s)]);
      }
      const double busy = timeline.seconds > 0 ? timeline.busy[d] / timeline.seconds : 0;
      put(R"(<text class="name small soft" x="{:.0f}" y="{:.1f}">busy {:.0f} % · {} in flight</text>)",
          kLeft - 8, y_ + 26, busy * 100, in_flight);
    }
    put(R"(<rect class="idle" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>)", kLeft, y_,
        x(timeline.seconds) - kLeft, bar_);
    const std::vector<int> chunk = chunks_on(program, static_cast<int>(d));
    for (std::size_t i = 0; i < program.device[d].size(); ++i) {
      const Instruction& instruction = program.device[d][i];
      const bool odd =
          instruction.stage >= 0 && chunk[static_cast<std::size_t>(instruction.stage)] % 2 != 0;
      draw_bar(program, instruction, (*panel.events)[d][i], odd);
    }
    for (const BucketEvent& bucket : panel.buckets) {
      if (bucket.device == static_cast<int>(d)) draw_bucket(bucket);
    }
  }

  void draw_bucket(const BucketEvent& bucket) {
    const double left = x(bucket.start);
    put(R"(<g><title>bucket {} of stage {}, {}: {} to {} ({})</title>)"
        R"(<rect class="bucket" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}"/></g>)",
        bucket.bucket, bucket.stage, bytes_text(static_cast<std::size_t>(bucket.bytes)),
        tick_text(bucket.start, gantt_.unitless), tick_text(bucket.end, gantt_.unitless),
        tick_text(bucket.end - bucket.start, gantt_.unitless), left, y_ + bar_ + lane_ + 1,
        std::max(x(bucket.end) - left - 0.6, 0.4), bucket_lane_ - 1);
  }

  void draw_bar(const Program& program, const Instruction& instruction, const Event& event,
                bool odd_chunk) {
    if (event.end <= event.start) return;
    const bool work = is_work(instruction.kind);
    if (!work && lane_ <= 0) return;
    const KindLook& look = look_of(instruction.kind);
    used_.emplace(instruction.kind, &look);
    const double left = x(event.start);
    // Leaves a small gap between neighbours.
    const double width = std::max(x(event.end) - left - 0.6, 0.4);
    put(R"(<g><title>{} {}: {} to {} ({})</title>)"
        R"(<rect class="{}{}" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}"/>)",
        xml_text(to_text(program, instruction)), look.word, tick_text(event.start, gantt_.unitless),
        tick_text(event.end, gantt_.unitless), tick_text(event.end - event.start, gantt_.unitless),
        look.css, odd_chunk ? " chunk" : "", left, y_ + (work ? 0 : bar_), width,
        work ? bar_ : lane_);
    const std::string number =
        instruction.micro_batch >= 0 ? fmt::format("{}", instruction.micro_batch) : "";
    if (work && bar_ > 12 && !number.empty() && width > 7.0 * static_cast<double>(number.size())) {
      put(R"(<text class="n" x="{:.2f}" y="{:.1f}">{}</text>)", left + width / 2, y_ + bar_ / 2 + 4,
          number);
    }
    put("</g>");
  }

  void draw_axis() {
    put(R"(<line class="axis" x1="{0:.1f}" y1="{1:.1f}" x2="{2:.1f}" y2="{1:.1f}"/>)", kLeft, y_,
        gantt_.width - kRight);
    if (end_ > 0) {
      const double distance = tick_distance(end_, 8);
      for (int n = 0; n * distance <= end_ * 1.0001; ++n) {
        put(R"(<line class="axis" x1="{0:.1f}" y1="{1:.1f}" x2="{0:.1f}" y2="{2:.1f}"/>)"
            R"(<text class="tick" x="{0:.1f}" y="{3:.1f}">{4}</text>)",
            x(n * distance), y_, y_ + 4, y_ + 17, tick_text(n * distance, gantt_.unitless));
      }
    }
    y_ += 26;
  }

  void draw_legend() {
    double at = kLeft;
    const auto entry = [&](const char* css, const char* word) {
      put(R"(<rect class="{}" x="{:.1f}" y="{:.1f}" width="12" height="12"/>)"
          R"(<text x="{:.1f}" y="{:.1f}">{}</text>)",
          css, at, y_, at + 17, y_ + 10, word);
      at += 40 + 7.0 * static_cast<double>(std::char_traits<char>::length(word));
    };
    for (const auto& [kind, look] : used_) entry(look->css, look->word);
    entry("idle", "idle (bubble)");
    if (bucket_lane_ > 0) entry("bucket", "buckets of gradients");
    y_ += 22;
  }

  /// A bar for each stage, its parts one after the other.
  void draw_memory() {
    std::size_t most = gantt_.memory_limit_bytes;
    std::vector<std::string> purposes;
    for (const MemoryBar& bar : gantt_.memory) {
      std::size_t total = 0;
      for (const auto& [purpose, bytes] : bar.parts) {
        total += bytes;
        if (std::find(purposes.begin(), purposes.end(), purpose) == purposes.end())
          purposes.push_back(purpose);
      }
      most = std::max(most, total);
    }
    if (most == 0) return;
    const double room = gantt_.width - kLeft - kRight - 80;  // the total is printed after the bar
    const double top = y_ + 14;
    put(R"(<text class="soft" x="{:.0f}" y="{:.1f}">memory of each stage</text>)", kLeft, y_ + 8);
    y_ = top;
    for (const MemoryBar& bar : gantt_.memory) {
      put(R"(<text class="name" x="{:.0f}" y="{:.1f}">{}</text>)", kLeft - 8, y_ + 11,
          xml_text(bar.name));
      double left = kLeft;
      std::size_t total = 0;
      for (const auto& [purpose, bytes] : bar.parts) {
        total += bytes;
        const double width = static_cast<double>(bytes) / static_cast<double>(most) * room;
        const auto index = static_cast<std::size_t>(
            std::find(purposes.begin(), purposes.end(), purpose) - purposes.begin());
        if (bytes > 0) {
          put(R"(<g><title>{} {}: {}</title><rect class="m{}" x="{:.2f}" y="{:.1f}" )"
              R"(width="{:.2f}" height="14"/></g>)",
              xml_text(bar.name), xml_text(purpose), bytes_text(bytes), index % 6, left, y_,
              std::max(width - 0.6, 0.4));
        }
        left += width;
      }
      put(R"(<text class="small soft" x="{:.1f}" y="{:.1f}">{}</text>)", left + 6, y_ + 11,
          bytes_text(total));
      y_ += 19;
    }
    if (gantt_.memory_limit_bytes > 0) {
      const double at =
          kLeft + static_cast<double>(gantt_.memory_limit_bytes) / static_cast<double>(most) * room;
      put(R"(<line class="limit" x1="{0:.1f}" y1="{1:.1f}" x2="{0:.1f}" y2="{2:.1f}"/>)", at,
          top - 3, y_);
    }
    double at = kLeft;
    for (std::size_t p = 0; p < purposes.size(); ++p) {
      put(R"(<rect class="m{}" x="{:.1f}" y="{:.1f}" width="12" height="12"/>)"
          R"(<text x="{:.1f}" y="{:.1f}">{}</text>)",
          p % 6, at, y_ + 4, at + 17, y_ + 14, xml_text(purposes[p]));
      at += 40 + 7.0 * static_cast<double>(purposes[p].size());
    }
    y_ += 24;
  }

  const Gantt& gantt_;
  std::vector<Timeline> timelines_;
  std::map<Kind, const KindLook*> used_;  // in the order of the legend
  std::string body_;
  double end_ = 0, y_ = 0, bar_ = 30, lane_ = 0;
  double bucket_lane_ = 0;
};

}  // namespace

double tick_distance(double length, int count) {
  const double raw = length / std::max(count, 1);
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * 0.999) return factor * power;
  }
  return 10 * power;
}

std::string xml_text(const std::string& text) {
  const std::string safe = safe_text(text);
  std::string result;
  for (std::string_view rest = safe; !rest.empty(); rest.remove_prefix(1)) {
    // U+FFFE and U+FFFF are no characters of XML.
    if (rest.starts_with("\xef\xbf\xbe") || rest.starts_with("\xef\xbf\xbf")) {
      rest.remove_prefix(2);
      continue;
    }
    switch (rest[0]) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(rest[0]) >= 0x20U) result += rest[0];
    }
  }
  return result;
}

std::string gantt_svg(const Gantt& gantt) { return Drawing(gantt).text(); }

std::vector<MemoryBar> memory_bars(const Plan& plan) {
  std::vector<MemoryBar> bars;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const MemoryNeed& need = plan.stages[s].memory;
    const int replicas = plan.stages[s].replicas;
    bars.push_back({fmt::format("stage {}{}", s, replicas > 1 ? " (each)" : ""),
                    {{"weights", need.weight_bytes},
                     {"gradients", need.gradient_bytes},
                     {"optimizer", need.optimizer_bytes},
                     {"activations", need.activation_bytes},
                     {"transient", need.transient_bytes}}});
  }
  return bars;
}

std::string plan_svg(const Plan& plan, const Program& program, const Events& predicted,
                     const std::string& title, std::size_t memory_limit_bytes,
                     std::span<const BucketEvent> buckets) {
  Gantt gantt;
  gantt.title = title;
  gantt.panels.push_back({"predicted", &program, &predicted, buckets});
  gantt.communication = true;
  gantt.memory = memory_bars(plan);
  gantt.memory_limit_bytes = memory_limit_bytes;
  return gantt_svg(gantt);
}

}  // namespace pipetrain
