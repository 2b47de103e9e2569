#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/atomic_file.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/setting.h"
#include "base/stale_files.h"
#include "base/units.h"
#include "train/checkpoint.h"
#include "train/manifest.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kReplaced = ".replaced", kGivenUp = "given-up-";
constexpr std::size_t kLargestManifest = std::size_t{64} << 20;
constexpr std::uint64_t kSpareBytes =
    1 << 20;  // manifest, directories, what the file system needs itself

/// The step in a checkpoint's name; -1 for other names.
std::int64_t step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return -1;
  std::int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && stop == end && name == checkpoint_name(step) ? step : -1;
}

/// "step-000400" of ".step-000400.PID.replaced" and the like; empty for names without a step.
std::string checkpoint_in(const std::string& hidden) {
  const std::size_t dot = hidden.find('.', 1);
  if (!hidden.starts_with('.') || dot == hidden.npos) return {};
  const std::string name = hidden.substr(1, dot - 1);
  return step_of(name) >= 0 ? name : "";
}

/// "step-000400" of ".step-000400.PID.replaced", a checkpoint whose place a new one takes; empty
/// for other names.
std::string name_before(const std::string& name) {
  return name.ends_with(kReplaced) ? checkpoint_in(name) : "";
}

/// Where a checkpoint is that was found under such a name, and may have got its own one back since.
fs::path in_its_place(const fs::path& checkpoint) {
  const std::string name = name_before(checkpoint.filename().string());
  const fs::path place = checkpoint.parent_path() / name;
  std::error_code unknown;
  return name.empty() || !fs::exists(place, unknown) ? checkpoint : place;
}

/// Whether a run that was killed has left this, a hidden file or folder of its own. All else with
/// such an end is the user's.
bool is_leftover(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!checkpoint_in(name).empty())
    return name.ends_with(".tmp") || name.ends_with(".old") || name.ends_with(kReplaced);
  std::error_code error;
  return ((name.starts_with(".probe-") && name.ends_with(".tmp")) ||
          process_of_temporary(name) > 0) &&
         fs::is_regular_file(fs::symlink_status(path, error));
}

/// The checkpoints in a folder by their steps, the largest first.
std::vector<std::pair<std::int64_t, fs::path>> checkpoints_in(const fs::path& folder) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename().string(), before = name_before(name);
    std::error_code ignored;
    const bool was_killed = !before.empty() && !fs::exists(folder / before, ignored);
    const std::int64_t step = step_of(was_killed ? before : name);
    if (step >= 0) found.emplace_back(step, i->path());
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  return found;
}

/// Whether "latest", which names another checkpoint, was written after this one of more steps: the
/// run has gone back, and given those steps up.
bool is_given_up(const fs::path& checkpoint, const fs::path& latest) {
  std::error_code error;
  const auto written = fs::last_write_time(checkpoint / "manifest.json", error);
  // A run that was killed before it wrote "latest" has left a newer one.
  return !error && written < fs::last_write_time(latest, error) && !error;
}

/// The step of the checkpoint that a file names; -1: it names none.
std::int64_t step_named_in(const fs::path& file) {
  const std::string line = read_if_file(file, 1024).value_or("");
  return step_of(line.substr(0, line.find(' ')));
}

/// By their steps, the newest first; then those that were given up.
struct NewestFirst {
  std::vector<std::pair<std::int64_t, fs::path>> all;
  std::size_t own = 0;  // that were not given up
};
NewestFirst newest_first(const fs::path& folder) {
  NewestFirst found{checkpoints_in(folder)};
  found.own = found.all.size();
  const fs::path latest = folder / "latest";
  if (const std::int64_t step = step_named_in(latest); step >= 0) {
    const auto end = std::stable_partition(
        found.all.begin(), found.all.end(),
        [&](const auto& each) { return each.first <= step || !is_given_up(each.second, latest); });
    found.own = static_cast<std::size_t>(end - found.all.begin());
  }
  return found;
}

/// Of those that were given up, the ones that have names of their own.
std::vector<std::pair<std::int64_t, fs::path>> renamed_in(const fs::path& folder) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename().string();
    if (!name.starts_with(kGivenUp)) continue;
    if (const std::int64_t step = step_of(name.substr(kGivenUp.size())); step >= 0)
      found.emplace_back(step, i->path());
  }
  return found;
}

/// Whether its folder has no newer checkpoint; there, only those that are named by their steps
/// count.
bool is_newest(const fs::path& checkpoint) {
  const auto all = newest_first(checkpoint.parent_path()).all;
  return all.empty() || all.front().second.filename() == checkpoint.filename();
}

