#include "cli/output/report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/options/options.h"
#include "cli/output/line_chart.h"
#include "cli/output/output.h"
#include "pipeline/view/svg.h"
#include "pipeline/view/trace_diff.h"
#include "train/folder_lock.h"

namespace pipetrain {
namespace {

constexpr const char* kStyle =
    "<style>\n"
    ":root{color-scheme:light dark;--ink:#1f2328;--soft:#656d76;--page:#fff;--card:#f6f8fa;"
    "--line:#d0d7de;--blue:#3b7dd8;--orange:#d9791f;--green:#2a9d74}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa4af;--page:#14171c;"
    "--card:#1c2128;--line:#373e47}}\n"
    "body{font:14px/1.45 system-ui,'DejaVu Sans',Helvetica,sans-serif;color:var(--ink);"
    "background:var(--page);max-width:1130px;margin:24px auto;padding:0 16px}\n"
    "h1{font-size:22px;margin:0}h2{font-size:16px;margin:28px 0 8px}p{margin:4px 0}\n"
    ".soft{color:var(--soft)}.bad{color:#d1242f;font-weight:600}\n"
    ".tiles{display:flex;flex-wrap:wrap;gap:10px;margin:16px 0}\n"
    ".tile{background:var(--card);border:1px solid var(--line);border-radius:6px;"
    "padding:8px 14px}.tile b{display:block;font-size:18px}\n"
    ".charts{display:flex;flex-wrap:wrap;gap:12px}\n"
    ".chart{background:var(--card);border:1px solid var(--line);border-radius:6px;max-width:100%;"
    "height:auto}\n"
    ".chart text{font-size:11px;fill:var(--ink)}.chart .head{font-weight:600;font-size:12px}\n"
    ".chart .name{text-anchor:end}.chart .tick{text-anchor:middle;fill:var(--soft)}\n"
    ".chart .grid{stroke:var(--line)}.chart .axis{stroke:var(--soft)}\n"
    ".curve{fill:none;stroke-width:1.8}.faint{opacity:.35;stroke-width:1}"
    ".dashed{stroke-dasharray:6 3}\n"
    ".c0{stroke:var(--blue)}.c1{stroke:var(--orange)}.c2{stroke:var(--green)}.c3{stroke:#8659b5}"
    ".c4{stroke:#c9404c}.c5{stroke:#8a7a1f}\n"
    ".p0{fill:var(--blue)}.p1{fill:var(--orange)}.p2{fill:var(--green)}.p3{fill:#8659b5}"
    ".p4{fill:#c9404c}.p5{fill:#8a7a1f}\n"
    "table{border-collapse:collapse}td,th{padding:3px 12px 3px 0;text-align:left;"
    "border-bottom:1px solid var(--line);vertical-align:top}\n"
    "td.num,th.num{text-align:right;font-variant-numeric:tabular-nums}\n"
    ".bar{background:var(--blue);height:9px;border-radius:2px;min-width:1px}.wide{overflow-x:auto}"
    "\n"
    "</style>\n";

std::string shown(const char* format, double value) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "–";
}
std::string time_of(double milliseconds) {
  return std::isfinite(milliseconds) && milliseconds > 0 ? seconds_text(milliseconds / 1e3) : "–";
}
std::string percent(double share) { return shown("{:.1f} %", share * 100); }

std::string tile(const std::string& name, const std::string& value) {
  return fmt::format("<div class=\"tile\"><span class=\"soft\">{}</span><b>{}</b></div>\n", name,
                     xml_text(value));
}

template <class Member>
std::vector<double> column(const std::vector<StepRecord>& records, Member member) {
  std::vector<double> out;
  for (const StepRecord& record : records) out.push_back(static_cast<double>(record.*member));
  return out;
}
bool any_finite(const std::vector<double>& values) {
  return std::ranges::any_of(values, [](double value) { return std::isfinite(value); });
}

std::string head(const RecordedRun& run) {
  std::string state = "running, or killed";
  if (run.ended) state = run.status == "ok" ? "finished" : run.status;
  std::string out = fmt::format(
      "<h1>{}</h1>\n<p class=\"soft\">{} · {} parameters, {} operators · {} · {} samples · "
      "pipetrain {}</p>\n<p{}>{}{}</p>\n",
      xml_text(run.name), xml_text(run.model), run.parameters, run.operators,
      xml_text(run.data_format), run.samples, xml_text(run.version),
      run.ended && run.exit_code == 0 ? "" : " class=\"bad\"", xml_text(state),
      run.ended ? fmt::format(", exit code {}", run.exit_code) : "");
  if (!run.error.empty()) out += fmt::format("<p class=\"bad\">{}</p>\n", xml_text(run.error));
  return out;
}

std::string tiles(const RecordedRun& run) {
  std::string out = "<div class=\"tiles\">\n";
  out += tile("steps", fmt::format("{}", run.steps.empty() ? 0 : run.steps.back().step));
  if (!run.steps.empty()) out += tile("training loss", shown("{:.4g}", run.steps.back().loss));
  if (!run.validations.empty()) {
    const StepRecord& last = run.validations.back();
    out += tile("validation loss", shown("{:.4g}", last.loss));
    if (std::isfinite(last.accuracy)) out += tile("validation accuracy", percent(last.accuracy));
    if (std::isfinite(last.perplexity))
      out += tile("validation perplexity", shown("{:.4g}", last.perplexity));
  }
  if (run.ended) {
    out += tile("step", time_of(run.steady_step_ms));
    out += tile("whole run", time_of(run.whole_seconds() * 1e3));
    out += tile("first step", time_of(run.first_step_s * 1e3));
  }
  out += tile("predicted step", time_of(run.predicted_step_ms));
  out += tile("schedule", fmt::format("{} × {} stages × {}", run.schedule, run.stages.size(),
                                      run.micro_batches));
  return out + "</div>\n";
}

std::string charts(const RecordedRun& run) {
  const std::vector<double> steps = column(run.steps, &StepRecord::step);
  const std::vector<double> validations = column(run.validations, &StepRecord::step);
  std::string out = "<div class=\"charts\">\n";

  const std::vector<double> loss = column(run.steps, &StepRecord::loss);
  LineChart chart{"loss", "step", {}};
  const bool long_run = steps.size() >= 50;
  chart.curves.push_back({long_run ? "" : "training", steps, loss, long_run});
  if (long_run) {
    // The colours go by position: the smooth curve takes the place of the first.
    chart.curves.front().faint = true;
    chart.curves.push_back({"validation", validations, column(run.validations, &StepRecord::loss)});
    chart.curves.push_back({"training, smoothed", steps, smoothed(loss, 0.95)});
  } else {
    chart.curves.push_back({"validation", validations, column(run.validations, &StepRecord::loss)});
  }
  if (run.validations.empty()) chart.curves[1].name.clear();
  out += line_chart(chart);

  const std::vector<double> accuracy = column(run.steps, &StepRecord::accuracy);
  if (any_finite(accuracy)) {
    out += line_chart({"accuracy",
                       "step",
                       {{"training", steps, long_run ? smoothed(accuracy, 0.95) : accuracy},
                        {run.validations.empty() ? "" : "validation", validations,
                         column(run.validations, &StepRecord::accuracy)}}});
  }
  std::vector<double> predicted(steps.size(), run.predicted_step_ms);
  out += line_chart({"ms per step",
                     "step",
                     {{"measured", steps, column(run.steps, &StepRecord::step_ms)},
                      {"predicted", steps, predicted},
                      {"waiting for data", steps, column(run.steps, &StepRecord::data_ms)}},
                     /*from_zero=*/true});
  out +=
      line_chart({"bubble",
                  "step",
                  {{"measured", steps, column(run.steps, &StepRecord::bubble)},
                   {"predicted", steps, std::vector<double>(steps.size(), run.predicted_bubble)}},
                  /*from_zero=*/true});
  out += line_chart(
      {"learning rate", "step", {{"", steps, column(run.steps, &StepRecord::lr)}}, true});
  const std::vector<double> norms = column(run.steps, &StepRecord::grad_norm);
  if (any_finite(norms)) out += line_chart({"gradient norm", "step", {{"", steps, norms}}, true});
  const std::vector<double> scales = column(run.steps, &StepRecord::loss_scale);
  if (any_finite(scales)) out += line_chart({"loss scale", "step", {{"", steps, scales}}, true});
  return out + "</div>\n";
}

/// The mean busy time of each device as a fraction of the step, without the first few steps.
std::vector<double> mean_busy(const RecordedRun& run) {
  std::vector<double> sums(run.steps.empty() ? 0 : run.steps.back().stage_busy.size(), 0);
  std::size_t count = 0;
  for (std::size_t i = std::min<std::size_t>(3, run.steps.size() / 2); i < run.steps.size(); ++i) {
    if (run.steps[i].stage_busy.size() != sums.size()) continue;
    ++count;
    for (std::size_t d = 0; d < sums.size(); ++d) sums[d] += run.steps[i].stage_busy[d];
  }
  for (double& sum : sums) sum = count > 0 ? sum / static_cast<double>(count) : NAN;
  return sums;
}

/// The device of each stage; empty where a stage has several, or shares one. `count`: of devices.
std::vector<std::size_t> own_devices(const RecordedRun& run, std::size_t count) {
  std::vector<std::size_t> out;
  std::set<std::size_t> known;
  for (std::size_t s = 0; s < run.stages.size(); ++s) {
    const std::vector<int>& devices = run.stages[s].devices;
    if (devices.size() > 1 || (!devices.empty() && devices[0] < 0)) return {};
    out.push_back(devices.empty() ? s : static_cast<std::size_t>(devices[0]));
    if (out[s] >= count || !known.insert(out[s]).second) return {};
  }
  if (out.size() != count) return {};
  return out;
}

std::string bar(double share) {
  return fmt::format("<div class=\"bar\" style=\"width:{:.0f}px\"></div>",
                     std::isfinite(share) ? 160 * std::clamp(share, 0.0, 1.0) : 0.0);
}

std::string stages(const RecordedRun& run) {
  if (run.stages.empty()) return "";
  std::int64_t most = 1;
  for (const StageRecord& stage : run.stages) most = std::max(most, stage.memory_bytes);
  const std::vector<double> busy = mean_busy(run);
  const std::vector<std::size_t> device_of = own_devices(run, busy.size());
  std::string out =
      "<h2>Stages</h2>\n<div class=\"wide\"><table><tr><th>stage<th>from<th>to<th "
      "class=\"num\">parameters<th class=\"num\">forward<th class=\"num\">backward";
  if (!device_of.empty()) out += "<th class=\"num\">busy";
  out += "<th class=\"num\">memory<th></tr>\n";
  for (std::size_t s = 0; s < run.stages.size(); ++s) {
    const StageRecord& stage = run.stages[s];
    out += fmt::format(
        "<tr><td>{}<td>{}<td>{}<td class=\"num\">{}<td class=\"num\">{}<td class=\"num\">{}"
        "{}<td class=\"num\">{}<td>{}</tr>\n",
        s, xml_text(stage.first_op), xml_text(stage.last_op), stage.parameters,
        time_of(stage.forward_ms), time_of(stage.backward_ms),
        device_of.empty() ? "" : "<td class=\"num\">" + percent(busy[device_of[s]]),
        bytes_text(static_cast<std::size_t>(stage.memory_bytes)),
        bar(static_cast<double>(stage.memory_bytes) / static_cast<double>(most)));
  }
  out += "</table></div>\n<p class=\"soft\">Forward and backward as predicted, for one of ";
  out +=
      fmt::format("{} micro-batches of {} samples.</p>\n", run.micro_batches, run.micro_batch_size);
  if (device_of.empty() && !busy.empty()) {
    out += "<p class=\"soft\">Busy:";
    for (std::size_t d = 0; d < busy.size(); ++d)
      out += fmt::format("{} device {} {}", d > 0 ? "," : "", d, percent(busy[d]));
    out += "</p>\n";
  }
  for (const std::string& reason : run.cut_reasons)
    out += fmt::format("<p class=\"soft\">cut {}</p>\n", xml_text(reason));
  return out;
}

/// Null: none.
struct ComparedSteps {
  const TraceStep* predicted = nullptr;
  const TraceStep* measured = nullptr;
};

/// The first predicted step, and the first measured one of the same program, or else of any.
ComparedSteps compared_steps(const TraceFile& trace) {
  ComparedSteps out;
  const auto first = [&](const auto& fits) -> const TraceStep* {
    const auto found = std::ranges::find_if(trace.steps, fits);
    return found != trace.steps.end() ? &*found : nullptr;
  };
  const auto is_measured = [](const TraceStep& step) { return step.side == TraceSide::kMeasured; };
  out.predicted = first([](const TraceStep& step) { return step.side == TraceSide::kPredicted; });
  if (out.predicted) {
    const Program& program = trace.programs[out.predicted->program];
    out.measured = first([&](const TraceStep& step) {
      return is_measured(step) && trace.programs[step.program] == program;
    });
  }
  if (!out.measured) out.measured = first(is_measured);
  return out;
}

/// A measured step below its prediction.
std::string gantt(const TraceFile& trace) {
  const auto [predicted, measured] = compared_steps(trace);
  if (!measured) return "";
  Gantt image;
  for (const TraceStep* step : {predicted, measured}) {
    if (!step) continue;
    image.panels.push_back(
        {to_text(step->side), &trace.programs[step->program], &step->events, step->buckets});
  }
  return "<h2>A step, predicted and measured</h2>\n<div class=\"wide\">" + gantt_svg(image) +
         "</div>\n";
}

/// Why the measured step took longer, as `trace diff` says.
std::string causes(const TraceFile& trace) {
  const auto [predicted, measured] = compared_steps(trace);
  if (!measured || !predicted ||
      trace.programs[measured->program] != trace.programs[predicted->program])
    return "";
  const StepDifference difference =
      explain(trace.programs[measured->program], predicted->events, measured->events, 0,
              {predicted->buckets, measured->buckets});
  std::string out = "<h2>Why it differs</h2>\n<pre>";
  std::istringstream text(difference_text(difference));
  for (std::string line; std::getline(text, line);) out += xml_text(line) + "\n";
  return out + "</pre>\n";
}

/// The cells of a line of CSV.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  bool is_quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool doubled = is_quoted && line[i] == '"' && i + 1 < line.size() && line[i + 1] == '"';
    if (doubled) ++i;
    if (line[i] == '"' && !doubled) {
      is_quoted = !is_quoted;
    } else if (line[i] == ',' && !is_quoted) {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
    }
  }
  return cells;
}

