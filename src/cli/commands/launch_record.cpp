#include "cli/commands/launch_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/document.h"
#include "base/error.h"
#include "base/log.h"
#include "processes/starter_watch.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSchema = "pipetrain.launch/1";
constexpr std::size_t kIdDigits = 32;  // in the name of the folder of the commits
constexpr int kRuns = -1;              // in place of an exit code

/// The exit code that a record has; empty: of a launch that has not ended, or not readable.
std::optional<int> exit_code_in(const fs::path& record) {
  try {
    const Document document = Document::read(record, kSchema);
    if (document.root().at("state").text() != "ended") return {};
    return static_cast<int>(document.root().at("exit_code").integer(0, 255));
  } catch (const Error&) {
    return {};
  }
}

/// What tells a folder from a copy of it, on whichever host; empty: it is not there. Over NFS,
/// hosts have different device numbers for it.
std::string inode_of(const fs::path& folder) {
  struct stat status {};
  return ::stat(folder.c_str(), &status) == 0 ? fmt::format("{}", status.st_ino) : "";
}

}  // namespace

LaunchRecord::LaunchRecord(fs::path path, Launcher launcher)
    : path_(std::move(path)), launcher_(launcher) {
  try {
    const Document document = Document::read(path_, kSchema);
    const DocumentField root = document.root();
    const std::string number = root.at("commits").text();
    if (number.size() != kIdDigits || number.find_first_not_of("0123456789abcdef") != number.npos)
      return;
    // The commits of a copied run belong to the one it was copied from.
    if (root.at("inode").text() != inode_of(path_.parent_path())) return;
    commits_id_ = number;
    struct stat status {};  // hosts that somebody else has written down are not contacted
    if (::stat(path_.c_str(), &status) != 0 || status.st_uid != ::geteuid()) return;
    std::string names;
    for (std::size_t i = 0; i < root.at("hosts").size(); ++i)
      names += root.at("hosts").item(i).text() + "\n";
    hosts_ = parse_hosts(names, path_.string());
  } catch (const Error&) {
    // There is none, or it does not say.
  }
}

void LaunchRecord::choose_new_commits() {
  forget_commits();
  std::random_device device;
  while (commits_id_.size() < kIdDigits) commits_id_ += fmt::format("{:x}", device() % 16);
}

void LaunchRecord::forget_commits() {
  commits_id_.clear();
  hosts_.clear();
}

void LaunchRecord::begin() { write(kRuns); }

void LaunchRecord::renew() const { ::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0); }

void LaunchRecord::add_hosts(const std::vector<LaunchHost>& hosts) {
  bool is_new = false;
  for (const LaunchHost& host : hosts) {
    if (std::ranges::find(hosts_, host.name, &LaunchHost::name) != hosts_.end()) continue;
    hosts_.push_back({host.name, 1});
    is_new = true;
  }
  if (is_new) write_if_possible(kRuns);
}

void LaunchRecord::end(int code) { write_if_possible(code); }

void LaunchRecord::write_if_possible(int code) const {
  try {
    write(code);
  } catch (const Error& error) {
    log_warning("launch", "{}", error.message());
  }
}

void LaunchRecord::write(int code) const {
  nlohmann::ordered_json body;
  body["state"] = code == kRuns ? "running" : "ended";
  if (code != kRuns) body["exit_code"] = code;
  body["pid"] = ::getpid();
  body["launcher"] = name_of(launcher_);
  if (has_commits()) {
    body["commits"] = commits_id_;
    body["inode"] = inode_of(path_.parent_path());
    body["hosts"] = nlohmann::ordered_json::array();
    for (const LaunchHost& host : hosts_) body["hosts"].push_back(host.name);
  }
  write_document(path_, kSchema, body);
}

void leave_earlier_launch(const fs::path& folder) {
  const fs::path path = folder / kLaunchRecord;
  const LaunchRecord record(path, Launcher::kMpirun);
  std::error_code failed;
  fs::remove(path, failed);
  PT_CHECK(!failed, kResource, "cannot delete {}, of an earlier launch of the run: {}",
           printable(path.string()), failed.message());
  if (record.has_commits())
    log_warning("train",
                "this run leaves what an earlier launch has kept in memory; on each of its hosts, "
                "delete {}",
                record.commits_folder().string());
}

int wait_for_launch(const fs::path& record, const std::string& starter) {
  StarterWatch watch;
  for (;; std::this_thread::sleep_for(std::chrono::seconds(1))) {
    std::error_code failed;
    const auto time = fs::last_write_time(record, failed);
    const std::optional<std::int64_t> written =
        failed ? std::nullopt : std::optional<std::int64_t>(time.time_since_epoch().count());
    const std::optional<int> code = exit_code_in(record);
    switch (watch.look(written, code.has_value(), steady_seconds())) {
      case StarterWatch::State::kRuns:
        break;
      case StarterWatch::State::kEnded:
        return *code;
      case StarterWatch::State::kSilent:
        PT_FAIL(kDevice,
                "{} has not renewed {} for {:.0f} s, so its launch has died or its host is lost; "
                "start it again",
                starter, printable(record.string()), StarterWatch::kMostSilence);
      case StarterWatch::State::kAbsent:
        PT_FAIL(kResource,
                "{} has not started training within {:.0f} s; see why in its output, and check "
                "that all hosts see {}",
                starter, StarterWatch::kPatience, printable(record.string()));
    }
  }
}

}  // namespace pipetrain
