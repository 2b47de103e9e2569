#include "pipeline/schedule/schedule_file.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/input_file.h"
#include "pipeline/program/check.h"
#include "pipeline/program/compute_csv.h"
#include "pipeline/program/text.h"
#include "pipeline/schedule/generate.h"

namespace pipetrain {
namespace {

constexpr std::size_t kMostFileBytes = std::size_t{1} << 28;

}  // namespace

bool names_schedule_file(const std::string& word) {
  if (word == "auto") return false;  // a search
  const auto& known = schedules();
  if (std::any_of(known.begin(), known.end(),
                  [&](const ScheduleDescription& schedule) { return schedule.name == word; })) {
    return false;
  }
  std::error_code error;
  return word.find_first_of("./\\") != std::string::npos || std::filesystem::exists(word, error);
}

Program read_schedule_file(const std::string& path) {
  const std::string text =
      with_context([] { return "reading a schedule"; },
                   [&] { return read_file(path, ErrorKind::kUsage, kMostFileBytes); });
  Program program =
      path.ends_with(".csv") ? parse_compute_csv(text, path) : parse_program(text, path);
  with_context([&] { return "reading " + printable(path); },
               [&] { check(program, ErrorKind::kUsage); });
  return program;
}

}  // namespace pipetrain