/// What `eval --confusion RUN/confusion.csv` wrote: labels down, predictions across.
std::string confusion(const std::string& csv) {
  if (csv.empty()) return "";
  std::string out =
      "<h2>Confusion matrix</h2>\n<p class=\"soft\">Rows are labels, columns "
      "predictions.</p>\n<div class=\"wide\"><table>\n";
  bool is_head = true;
  for (std::size_t begin = 0; begin < csv.size(); is_head = false) {
    const std::size_t end = std::min(csv.find('\n', begin), csv.size());
    const std::vector<std::string> cells = cells_of(csv.substr(begin, end - begin));
    begin = end + 1;
    out += "<tr>";
    for (std::size_t i = 0; i < cells.size(); ++i)
      out += fmt::format("<{}{}>{}", is_head || i == 0 ? "th" : "td", i > 0 ? " class=\"num\"" : "",
                         xml_text(cells[i]));
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string kernels(const RecordedRun& run) {
  if (run.kernels.empty()) return "";
  double total = 0;
  for (const KernelRecord& kernel : run.kernels) total += kernel.seconds;
  std::string out =
      "<h2>Slowest kernels of a micro-batch</h2>\n<div class=\"wide\"><table><tr><th>operator"
      "<th>node<th>part<th class=\"num\">time<th class=\"num\">share<th></tr>\n";
  for (std::size_t i = 0; i < std::min<std::size_t>(12, run.kernels.size()); ++i) {
    const KernelRecord& kernel = run.kernels[i];
    const double share = total > 0 ? kernel.seconds / total : 0;
    out +=
        fmt::format("<tr><td>{}<td>{}<td>{}<td class=\"num\">{}<td class=\"num\">{}<td>{}</tr>\n",
                    xml_text(kernel.op), xml_text(kernel.name), xml_text(kernel.part),
                    seconds_text(kernel.seconds), percent(share), bar(share));
  }
  return out + "</table></div>\n";
}

std::string settings(const std::vector<std::pair<std::string, std::string>>& changed) {
  if (changed.empty()) return "";
  std::string out = "<h2>Settings that differ from the defaults</h2>\n<table>\n";
  for (const auto& [name, value] : changed)
    out += fmt::format("<tr><td>--{}<td>{}</tr>\n", xml_text(name), xml_text(value));
  return out + "</table>\n";
}

/// The settings of the run that differ from the defaults of this version.
std::vector<std::pair<std::string, std::string>> changed_settings(const RecordedRun& run) {
  Options defaults;
  std::map<std::string, std::string> usual;
  for (const OptionSpec& spec : describe_options(defaults)) {
    if (spec.get) usual[spec.name.substr(2)] = spec.get();
    for (const OptionSpec& part : spec.parts)
      if (part.get) usual[part.name.substr(2)] = part.get();
  }
  std::vector<std::pair<std::string, std::string>> changed;
  for (const auto& [name, value] : run.config) {
    const auto found = usual.find(name);
    if (found == usual.end() || found->second != value) changed.emplace_back(name, value);
  }
  return changed;
}

/// `folder`: of the run. The file is there when the run has ended; until then, and after a later
/// run has replaced it, it may be another run's.
std::optional<TraceFile> trace_of(const RecordedRun& run, const std::filesystem::path& folder) {
  const std::string path = run.option("trace");
  if (path.empty()) return std::nullopt;
  const bool goes_on = !run.ended && (is_locked(folder) || is_locked(folder / "logs"));
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown)) {
    if (!goes_on)
      log_warning("report", "without its trace: there is no file \"{}\"", printable(path));
    return std::nullopt;
  }
  try {
    TraceFile trace = read_trace(path);
    if (trace.run.empty() || run.names.contains(trace.run)) return trace;
    if (!goes_on)
      log_warning("report", "without its trace: \"{}\" is of run {}", printable(path),
                  printable(trace.run));
  } catch (const Error& error) {
    log_warning("report", "without its trace: {}", error.what());
  }
  return std::nullopt;
}

}  // namespace

