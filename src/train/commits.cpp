#include "train/commits.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/index.h"
#include "base/log.h"
#include "processes/link_measure.h"
#include "processes/process_group.h"
#include "train/as_process_0.h"
#include "train/state_bytes.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

/// What a part begins with.
struct PartHead {
  CommitName name;
  std::int32_t rank = 0;   // of the process that made it
  std::int32_t parts = 0;  // of the commit
};

PartHead part_head(std::span<const std::byte> part) {
  PartHead head;
  PT_CHECK(part.size() >= sizeof head, kInternal, "a part of a commit is too short");
  std::memcpy(&head, part.data(), sizeof head);
  return head;
}

/// The folder of a host, which may share its memory with another one of a test.
fs::path folder_of_host(const fs::path& folder, const ProcessGroup* group) {
  std::array<char, 256> own{};
  ::gethostname(own.data(), own.size() - 1);
  std::string host = group ? group->host_of(group->rank()) : own.data();
  std::ranges::replace(host, '/', '_');
  return folder / (host.empty() ? "host" : host);
}

/// Whether a folder is this user's, and nobody else can write there.
bool is_private(const fs::path& folder) {
  struct stat status {};
  return ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

void make_private(const fs::path& folder) {
  PT_CHECK(::mkdir(folder.c_str(), S_IRWXU) == 0 || errno == EEXIST, kResource,
           "cannot make \"{}\": {}", printable(folder.string()), std::strerror(errno));
  PT_CHECK(is_private(folder), kResource, "\"{}\" belongs to somebody else",
           printable(folder.string()));
}

fs::path file_of(const fs::path& folder, int rank, int copy) {
  return folder / fmt::format("part-{}-{}", rank, copy);
}

TwoCopies open_part(const fs::path& folder, int rank, int flags) {
  std::array<int, 2> files{-1, -1};
  for (int copy = 0; copy < 2; ++copy) {
    const fs::path path = file_of(folder, rank, copy);
    files[at(copy)] = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (files[at(copy)] >= 0) continue;
    const int failure = errno;
    if (copy == 1) ::close(files[0]);
    PT_FAIL(kResource, "cannot open \"{}\": {}", printable(path.string()), std::strerror(failure));
  }
  return TwoCopies(files);
}

/// The process of another host that keeps a copy of each one's part: its host's next one.
std::vector<int> buddies_of(const ProcessGroup* group) {
  if (!group) return {-1};
  std::vector<int> buddies(at(group->size()), -1);
  const std::vector<std::vector<int>> hosts = processes_of_hosts(*group);
  for (std::size_t h = 0; hosts.size() > 1 && h < hosts.size(); ++h) {
    const std::vector<int>& next = hosts[(h + 1) % hosts.size()];
    for (std::size_t i = 0; i < hosts[h].size(); ++i)
      buddies[at(hosts[h][i])] = next[i % next.size()];
  }
  return buddies;
}

std::vector<std::string> gather_from_all(ProcessGroup* group, const std::string& mine) {
  return group ? group->all_gather(mine) : std::vector<std::string>{mine};
}

/// Whether this is the first process of its host.
bool is_first_of_host(const ProcessGroup* group) {
  if (!group) return true;
  const std::vector<std::vector<int>> hosts = processes_of_hosts(*group);
  return std::ranges::any_of(
      hosts, [&](const std::vector<int>& ranks) { return ranks.front() == group->rank(); });
}

/// Gives all what one of them has.
std::string given_by(ProcessGroup* group, int holder, std::string bytes) {
  if (!group) return bytes;
  if (holder != 0 && holder == group->rank()) group->send(std::move(bytes), 0);
  if (holder != 0 && group->leads()) bytes = group->receive(holder);
  return group->broadcast(group->leads() ? bytes : std::string());
}

std::uint64_t random_number() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) + device();
}

