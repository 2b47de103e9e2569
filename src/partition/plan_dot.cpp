#include "partition/plan_dot.h"

#include <array>

#include "base/error.h"
#include "base/safe_text.h"
#include "base/units.h"

namespace pipetrain {
namespace {

// Neighbours differ in hue and in lightness.
constexpr std::array<const char*, 6> kFills = {"#8fb8ee", "#f2b27a", "#8fd3b6",
                                               "#c9b1e6", "#f0d685", "#b3bcc8"};
constexpr int kShown = 12;  // elements of a stage before some are left out

std::string dot_text(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) >= 0x20U) result += c;
  }
  return result + "\"";
}

/// Text of a label, where \n is a line break.
std::string label(const std::string& first, const std::string& second) {
  std::string text = dot_text(first);
  text.pop_back();
  return text + "\\n" + dot_text(second).substr(1);
}

class Drawing {
 public:
  Drawing(const Plan& plan, const ChainCosts& chain) : plan_(plan), chain_(chain) {}

  std::string text(const std::string& title) {
    out_ = fmt::format(
        "digraph plan {{\n  label={}; labelloc=t; rankdir=TB; fontname=Helvetica;\n"
        "  node [shape=box, style=\"filled,rounded\", fontname=Helvetica, fontsize=10];\n"
        "  edge [fontname=Helvetica, fontsize=10];\n",
        dot_text(safe_text(title)));
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) draw_stage(s);
    for (std::size_t s = 0; s + 1 < plan_.stages.size(); ++s) draw_cut(s);
    return out_ + "}\n";
  }

 private:
  void draw_stage(std::size_t s) {
    const StagePlan& stage = plan_.stages[s];
    PT_CHECK(stage.first >= 0 && stage.first < stage.last &&
                 static_cast<std::size_t>(stage.last) <= chain_.elements.size(),
             kInternal, "stage {} of the plan is not part of the chain", s);
    out_ += fmt::format(
        "  subgraph cluster_{} {{\n    color=\"#9aa1a9\"; label={};\n", s,
        label(fmt::format("stage {}{}{}", s,
                          stage.replicas > 1 ? fmt::format(" on {} devices", stage.replicas) : "",
                          stage.recompute ? " (recompute)" : ""),
              fmt::format("forward {}, backward {}, memory {}", seconds_text(stage.forward_seconds),
                          seconds_text(stage.backward_seconds), bytes_text(stage.memory.total()))));
    const int count = stage.last - stage.first;
    std::string previous;
    for (int e = stage.first; e < stage.last; ++e) {
      const bool skip = count > kShown && e == stage.first + kShown / 2;
      const int left_out = count - kShown + 1;
      const std::string name = fmt::format("n{}", e);
      if (skip) {
        out_ += fmt::format("    {} [label=\"{} more\", shape=plaintext, style=\"\"];\n", name,
                            left_out);
      } else {
        const ChainCost& element = chain_.elements[static_cast<std::size_t>(e)];
        const double seconds = element.forward_seconds + element.input_gradient_seconds +
                               element.weight_gradient_seconds;
        out_ += fmt::format("    {} [label={}, fillcolor=\"{}\"];\n", name,
                            label(printable(element.name), seconds_text(seconds)),
                            kFills[s % kFills.size()]);
      }
      if (!previous.empty()) out_ += fmt::format("    {} -> {};\n", previous, name);
      previous = name;
      if (skip) e += left_out - 1;
    }
    out_ += "  }\n";
  }

  void draw_cut(std::size_t s) {
    const int before = plan_.stages[s].last - 1;
    const auto cut = static_cast<std::size_t>(plan_.stages[s + 1].first);
    const auto bytes_at = [&](const std::vector<std::size_t>& bytes) {
      return cut < bytes.size() ? bytes[cut] : 0;
    };
    out_ +=
        fmt::format("  n{} -> n{} [label=\"{} forward\\n{} back\", penwidth=2, color=\"{}\"];\n",
                    before, cut, bytes_text(bytes_at(chain_.forward_bytes)),
                    bytes_text(bytes_at(chain_.backward_bytes)), "#d1242f");
  }

  const Plan& plan_;
  const ChainCosts& chain_;
  std::string out_;
};

}  // namespace

std::string plan_dot(const Plan& plan, const ChainCosts& chain, const std::string& title) {
  return Drawing(plan, chain).text(title);
}

}  // namespace pipetrain
