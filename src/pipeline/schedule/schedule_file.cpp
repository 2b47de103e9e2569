#include "pipeline/schedule/schedule_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "pipeline/program/check.h"
#include "pipeline/program/compute_csv.h"
#include "pipeline/program/text.h"
#include "pipeline/schedule/generate.h"

namespace pipetrain {
namespace {

constexpr std::uintmax_t kMostFileBytes = std::uintmax_t{1} << 28;

std::string contents_of(const std::string& path) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  PT_CHECK(!error && bytes <= kMostFileBytes, kUsage, "cannot read the schedule \"{}\": {}",
           printable(path), error ? error.message() : "too large for a schedule");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  PT_CHECK(file.good() || file.eof(), kUsage, "cannot read the schedule \"{}\"", printable(path));
  return text.str();
}

}  // namespace

bool names_schedule_file(const std::string& word) {
  const auto& known = schedules();
  if (std::any_of(known.begin(), known.end(),
                  [&](const ScheduleDescription& schedule) { return schedule.name == word; })) {
    return false;
  }
  std::error_code error;
  return word.find_first_of("./\\") != std::string::npos || std::filesystem::exists(word, error);
}

Program read_schedule_file(const std::string& path) {
  const std::string text = contents_of(path);
  Program program =
      path.ends_with(".csv") ? parse_compute_csv(text, path) : parse_program(text, path);
  with_context([&] { return "reading " + printable(path); },
               [&] { check(program, ErrorKind::kUsage); });
  return program;
}

}  // namespace pipetrain