/// The ranks whose parts are in a folder.
std::set<int> ranks_in(const fs::path& folder) {
  std::set<int> ranks;
  if (!is_private(folder)) return ranks;
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename().string();
    constexpr std::string_view kBegin = "part-", kEnd = "-0";
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) continue;
    int rank = 0;
    const char* last = name.data() + name.size() - kEnd.size();
    const auto [stop, failure] = std::from_chars(name.data() + kBegin.size(), last, rank);
    if (failure == std::errc() && stop == last) ranks.insert(rank);
  }
  return ranks;
}

/// Shows the parts that are whole and unchanged on this host to one of its processes.
template <class Look>
void look_at_parts(const fs::path& folder, const ProcessGroup* group, const Look& look) {
  if (!is_first_of_host(group) || !is_private(folder)) return;
  const fs::path here = folder_of_host(folder, group);
  for (const int rank : ranks_in(here)) {
    try {
      open_part(here, rank, 0).look_at([&](std::span<const std::byte> part) {
        const PartHead head = part_head(part);
        if (head.rank == rank) look(head, part);
        return false;  // the other one, too
      });
    } catch (const Error&) {
      continue;  // as if it were not there
    }
  }
}

/// Puts a part into the state of all.
void add_part(Checkpoint part, std::optional<Checkpoint>& all) {
  if (!all) {
    all = std::move(part);
    return;
  }
  all->weights.merge(part.weights);
  all->optimizer.merge(part.optimizer);
  all->updates.resize(std::max(all->updates.size(), part.updates.size()));
  for (std::size_t s = 0; s < part.updates.size(); ++s)
    all->updates[s] = std::max(all->updates[s], part.updates[s]);
}

}  // namespace

std::optional<CommitSettings> CommitSettings::of_environment() {
  const char* text = std::getenv(kVariable);
  if (!text) return {};
  const std::string_view value = text;
  const std::size_t colon = std::min(value.find(':'), value.size());
  const std::string_view number = value.substr(0, colon);
  CommitSettings settings;
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), settings.every);
  const bool is_number = error == std::errc() && end == number.data() + number.size();
  if (colon < value.size()) settings.folder = value.substr(colon + 1);
  PT_CHECK((number == "auto" || (is_number && settings.every > 0)) && settings.folder.is_absolute(),
           kUsage, "{} is \"{}\"; only launch sets it", kVariable, printable(text));
  return settings;
}

Commits::Commits(ProcessGroup* group, CommitSettings settings, std::int64_t step,
                 const std::optional<CommitName>& resumed, CommitBy by)
    : group_(group),
      together_(by == CommitBy::kAll ? group : nullptr),
      rank_(group ? group->rank() : 0),
      parts_in_all_(together_ ? group->size() : 1),
      settings_(std::move(settings)),
      by_(as_process_0(group, random_number())),
      buddies_(buddies_of(group)),
      next_(step + std::max<std::int64_t>(settings_.every, 1)),
      last_(step),
      start_seconds_(steady_seconds()),
      last_seconds_(start_seconds_) {
  try {
    open_files(resumed);
  } catch (const Error& error) {
    failure_ = error.message();
  }
  check_kept(group_);
  if (by == CommitBy::kProcess0) history_ = new_history();
}

/// Later than those of all commits that there are, whatever the clocks of their hosts say.
std::int64_t Commits::new_history() const {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::int64_t newest = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  if (!is_off_)
    look_at_parts(settings_.folder, group_,
                  [&](const PartHead& head, std::span<const std::byte> /*part*/) {
                    newest = std::max(newest, head.name.history + 1);
                  });
  ByteWriter mine;
  mine.put(newest);
  for (const std::string& theirs : gather_from_all(group_, mine.take()))
    newest = std::max(newest, ByteReader(theirs).get<std::int64_t>());
  return newest;
}

