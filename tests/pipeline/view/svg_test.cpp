#include "pipeline/view/svg.h"

#include <gtest/gtest.h>

#include "pipeline/simulate/simulate.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

/// Says what is wrong with a document of elements, attributes in double quotes and texts; "" where
/// it is well-formed.
std::string xml_mistake(const std::string& text) {
  std::vector<std::string> open;
  int roots = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '&') {
      const std::size_t end = text.find(';', at);
      const std::string name = text.substr(at, end - at + 1);
      if (name != "&amp;" && name != "&lt;" && name != "&gt;" && name != "&quot;") return name;
      at = end + 1;
      continue;
    }
    if (text[at] != '<') {
      ++at;
      continue;
    }
    const std::size_t end = text.find('>', at);
    if (end == std::string::npos) return "an open tag";
    std::string tag = text.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.find('<') != std::string::npos) return "'<' in " + tag;
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "quotes in " + tag;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "</" + tag.substr(1) + ">";
      open.pop_back();
      continue;
    }
    if (open.empty() && ++roots > 1) return "two roots";
    const std::string name = tag.substr(0, tag.find_first_of(" /"));
    if (name.empty() || !std::isalpha(static_cast<unsigned char>(name[0]))) return "<" + tag;
    if (tag.back() != '/') open.push_back(name);
  }
  return open.empty() ? "" : "not closed: " + open.back();
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

TEST(Svg, TheCheckOfThisTestFindsMistakes) {
  EXPECT_EQ(xml_mistake("<a><b x=\"1\"/>t &lt; u</a>"), "");
  for (const char* wrong : {"<a><b></a>", "<a>", "<a>1 < 2</a>", "<a x=\"1></a>", "<a>&x;</a>"})
    EXPECT_NE(xml_mistake(wrong), "") << wrong;
}

TEST(Svg, DrawsEveryInstructionOnce) {
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "pipedream", "interleaved-1f1b", "zb-v"}) {
    const Program program = lowered(options_for(name, 8, 8));
    Costs costs = uniform_costs(program, {1e-3, 2e-3, 1e-3, 1e-3, 1e-3, 1e-4});
    costs.link.latency_seconds = 1e-4;
    const Simulation result = simulate(program, costs);
    std::size_t work = 0;
    for (const auto& list : program.device)
      work += static_cast<std::size_t>(
          std::count_if(list.begin(), list.end(), [](const Instruction& instruction) {
            return is_compute(instruction.kind) || instruction.kind == Kind::kUpdate;
          }));
    Gantt gantt;
    gantt.panels.push_back({"predicted", &program, &result.events});
    const std::string bare = gantt_svg(gantt);
    EXPECT_EQ(xml_mistake(bare), "") << name;
    EXPECT_EQ(count_of(bare, "<g><title>"), work) << name;
    gantt.communication = true;
    const std::string full = gantt_svg(gantt);
    EXPECT_EQ(xml_mistake(full), "") << name;
    // Latency alone: a send takes no time, so every transfer is one receive.
    EXPECT_EQ(count_of(full, "<g><title>"), work + program.transfers.size()) << name;
    // Two panels, on one axis.
    gantt.panels.push_back({"measured", &program, &result.events});
    const std::string both = gantt_svg(gantt);
    EXPECT_EQ(xml_mistake(both), "") << name;
    EXPECT_EQ(count_of(both, "<g><title>"), 2 * (work + program.transfers.size())) << name;
    EXPECT_LT(both.find(">predicted · "), both.find(">measured · "));
  }
}

