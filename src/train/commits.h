// Commits: the newest state of a run in the memory of its hosts, which training resumes from after
// a failure. Every process keeps its part in memory that outlives it, and the part of a process of
// another host, so that any one host may be lost.
//
//   host       node1                        node2
//   process    0                            1
//   keeps      part 0, a copy of part 1     part 1, a copy of part 0
//
// Where replicas do not wait for each other, process 0 has the whole state: the only part, of which
// a process of another host keeps a copy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/checkpoint.h"
#include "train/two_copies.h"

namespace pipetrain {

class ProcessGroup;

struct CommitSettings {
  std::filesystem::path folder;  // of memory, on every host
  std::int64_t every = 0;        // steps; 0: as many as take at most kMostShare of the time

  /// "auto:/dev/shm/NAME", "10:/dev/shm/NAME"; empty when there is no such variable.
  static std::optional<CommitSettings> of_environment();
  static constexpr const char* kVariable = "PIPETRAIN_COMMITS";
};

/// Identifies the commit that a part belongs to; a newer commit compares greater. Commits of the
/// same step by different starts of the processes are distinct.
struct CommitName {
  /// For runs whose steps depend on timing: when the processes started, in ms since 1970, or later,
  /// so that it increases with each start. Steps of an earlier start that a later one did not
  /// resume from are not part of the run. 0 if every start computes the same.
  std::int64_t history = 0;
  std::int64_t step = 0;
  std::uint64_t by = 0;  // a number that each start of the processes chooses

  auto operator<=>(const CommitName&) const = default;
};

/// Whose states a commit has: all processes make it together, or process 0 makes it alone while the
/// others do something else.
enum class CommitBy : std::uint8_t { kAll, kProcess0 };

class Commits {
 public:
  /// `group`: null for a single process. `step`: completed before. `resumed`: the commit that
  /// training goes on from; it is kept until the next one is whole. Called by all processes.
  Commits(ProcessGroup* group, CommitSettings settings, std::int64_t step,
          const std::optional<CommitName>& resumed, CommitBy by = CommitBy::kAll);

  /// Takes the memory that parts like this one need, with the same errors as after_step(). Called
  /// by all processes.
  void reserve(const Checkpoint& part);
  /// Makes a commit where one is due. `part`: the state of this process's stages. Called by all
  /// processes, after each step, or with kProcess0 by that one. Where memory is missing, there are
  /// no commits from then on; Error (kResource) where the number of steps was given.
  void after_step(std::int64_t step, const std::function<Checkpoint()>& part);

  // With kProcess0.

  /// How process 0 gives its part to the process that keeps a copy: in pieces, so that other
  /// messages to it need not wait for long. The next one follows copy_is_kept(), and the next
  /// commit when all are kept.
  using HandOver = std::function<void(int process, const std::string& piece)>;
  void hand_over_by(HandOver hand_over) { hand_over_ = std::move(hand_over); }
  /// In process 0: what keep_copy() has returned. Without a copy commits go on; Error (kResource)
  /// where the number of steps was given.
  void copy_is_kept(const std::string& failure);
  /// In process 0: seconds of training in which a copy may have been under way.
  void note_time(double seconds) { copy_seconds_ += awaits_copy_ ? seconds : 0; }
  /// In the process that keeps a copy. Returns why it cannot, or nothing.
  std::string keep_copy(std::string_view piece);

  std::int64_t count() const { return count_; }
  /// Seconds that they have taken.
  double seconds() const { return seconds_; }

  static constexpr double kMostShare = 0.02;

 private:
  void open_files(const std::optional<CommitName>& resumed);
  std::int64_t new_history() const;
  std::string bytes_of(std::int64_t step, const Checkpoint& part) const;
  void exchange(const std::string& mine);
  void keep(int rank, std::string_view bytes);
  void check_kept(ProcessGroup* group);
  void forget();
  void send_piece();
  void schedule_next();

  ProcessGroup* group_;
  ProcessGroup* together_;  // who calls after_step(); null: this process alone
  int rank_, parts_in_all_;
  CommitSettings settings_;
  std::int64_t history_ = 0;
  std::uint64_t by_ = 0;
  std::vector<int> buddies_;        // [rank]: who keeps a copy; -1: nobody
  std::map<int, TwoCopies> parts_;  // by rank
  std::string failure_;             // why this process could not keep something
  bool is_off_ = false;
  HandOver hand_over_;
  bool awaits_copy_ = false;
  std::string copy_;          // that is handed over, or comes in
  std::size_t copied_ = 0;    // bytes of it
  double copy_seconds_ = 0;   // of training meanwhile
  std::int64_t next_, last_;  // steps
  double start_seconds_, last_seconds_;
  std::int64_t count_ = 0;
  double seconds_ = 0;       // in which this process did nothing else
  double all_costs_ = 0;     // with those of copies that are under way while it trains
  double last_cost_ = 0;     // of the last one
  double step_seconds_ = 0;  // before it
};

/// After how many steps the next commit is due, so that it and all before take at most kMostShare
/// of the time. `last_seconds`: what the last one took, `all_seconds`: all of them,
/// `elapsed_seconds`: since training began.
std::int64_t steps_to_next_commit(double last_seconds, double all_seconds, double elapsed_seconds,
                                  double step_seconds);

struct FoundCommit {
  CommitName name;
  Checkpoint state;
};

/// The newest commit of a step after `step` of which all parts are left, unchanged, on the hosts of
/// these processes, and which `accepts`, if given, takes; process 0 alone is asked. Called by all
/// of them; null: a single process.
std::optional<FoundCommit> newest_commit(
    ProcessGroup* group, const std::filesystem::path& folder, std::int64_t step,
    const std::function<bool(const Checkpoint&)>& accepts = nullptr);

}  // namespace pipetrain