void Commits::open_files(const std::optional<CommitName>& resumed) {
  make_private(settings_.folder);
  const fs::path folder = folder_of_host(settings_.folder, group_);
  make_private(folder);
  for (int rank = 0; rank < parts_in_all_; ++rank) {
    if (rank != rank_ && buddies_[at(rank)] != rank_) continue;
    const auto part = parts_.emplace(rank, open_part(folder, rank, O_CREAT)).first;
    // What nothing can be resumed from is overwritten first.
    part->second.keep_only([&](std::span<const std::byte> bytes) {
      return resumed && part_head(bytes).name == *resumed;
    });
  }
}

/// Tells all of a group whether one of them has failed.
void Commits::check_kept(ProcessGroup* group) {
  const std::vector<std::string> failures = gather_from_all(group, failure_);
  for (std::size_t rank = 0; rank < failures.size(); ++rank) {
    if (failures[rank].empty()) continue;
    const std::string failure =
        (rank == 0 ? "" : group_->name_of(static_cast<int>(rank)) + ": ") + failures[rank];
    PT_CHECK(settings_.every == 0, kResource, "commits in memory: {}", failure);
    if (rank_ == 0)
      log_warning("train", "no commits in memory: {}; a restart begins with the newest checkpoint",
                  failure);
    forget();
    return;
  }
}

void Commits::reserve(const Checkpoint& part) {
  if (is_off_) return;
  ByteWriter mine;
  mine.put(sizeof(PartHead) + StateBytes(part).size());
  const std::vector<std::string> all = gather_from_all(group_, mine.take());
  for (auto& [rank, copies] : parts_) {
    try {
      copies.reserve(ByteReader(all[at(rank)]).get<std::size_t>());
    } catch (const Error& error) {
      failure_ = error.message();
    }
  }
  check_kept(group_);
}

void Commits::keep(int rank, std::string_view bytes) {
  try {
    if (const auto part = parts_.find(rank); part != parts_.end())
      part->second.keep(bytes.size(),
                        [&](std::byte* to) { std::memcpy(to, bytes.data(), bytes.size()); });
  } catch (const Error& error) {
    failure_ = error.message();
  }
}

