#include "cli/output/mlflow.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "base/output_file.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExperiment = "0";  // which MLflow calls "Default"

std::int64_t now_in_milliseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

/// A text in YAML: JSON's strings are strings of YAML.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string new_id() {
  std::random_device device;
  std::string id;
  while (id.size() < 32) id += fmt::format("{:08x}", device());
  return id;
}

bool is_id(const std::string& text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

void make_experiment(const fs::path& folder) {
  if (fs::exists(folder / "meta.yaml")) return;
  const std::int64_t now = now_in_milliseconds();
  write_file(folder / "meta.yaml",
             fmt::format("artifact_location: {}\ncreation_time: {}\nexperiment_id: '{}'\n"
                         "last_update_time: {}\nlifecycle_stage: active\nname: Default\n",
                         quoted("file://" + folder.string()), now, kExperiment, now));
}

/// When a run has begun, as its meta.yaml says; 0: it does not.
std::int64_t start_in(const fs::path& meta) {
  constexpr std::string_view kKey = "\nstart_time: ";
  const std::string text = read_if_file(meta, std::size_t{1} << 20).value_or("");
  const std::size_t at = text.find(kKey);
  std::int64_t start = 0;
  if (at != std::string::npos)
    std::from_chars(text.data() + at + kKey.size(), text.data() + text.size(), start);
  return start;
}

}  // namespace

MlflowRun::MlflowRun(const fs::path& store, const fs::path& id_file, bool goes_on, std::string name,
                     const std::vector<std::pair<std::string, std::string>>& parameters)
    : name_(std::move(name)), start_(now_in_milliseconds()) {
  if (store.empty()) return;
  const fs::path experiment = fs::absolute(store).lexically_normal() / kExperiment;
  if (goes_on) id_ = read_if_file(id_file, 64).value_or("");
  if (id_.ends_with('\n')) id_.pop_back();
  if (!is_id(id_)) id_ = new_id();
  folder_ = experiment / id_;
  if (const std::int64_t start = start_in(folder_ / "meta.yaml"); start > 0) start_ = start;
  std::error_code error;
  for (const char* part : {"metrics", "params", "tags", "artifacts"}) {
    fs::create_directories(folder_ / part, error);
    PT_CHECK(!error, kResource, "--log-to mlflow: cannot make the folder \"{}\": {}",
             printable((folder_ / part).string()), error.message());
  }
  make_experiment(experiment);
  write_file(id_file, id_ + "\n");
  write_file(folder_ / "tags" / "mlflow.runName", name_);
  for (const auto& [key, value] : parameters) write_file(folder_ / "params" / key, value);
  write_meta(Status::kRunning);
}

void MlflowRun::write(std::int64_t step, const Scalars& scalars) {
  if (folder_.empty()) return;
  const std::int64_t now = now_in_milliseconds();
  warning_on_error([&] {
    for (const auto& [tag, value] : scalars) {
      if (!std::isfinite(value)) continue;
      const fs::path path = folder_ / "metrics" / tag;
      std::error_code error;
      fs::create_directories(path.parent_path(), error);
      write_text(path, OutputMode::kAppend, fmt::format("{} {} {}\n", now, value, step),
                 "--log-to mlflow: ");
    }
  });
}

void MlflowRun::end(bool success) {
  if (folder_.empty()) return;
  warning_on_error([&] { write_meta(success ? Status::kFinished : Status::kFailed); });
}

void MlflowRun::warning_on_error(const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& error) {
    if (!std::exchange(has_warned_, true))
      log_warning("mlflow", "{}; training goes on", error.message());
  }
}

void MlflowRun::write_meta(Status status) const {
  const bool ended = status != Status::kRunning;
  const char* user = ::getlogin();
  write_file(
      folder_ / "meta.yaml",
      fmt::format("artifact_uri: {}\nend_time: {}\nentry_point_name: ''\nexperiment_id: "
                  "'{}'\nlifecycle_stage: active\nrun_id: {}\nrun_name: {}\nrun_uuid: {}\n"
                  "source_name: pipetrain\nsource_type: 4\nsource_version: ''\nstart_time: "
                  "{}\nstatus: {}\ntags: []\nuser_id: {}\n",
                  quoted("file://" + (folder_ / "artifacts").string()),
                  ended ? fmt::format("{}", now_in_milliseconds()) : "null", kExperiment, id_,
                  quoted(name_), id_, start_, static_cast<int>(status), quoted(user ? user : "")));
}

}  // namespace pipetrain