TEST(Svg, StandsAlone) {
  const Program program = lowered(options_for("1f1b", 2, 2));
  const Simulation result = simulate(program, uniform_costs(program, {}));
  Gantt gantt;
  gantt.title = "a<b> & \"c\"\n";
  gantt.device_names = {"<cpu>"};
  gantt.panels.push_back({"", &program, &result.events});
  const std::string text = gantt_svg(gantt);
  EXPECT_EQ(xml_mistake(text), "");
  EXPECT_NE(text.find("a&lt;b&gt; &amp; &quot;c&quot;<"), std::string::npos);
  EXPECT_NE(text.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_EQ(count_of(text, "http"), 1U);  // the namespace
  for (const char* foreign : {"<script", "@import", "url(", "href", "<image"})
    EXPECT_EQ(text.find(foreign), std::string::npos) << foreign;
}

TEST(Svg, WhatIsNoCharacterOfXmlIsNotInIt) {
  EXPECT_EQ(xml_text("caf\xe9<"), "caf\\xe9&lt;");
  EXPECT_EQ(xml_text("a\xef\xbf\xbfz\xef\xbf\xbe\xef\xbf\xbd\n\x7f"), "az\xef\xbf\xbd\\u007f");
  EXPECT_EQ(xml_text("Größe 東京"), "Größe 東京");
}

TEST(Svg, BarsLieWhereTheEventsAre) {
  const Program program = lowered(options_for("gpipe", 1, 1));
  const Simulation result = simulate(program, uniform_costs(program, {1, 3, 1, 1, 1, 0}));
  Gantt gantt;
  gantt.panels.push_back({"", &program, &result.events});
  gantt.width = 574;  // 400 columns for 4 seconds
  const std::string text = gantt_svg(gantt);
  EXPECT_NE(text.find(R"(<g><title>0F0 forward: 0 s to 1.00 s (1.00 s)</title>)"
                      R"(<rect class="f" x="150.00" y="54.0" width="99.40" height="30.0"/>)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(R"(<rect class="b" x="250.00" y="54.0" width="299.40" height="30.0"/>)"),
            std::string::npos)
      << text;
}

TEST(Svg, BucketsOfGradientsHaveALaneOfTheirOwn) {
  const Program program = lowered(options_for("gpipe", 1, 1));
  const Simulation result = simulate(program, uniform_costs(program, {1, 3, 1, 1, 1, 0}));
  const std::vector<BucketEvent> buckets = {{0, 0, 0, 1 << 20, 2, 3}, {0, 0, 1, 4 << 20, 3, 3.5}};
  Gantt gantt;
  gantt.panels.push_back({"", &program, &result.events});
  EXPECT_EQ(gantt_svg(gantt).find("bucket"), std::string::npos);
  gantt.panels[0].buckets = buckets;
  gantt.width = 574;  // 400 columns for 4 seconds
  const std::string text = gantt_svg(gantt);
  EXPECT_EQ(xml_mistake(text), "");
  EXPECT_EQ(count_of(text, "<rect class=\"bucket\""), 3U);  // and one in the legend
  EXPECT_NE(text.find("bucket 1 of stage 0, 4.00 MiB: 3.00 s to 3.50 s"), std::string::npos)
      << text;
  EXPECT_NE(text.find(R"(<rect class="bucket" x="350.00")"), std::string::npos) << text;
  EXPECT_NE(text.find("2 buckets of gradients, 5.00 MiB, "), std::string::npos) << text;
}

TEST(Svg, PlanShowsTheMemoryOfItsStages) {
  const Program program = lowered(options_for("1f1b", 2, 4));
  const Simulation result = simulate(program, uniform_costs(program, {}));
  Plan plan;
  plan.stages.resize(2);
  plan.stages[0].memory = {1 << 20, 2 << 20, 4 << 20, 8 << 20, 0};
  plan.stages[1].memory = {1024, 0, 0, 0, 1024};
  const std::string text = plan_svg(plan, program, result.events, "x.onnx", 32 << 20);
  EXPECT_EQ(xml_mistake(text), "");
  for (const char* part :
       {"<title>stage 0 activations: 8.00 MiB</title>", ">15.0 MiB</text>",
        "<title>stage 1 transient: 1.00 KiB</title>", ">2.00 KiB</text>", "class=\"limit\""})
    EXPECT_NE(text.find(part), std::string::npos) << part;
  EXPECT_EQ(text.find("stage 0 transient:"), std::string::npos);
}

}  // namespace
}  // namespace pipetrain