std::string Commits::bytes_of(std::int64_t step, const Checkpoint& part) const {
  const StateBytes state(part);
  const PartHead head{{history_, step, by_}, rank_, parts_in_all_};
  std::string bytes(sizeof head + state.size(), '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  state.write(reinterpret_cast<std::byte*>(bytes.data()) + sizeof head);
  return bytes;
}

void Commits::exchange(const std::string& mine) {
  // All walk through the same list, so the first open entry can always complete.
  for (int from = 0; from < parts_in_all_; ++from) {
    const int to = buddies_[at(from)];
    if (to < 0) continue;
    if (from == rank_) group_->send(mine, to);
    if (to == rank_) keep(from, group_->receive(from));
  }
}

std::int64_t steps_to_next_commit(double last_seconds, double all_seconds, double elapsed_seconds,
                                  double step_seconds) {
  // The next one is expected to take as long as the last one.
  const double after_last = last_seconds * (1 / Commits::kMostShare - 1);
  const double in_all =
      (all_seconds + last_seconds) / Commits::kMostShare - elapsed_seconds - last_seconds;
  const double pause = std::max(after_last, in_all);
  return static_cast<std::int64_t>(
      std::clamp(std::ceil(pause / std::max(step_seconds, 1e-9)), 1.0, 1e9));
}

void Commits::after_step(std::int64_t step, const std::function<Checkpoint()>& part) {
  if (is_off_ || step < next_ || awaits_copy_) return;
  const double begin = steady_seconds();
  step_seconds_ =
      (begin - last_seconds_) / static_cast<double>(std::max<std::int64_t>(1, step - last_));
  std::string mine = bytes_of(step, part());
  keep(rank_, mine);
  if (together_) exchange(mine);
  check_kept(together_);
  if (is_off_) return;
  awaits_copy_ = hand_over_ && buddies_[at(rank_)] >= 0;
  if (awaits_copy_) {
    copy_ = std::move(mine);
    copied_ = 0;
    copy_seconds_ = 0;
    send_piece();
  }
  last_ = step;
  last_seconds_ = steady_seconds();
  ++count_;
  last_cost_ = last_seconds_ - begin;
  seconds_ += last_cost_;
  if (!awaits_copy_) schedule_next();
}

void Commits::schedule_next() {
  all_costs_ += last_cost_;
  const std::int64_t steps = steps_to_next_commit(last_cost_, all_costs_,
                                                  steady_seconds() - start_seconds_, step_seconds_);
  next_ = last_ + (settings_.every > 0 ? settings_.every : as_process_0(together_, steps));
}

/// A piece is the size of the whole part, and bytes of it.
void Commits::send_piece() {
  ByteWriter writer;
  writer.put(copy_.size());
  writer.put_text(std::string_view(copy_).substr(copied_, kPieceBytes));
  copied_ += std::min(kPieceBytes, copy_.size() - copied_);
  hand_over_(buddies_[at(rank_)], writer.take());
}

void Commits::copy_is_kept(const std::string& failure) {
  if (failure.empty() && copied_ < copy_.size()) return send_piece();
  awaits_copy_ = false;
  copy_ = {};
  last_cost_ += copy_seconds_;
  schedule_next();
  if (failure.empty()) return;
  const std::string by = group_->name_of(buddies_[at(rank_)]);
  PT_CHECK(settings_.every == 0, kResource, "commits in memory: {}: {}", by, failure);
  log_warning("train",
              "{} keeps no copy of the commits: {}; where this host is lost, a restart begins with "
              "the newest checkpoint",
              by, failure);
  buddies_[at(rank_)] = -1;
}

std::string Commits::keep_copy(std::string_view piece) {
  ByteReader reader(piece);
  const auto size = reader.get<std::size_t>();
  if (is_off_) return "it has no memory for it";
  copy_ += reader.get_text();
  if (copy_.size() < size) return {};
  keep(0, std::exchange(copy_, {}));
  if (!failure_.empty()) forget();
  return std::exchange(failure_, {});
}

/// Gives the memory back.
void Commits::forget() {
  is_off_ = true;
  for (auto& [rank, part] : parts_) part.forget();
  parts_.clear();
}

std::optional<FoundCommit> newest_commit(ProcessGroup* group, const fs::path& folder,
                                         std::int64_t step,
                                         const std::function<bool(const Checkpoint&)>& accepts) {
  std::map<std::pair<CommitName, int>, std::string> held;  // by commit and rank
  ByteWriter mine;
  look_at_parts(folder, group, [&](const PartHead& head, std::span<const std::byte> part) {
    mine.put(head);
    held[{head.name, head.rank}].assign(reinterpret_cast<const char*>(part.data()), part.size());
  });
  // By commit: who has which part.
  std::map<CommitName, std::map<int, int>> holders;
  std::map<CommitName, int> sizes;
  const std::vector<std::string> all = gather_from_all(group, mine.take());
  for (std::size_t process = 0; process < all.size(); ++process) {
    for (ByteReader reader(all[process]); !reader.at_end();) {
      const auto head = reader.get<PartHead>();
      holders[head.name].emplace(head.rank, static_cast<int>(process));
      sizes[head.name] = head.parts;
    }
  }
  const std::int64_t beyond = as_process_0(group, step);
  for (auto commit = holders.rbegin(); commit != holders.rend(); ++commit) {
    const auto& [name, parts] = *commit;
    if (static_cast<int>(parts.size()) != sizes[name] || name.step <= beyond) continue;
    std::optional<Checkpoint> state;
    for (const auto& [rank, holder] : parts) {
      const std::string bytes = given_by(group, holder, std::move(held[{name, rank}]));
      add_part(read_state(std::as_bytes(std::span(bytes)).subspan(sizeof(PartHead))), state);
    }
    const bool asks = accepts && (!group || group->leads());
    if (as_process_0(group, !asks || accepts(*state))) return FoundCommit{name, *std::move(state)};
  }
  return {};
}

}  // namespace pipetrain