std::string page_begin(const std::string& title) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n{}</head>\n"
      "<body>\n",
      xml_text(title), kStyle);
}

std::string report_html(const RecordedRun& run,
                        const std::vector<std::pair<std::string, std::string>>& changed,
                        const std::optional<TraceFile>& trace, const std::string& confusion_csv) {
  return page_begin(run.name) + head(run) + tiles(run) + charts(run) + stages(run) +
         (trace ? gantt(*trace) + causes(*trace) : "") + confusion(confusion_csv) + kernels(run) +
         settings(changed) + "</body>\n</html>\n";
}

std::string curves_csv(const RecordedRun& run) {
  std::map<std::int64_t, const StepRecord*> validations;
  for (const StepRecord& record : run.validations) validations[record.step] = &record;
  std::string out =
      "step,epoch,loss,accuracy,lr,grad_norm,step_ms,data_ms,samples_per_s,bubble,val_loss,"
      "val_accuracy\n";
  const auto cell = [](double value) {
    return std::isfinite(value) ? fmt::format("{}", value) : "";
  };
  for (const StepRecord& step : run.steps) {
    const auto found = validations.find(step.step);
    const StepRecord* validation = found != validations.end() ? found->second : nullptr;
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}\n", step.step, cell(step.epoch),
                       cell(step.loss), cell(step.accuracy), cell(step.lr), cell(step.grad_norm),
                       cell(step.step_ms), cell(step.data_ms), cell(step.samples_per_s),
                       cell(step.bubble), validation ? cell(validation->loss) : "",
                       validation ? cell(validation->accuracy) : "");
  }
  return out;
}