[[noreturn]] void fail(const char* what, const fs::path& path) {
  const int reason = errno;
  PT_FAIL(kResource, "cannot {} {}: {}", what, printable(path.string()), std::strerror(reason));
}

void sync(const fs::path& directory) {
  const std::error_code error = sync_directory(directory);
  PT_CHECK(!error, kResource, "cannot sync {}: {}", printable(directory.string()), error.message());
}

void make_folder(const fs::path& folder) {
  const std::error_code error = make_directories(folder);
  PT_CHECK(!error, kResource, "cannot create the folder {}: {}", printable(folder.string()),
           error.message());
}

fs::path unfinished_name(const fs::path& folder, std::int64_t step, const char* kind) {
  return folder / fmt::format(".{}.{}.{}", checkpoint_name(step), ::getpid(), kind);
}

/// Renames a checkpoint before its files are deleted, so that no reader sees a partial one.
void remove_checkpoint(const fs::path& path, std::int64_t step) {
  std::error_code error;
  const fs::path hidden = unfinished_name(path.parent_path(), step, "old");
  fs::remove_all(hidden, error);
  fs::rename(path, hidden, error);
  if (!error) fs::remove_all(hidden, error);
}

/// Gives those that were given up names of their own: once "latest" names a checkpoint of this
/// step, they would count as the run's own again.
void rename_given_up(const fs::path& folder, std::int64_t step) {
  const NewestFirst found = newest_first(folder);
  for (std::size_t i = found.own; i < found.all.size(); ++i) {
    const auto& [number, path] = found.all[i];
    if (number >= step) continue;
    const fs::path renamed = folder / (std::string(kGivenUp) + checkpoint_name(number));
    std::error_code ignored;
    if (step_named_in(folder / "best") == number) fs::remove(folder / "best", ignored);
    if (fs::exists(renamed, ignored)) remove_checkpoint(renamed, number);
    fs::rename(path, renamed, ignored);
  }
}

/// Puts the new directory at `path`, instead of an older one if there is one.
void put_in_place(const fs::path& temporary, const fs::path& path) {
  if (::rename(temporary.c_str(), path.c_str()) == 0) return;
  if (errno != EEXIST && errno != ENOTEMPTY) fail("name", path);
  std::error_code error;
  fs::path old = temporary;
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) != 0) {
    // The file system, such as NFS, cannot exchange directories. Until the new one is there, the
    // old one is found under another name.
    old = path.parent_path() /
          fmt::format(".{}.{}{}", path.filename().string(), ::getpid(), kReplaced);
    fs::remove_all(old, error);
    if (::rename(path.c_str(), old.c_str()) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0)
      fail("name", path);
  }
  // Else a power loss could leave the old one under its name, without its files.
  sync(path.parent_path());
  fs::remove_all(old, error);
}

/// What "latest" and "best" say of a checkpoint.
std::string line_on(const std::string& name, const std::string& manifest) {
  return fmt::format("{} {}\n", name, sha256(manifest));
}
/// Empty: it is not there.
std::string line_on(const fs::path& checkpoint) {
  const auto manifest = read_if_file(checkpoint / "manifest.json", kLargestManifest);
  return manifest ? line_on(checkpoint.filename().string(), *manifest) : "";
}

/// Has "best" name the run's best checkpoint. Where the run has gone back, that is an older one
/// than before, or none. `latest`: the line on this checkpoint.
void name_best(const fs::path& folder, const Checkpoint& checkpoint, const std::string& latest) {
  const fs::path file = folder / "best";
  const std::int64_t step = checkpoint.best ? checkpoint.best->step : -1;
  const std::string line =
      step == checkpoint.step ? latest : line_on(folder / checkpoint_name(step));
  std::error_code ignored;
  if (line == read_if_file(file, 1024).value_or("")) return;
  if (!line.empty()) {
    write_file(file, line);
  } else {
    fs::remove(file, ignored);
  }
}

void check_room(const fs::path& folder, std::uint64_t bytes) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) return;
  const std::uint64_t free = static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
  const std::uint64_t needed = bytes + kSpareBytes;
  PT_CHECK(free >= needed, kResource,
           "a checkpoint needs {} on the disk of {}, which has {} free; free some space, or give "
           "another {} or a smaller {}",
           bytes_text(needed), printable(folder.string()), bytes_text(free), setting("run-dir"),
           setting("keep"));
}

