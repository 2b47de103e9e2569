// pipetrain report: writes a run as one self-contained HTML page (no script, font or network).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/output/run_record.h"
#include "pipeline/view/trace.h"

namespace pipetrain {

struct ReportOptions {
  std::vector<std::string> runs;  // folders, or their events files; several are compared
  std::string output;  // HTML file or -; empty: report.html in the folder
  std::string curves;  // file or - for the curves as CSV, without the page unless it is asked for
};

/// Writes the requested files and returns the exit code. Throws Error(kUsage) if there is no run.
int report_command(const ReportOptions& options);

/// The page. `changed`: the settings to list, name and value. `trace`: predicted and measured steps
/// to draw one above the other, where the run recorded some. `confusion_csv`: as eval writes it.
std::string report_html(const RecordedRun& run,
                        const std::vector<std::pair<std::string, std::string>>& changed,
                        const std::optional<TraceFile>& trace,
                        const std::string& confusion_csv = {});

/// A page with several runs side by side: results, curves, and the settings that differ.
std::string comparison_html(const std::vector<RecordedRun>& runs);

/// The page's head with its style, up to the title.
std::string page_begin(const std::string& title);

/// One line per step: step, epoch, losses, accuracies, rate, times; empty where nothing is known.
std::string curves_csv(const RecordedRun& run);

}  // namespace pipetrain