int report_command(const ReportOptions& options) {
  std::vector<RecordedRun> runs;
  for (const std::string& path : options.runs) runs.push_back(read_run(path));
  if (runs.size() > 1) {
    PT_CHECK(options.curves.empty(), kUsage, "--curves needs a single run");
    const std::string output = options.output.empty() ? "comparison.html" : options.output;
    write_or_print(output, comparison_html(runs));
    if (options.output.empty()) print(output + "\n");
    return 0;
  }
  check_one_prints({{"--curves -", options.curves == "-"}, {"--output -", options.output == "-"}});
  const RecordedRun& run = runs.front();
  if (!options.curves.empty()) write_or_print(options.curves, curves_csv(run));
  if (!options.curves.empty() && options.output.empty()) return 0;
  const std::filesystem::path path = options.runs.front();
  const std::filesystem::path folder =
      std::filesystem::is_directory(path) ? path : path.parent_path();
  const std::filesystem::path output =
      options.output.empty() ? folder / "report.html" : std::filesystem::path(options.output);
  const std::string confusion_csv =
      read_if_file(folder / "confusion.csv", std::size_t{64} << 20).value_or("");
  write_or_print(output.string(),
                 report_html(run, changed_settings(run), trace_of(run, folder), confusion_csv));
  if (options.output.empty()) print(output.string() + "\n");
  return 0;
}

}  // namespace pipetrain