/// A file that another process has written.
void check_is_there(const fs::path& path, std::uint64_t bytes) {
  std::error_code error;
  const std::uint64_t found = fs::file_size(path, error);
  PT_CHECK(!error && found == bytes, kResource,
           "{}, which another process has written, {}; all must write to the same folder",
           printable(path.string()),
           error ? "is not there" : fmt::format("has {} bytes instead of {}", found, bytes));
}

NamedTensors stashed_tensors(const Checkpoint& checkpoint) {
  NamedTensors out;
  for (const auto& [version, tensors] : checkpoint.stashed) {
    for (const auto& [name, tensor] : tensors) out[fmt::format("{}/{}", version, name)] = tensor;
  }
  return out;
}

/// "parts", int64 (parts, 2): number and version of each; "rates", float64 (updates).
NamedTensors replica_tensors(const Checkpoint& checkpoint) {
  if (!checkpoint.replicas || checkpoint.replicas->parts.empty()) return {};
  const std::vector<DataPart>& parts = checkpoint.replicas->parts;
  HostTensor table(TensorType{DType::kInt64, Shape{static_cast<std::int64_t>(parts.size()), 2}});
  const std::span<std::int64_t> numbers = table.span<std::int64_t>();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    numbers[2 * i] = parts[i].number;
    numbers[2 * i + 1] = parts[i].version;
  }
  const std::vector<double>& rates = checkpoint.replicas->rates;
  HostTensor list(TensorType{DType::kFloat64, Shape{static_cast<std::int64_t>(rates.size())}});
  std::ranges::copy(rates, list.span<double>().begin());
  return {{"parts", table}, {"rates", list}};
}

}  // namespace

double Checkpoint::epoch() const {
  return batches_per_epoch > 0 ? static_cast<double>(step) / static_cast<double>(batches_per_epoch)
                               : 0;
}

std::uint64_t Checkpoint::bytes() const {
  std::uint64_t sum = 0;
  const auto add = [&](const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) sum += tensor.type().bytes();
  };
  add(weights);
  add(optimizer);
  add(best_weights);
  for (const FileRecord& file : files) sum += file.bytes;
  for (const auto& [version, tensors] : stashed) add(tensors);
  if (replicas) sum += replicas->parts.size() * (sizeof(DataPart) + sizeof(double));
  return sum;
}

std::string RunRecord::value(const std::string& number) const {
  for (const auto& [name, text] : numbers) {
    if (name == number) return text;
  }
  return {};
}

bool RunRecord::predates(const std::string& number) const {
  // Runs of all versions record the others, or leave them out where they are not in force.
  static constexpr std::array<std::string_view, 8> kLater = {
      "accumulators", "augment", "compress",  "ignore-index",
      "image-sizes",  "logits",  "normalize", "validation"};
  // Of inputs that differ in their largest values, these were not recorded.
  if (number == "normalize" && value(number) == "max") return true;
  return std::ranges::find(kLater, number) != kLater.end() &&
         std::ranges::find(numbers, number, &Setting::first) == numbers.end();
}

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:06}", kPrefix, step); }

fs::path checkpoint_beside(const fs::path& checkpoint, std::int64_t step) {
  const fs::path folder = checkpoint.parent_path();
  const fs::path given_up = folder / (std::string(kGivenUp) + checkpoint_name(step));
  std::error_code ignored;
  const bool is_given_up = checkpoint.filename().string().starts_with(kGivenUp);
  return is_given_up && fs::exists(given_up, ignored) ? given_up : folder / checkpoint_name(step);
}

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (auto& [step, path] : newest_first(folder).all) paths.push_back(std::move(path));
  return paths;
}

std::vector<fs::path> list_own_checkpoints(const fs::path& folder) {
  NewestFirst found = newest_first(folder);
  if (found.own > 0) found.all.resize(found.own);
  std::vector<fs::path> paths;
  for (auto& [step, path] : found.all) paths.push_back(std::move(path));
  return paths;
}

std::int64_t newest_step(const fs::path& folder) {
  const auto all = newest_first(folder).all;
  return all.empty() ? 0 : all.front().first;
}

void check_may_go_back(const fs::path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  PT_CHECK(is_newest(checkpoint) || step_of(name) >= 0 || !name_before(name).empty(), kUsage,
           "\"{}\" has a name of its own, so a run cannot go on from it in this folder; move it to "
           "another folder, or give another {}",
           printable(checkpoint.string()), setting("run-dir"));
}

