#include "cli/output/status_file.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/document.h"
#include "base/error.h"
#include "base/log.h"
#include "base/output_file.h"

namespace pipetrain {

StatusFile::StatusFile(std::string path, StepReport begin)
    : path_(std::move(path)), last_(std::move(begin)) {
  PT_CHECK(!is_special(path_), kUsage,
           "--status-file: \"{}\" is a device or a pipe, but the file is replaced every second; "
           "give a regular file, or read --metrics",
           printable(path_));
}

void StatusFile::begin() {
  if (path_.empty()) return;
  has_begun_ = true;
  write("running", -1, -1);
}

void StatusFile::step(const StepReport& report) {
  if (path_.empty()) return;
  last_ = report;
  const double now = steady_seconds();
  if (first_step_ == 0) {
    first_step_ = report.step;
    first_step_seconds_ = now;
  }
  if (written_ >= 0 && now - written_ < 1) return;
  written_ = now;
  write("running", -1, -1);
}

void StatusFile::end(const std::string& state, int exit_code, int failed_process) {
  if (!path_.empty()) write(state, exit_code, failed_process);
}

void StatusFile::write(const std::string& state, int exit_code, int failed_process) {
  Json body;
  body["state"] = state;
  if (exit_code >= 0) body["exit_code"] = exit_code;
  if (failed_process >= 0) body["failed_process"] = failed_process;
  body["pid"] = ::getpid();
  body["step"] = last_.step;
  if (first_step_ > 0 || has_begun_)
    body["first_step"] = first_step_ > 0 ? first_step_ : last_.step + 1;
  body["total_steps"] = last_.total_steps;
  body["epoch"] = last_.epoch;
  body["loss"] = first_step_ > 0 && std::isfinite(last_.loss) ? Json(last_.loss) : Json();
  if (last_.accuracy) body["accuracy"] = *last_.accuracy;
  body["lr"] = last_.learning_rate;
  body["samples_per_s"] = last_.samples_per_second;
  if (first_step_ > 0 && last_.step > first_step_) {
    const double each =
        (steady_seconds() - first_step_seconds_) / static_cast<double>(last_.step - first_step_);
    body["eta_s"] = each * static_cast<double>(last_.total_steps - last_.step);
  }
  body["checkpoint"] = checkpoint_.empty() ? Json() : Json(as_document_string(checkpoint_));
  // Not synced: it only matters while the run lasts.
  const std::string temporary = fmt::format("{}.{}.tmp", path_, ::getpid());
  try {
    write_text(temporary, OutputMode::kReplace, document_text("pipetrain.status/1", body));
    if (std::rename(temporary.c_str(), path_.c_str()) == 0) return;
  } catch (const Error&) {
    // Said below.
  }
  std::remove(temporary.c_str());
  if (!std::exchange(has_warned_, true))
    log_warning("status", "--status-file: cannot write \"{}\"; training continues without it",
                printable(path_));
}

ReportedEnd end_in_status(const std::string& text) {
  ReportedEnd end;
  const auto status = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!status.is_object()) return end;
  const auto number = [&](const char* name, std::int64_t otherwise) {
    return status.contains(name) && status[name].is_number_integer()
               ? status[name].get<std::int64_t>()
               : otherwise;
  };
  end.code = static_cast<int>(number("exit_code", -1));
  // Without it, "step" is that of the checkpoint: no step has begun.
  if (const std::int64_t first = number("first_step", 0); first > 0) {
    end.has_begun = true;
    end.steps = number("step", 0);
    end.from_step = first - 1;
  }
  end.failed_process = static_cast<int>(number("failed_process", -1));
  end.is_interrupted = status.contains("state") && status["state"] == "interrupted";
  return end;
}

}  // namespace pipetrain
