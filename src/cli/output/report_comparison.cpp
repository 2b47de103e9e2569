// Several runs on one page.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/units.h"
#include "cli/output/line_chart.h"
#include "cli/output/report.h"
#include "pipeline/view/svg.h"

namespace pipetrain {
namespace {

std::string number_cell(double value, const char* format = "{:.4g}") {
  return "<td class=\"num\">" +
         (std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : std::string("–"));
}

/// The least or the largest value of the validations; NaN if there is none.
double best_of(const std::vector<StepRecord>& records, double StepRecord::*member, bool most) {
  double best = NAN;
  for (const StepRecord& record : records) {
    const double value = record.*member;
    if (std::isfinite(value) && (!std::isfinite(best) || (most ? value > best : value < best)))
      best = value;
  }
  return best;
}

std::string results(const std::vector<RecordedRun>& runs) {
  std::string out =
      "<div class=\"wide\"><table><tr><th>run<th>model<th>state<th class=\"num\">steps<th "
      "class=\"num\">training loss<th class=\"num\">best validation loss<th class=\"num\">best "
      "accuracy<th class=\"num\">step<th class=\"num\">whole run</tr>\n";
  for (const RecordedRun& run : runs) {
    out += fmt::format("<tr><td>{}<td>{}<td>{}<td class=\"num\">{}", xml_text(run.name),
                       xml_text(run.model), xml_text(run.ended ? run.status : "running, or killed"),
                       run.steps.empty() ? 0 : run.steps.back().step);
    out += number_cell(run.steps.empty() ? NAN : run.steps.back().loss);
    out += number_cell(best_of(run.validations, &StepRecord::loss, /*most=*/false));
    out += number_cell(100 * best_of(run.validations, &StepRecord::accuracy, /*most=*/true),
                       "{:.2f} %");
    const auto time = [](double seconds) {
      return seconds > 0 ? seconds_text(seconds) : std::string("–");
    };
    out += fmt::format("<td class=\"num\">{}<td class=\"num\">{}</tr>\n",
                       time(run.steady_step_ms / 1e3), time(run.whole_seconds()));
  }
  return out + "</table></div>\n";
}

/// Curves of all runs; empty names share no legend.
std::string curves(const std::vector<RecordedRun>& runs) {
  const auto chart = [&](const char* title, const std::vector<StepRecord> RecordedRun::*records,
                         double StepRecord::*member, double keep) {
    LineChart out{title, "step", {}};
    for (const RecordedRun& run : runs) {
      Curve curve{run.name, {}, {}};
      for (const StepRecord& record : run.*records) {
        curve.x.push_back(static_cast<double>(record.step));
        curve.y.push_back(record.*member);
      }
      if (keep > 0) curve.y = smoothed(curve.y, keep);
      out.curves.push_back(std::move(curve));
    }
    return line_chart(out);
  };
  return "<h2>Curves</h2>\n<div class=\"charts\">\n" +
         chart("training loss, smoothed", &RecordedRun::steps, &StepRecord::loss, 0.9) +
         chart("validation loss", &RecordedRun::validations, &StepRecord::loss, 0) +
         chart("validation accuracy", &RecordedRun::validations, &StepRecord::accuracy, 0) +
         chart("ms per step", &RecordedRun::steps, &StepRecord::step_ms, 0.9) + "</div>\n";
}

/// The settings in which the runs differ.
std::string differences(const std::vector<RecordedRun>& runs) {
  std::map<std::string, std::vector<std::string>> values;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [name, value] : runs[i].config) {
      values[name].resize(runs.size());
      values[name][i] = value;
    }
  }
  std::string rows;
  for (const auto& [name, all] : values) {
    if (std::set<std::string>(all.begin(), all.end()).size() < 2) continue;
    rows += fmt::format("<tr><td>--{}", xml_text(name));
    for (const std::string& value : all) rows += "<td>" + xml_text(value);
    rows += "</tr>\n";
  }
  if (rows.empty()) return "";
  std::string head = "<tr><th>setting";
  for (const RecordedRun& run : runs) head += "<th>" + xml_text(run.name);
  return "<h2>Settings that differ</h2>\n<div class=\"wide\"><table>" + head + "</tr>\n" + rows +
         "</table></div>\n";
}

}  // namespace

std::string comparison_html(const std::vector<RecordedRun>& runs) {
  return page_begin(fmt::format("{} runs", runs.size())) +
         fmt::format("<h1>{} runs</h1>\n", runs.size()) + results(runs) + curves(runs) +
         differences(runs) + "</body>\n</html>\n";
}

}  // namespace pipetrain