void give_up_steps_after(const fs::path& found_at) {
  const fs::path checkpoint = in_its_place(found_at);
  const NewestFirst found = newest_first(checkpoint.parent_path());
  if (found.own > 0 && is_newest(checkpoint)) return;
  check_may_go_back(checkpoint);
  const std::string line = line_on(checkpoint);
  if (line.empty()) return;
  write_file(checkpoint.parent_path() / "latest", line);
}

WrittenCheckpoint write_checkpoint(const fs::path& folder, const Checkpoint& checkpoint) {
  const double start = steady_seconds();
  make_folder(folder);
  const bool has_files = !checkpoint.written_in.empty();
  const fs::path temporary =
      has_files ? checkpoint.written_in : unfinished_name(folder, checkpoint.step, "tmp");
  std::error_code ignored;
  if (!has_files) {
    check_room(folder, checkpoint.bytes());
    fs::remove_all(temporary, ignored);
    if (::mkdir(temporary.c_str(), 0777) != 0) fail("make", temporary);
  }
  WrittenCheckpoint written;
  written.step = checkpoint.step;
  written.reason = checkpoint.reason;
  written.path = folder / checkpoint_name(checkpoint.step);
  std::string line;
  try {
    std::vector<FileRecord> files = checkpoint.files;
    for (const FileRecord& file : files) check_is_there(temporary / file.name, file.bytes);
    const auto write = [&](const char* name, const NamedTensors& tensors) {
      if (!tensors.empty()) files.push_back(write_safetensors(temporary / name, tensors));
    };
    write("weights.safetensors", checkpoint.weights);
    write("optimizer.safetensors", checkpoint.optimizer);
    write("best.safetensors", checkpoint.best_weights);
    write("stashed.safetensors", stashed_tensors(checkpoint));
    write("replicas.safetensors", replica_tensors(checkpoint));
    const std::string manifest = manifest_text(checkpoint, files);
    line = line_on(checkpoint_name(checkpoint.step), manifest);
    write_file(temporary / "manifest.json", manifest);
    sync(temporary);
    for (const FileRecord& file : files) written.bytes += file.bytes;
    written.bytes += manifest.size();
    put_in_place(temporary, written.path);
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
  rename_given_up(folder, checkpoint.step);
  sync(folder);
  write_file(folder / "latest", line);
  name_best(folder, checkpoint, line);
  written.seconds = steady_seconds() - start;
  return written;
}

fs::path unfinished_folder(const fs::path& folder, std::int64_t step, const std::string& tag) {
  return folder / fmt::format(".{}.{}.tmp", checkpoint_name(step), tag);
}

std::vector<FileRecord> write_part(const fs::path& unfinished, const Checkpoint& part,
                                   int process) {
  make_folder(unfinished);
  check_room(unfinished, part.bytes());
  std::vector<FileRecord> files;
  const auto write = [&](const char* name, const NamedTensors& tensors) {
    if (tensors.empty()) return;
    files.push_back(
        write_safetensors(unfinished / fmt::format("{}-{}.safetensors", name, process), tensors));
  };
  write("weights", part.weights);
  write("optimizer", part.optimizer);
  sync(unfinished);
  return files;
}

std::vector<std::string> delete_old_checkpoints(const fs::path& folder, int keep,
                                                std::optional<std::int64_t> best_step,
                                                std::int64_t step) {
  std::vector<std::string> deleted;
  if (keep <= 0) return deleted;
  int kept = 0;
  for (const auto& [number, path] : checkpoints_in(folder)) {
    // After falling back to an older checkpoint, those of the abandoned steps have higher numbers.
    if (number == step || (number < step && ++kept < keep) || number == best_step) continue;
    remove_checkpoint(path, number);
    deleted.push_back(path.filename().string());
  }
  for (const auto& [number, path] : renamed_in(folder)) {
    remove_checkpoint(path, number);
    deleted.push_back(path.filename().string());
  }
  return deleted;
}

void delete_checkpoints(const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_symlink(folder, ignored)) return;
  for (const char* name : {"latest", "best"}) fs::remove(folder / name, ignored);
  for (const auto& all : {checkpoints_in(folder), renamed_in(folder)}) {
    for (const auto& [step, path] : all) remove_checkpoint(path, step);
  }
}

void delete_unfinished(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> stale;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    if (is_leftover(i->path())) stale.push_back(i->path());
  }
  for (const fs::path& path : stale) {
    const std::string before = name_before(path.filename().string());
    if (!before.empty() && !fs::exists(folder / before, error)) {
      fs::rename(path, folder / before, error);
    } else {
      fs::remove_all(path, error);
    }
  }
}

}  // namespace pipetrain
