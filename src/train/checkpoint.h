// Checkpoints: everything that a run needs to resume with bit-identical results, by tensor names,
// independent of the stages.
//
//   RUN/checkpoints/
//     latest               the newest: its name and the SHA-256 of its manifest
//     best                 likewise the best one, where there is validation
//     step-000400/         appears as a whole: written as .step-000400.PID.tmp, synced, renamed
//                          (an older one is .step-000400.PID.replaced in between, over NFS)
//       weights.safetensors     parameters and running statistics by their names in the model
//       optimizer.safetensors   optimizer state: "mean/NAME", "mean_square/NAME", …
//       weights-0.safetensors, weights-1.safetensors, …   instead, where processes each write the
//                               tensors of their stages (checkpoint_parts.h); likewise optimizer-N
//       stashed.safetensors     older weights of batches in flight (asynchronous schedules only)
//       best.safetensors        the best model so far as it is exported, where no checkpoint has it
//       replicas.safetensors    whose gradients the updates have added (replicas that do not wait)
//       manifest.json           written last: everything else, checksums of all files and its own,
//                               and the signature of its user (base/user_key.h)
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "optim/loss_scale.h"
#include "train/replica_record.h"
#include "train/safetensors.h"

namespace pipetrain {

/// Prefix of the moving averages in the optimizer state.
inline constexpr std::string_view kAverageKey = "average/";

/// A name and a value as text.
using Setting = std::pair<std::string, std::string>;

/// The identity of a run, the same for all its checkpoints.
struct RunRecord {
  std::string model_fingerprint;  // of the network without its weights
  std::string data_fingerprint;
  std::vector<Setting> settings;  // options that were given: "--lr" "0.1"
  std::vector<Setting> outputs;   // where results go; used for the user's own checkpoints only
  std::vector<Setting> numbers;   // all settings that affect the results, resolved
  std::string value(const std::string& number) const;  // of `numbers`; empty when there is none
  /// Whether the run is of a version that did not record this number, or not in full, so that it is
  /// not known.
  bool predates(const std::string& number) const;
};

/// The best evaluation so far.
struct BestResult {
  std::int64_t step = 0;
  double value = 0;
  std::string metric = "loss";  // train/metrics.h
  std::int64_t stalled = 0;     // evaluations since then
};

/// Validations without a finite value of a metric, while there is no best one.
struct UnmeasuredResults {
  std::string metric;
  std::int64_t validations = 0;
};

struct Checkpoint {
  RunRecord run;
  bool is_own = false;  // on reading: written by a run of this user on this machine
  std::string reason;   // "every", "best", "signal", "final", …
  /// Completed mini-batches: also the position in the data and the dropout masks.
  std::int64_t step = 0;
  std::int64_t total_steps = 0;
  std::int64_t batches_per_epoch = 0;
  double learning_rate = 0;  // of the last update
  LossScale loss_scale;      // of the next step, and the steps skipped so far
  double seconds = 0;        // that the run has trained, before a resume too
  std::optional<BestResult> best;
  UnmeasuredResults unmeasured;
  bool unevaluated = false;  // a validation is due after its step, but the run was stopped first
  std::vector<int> cuts;     // where the stages after the first begin in the chain
  /// Of the chain's nodes (passes/linearise.h): of all stages of an asynchronous schedule; else,
  /// and in older checkpoints, empty for the standard one.
  std::vector<int> order;
  /// Asynchronous rounds that had not drained: the step at which the round began, its mini-batches,
  /// and how many updates each stage has made since the run began. Otherwise round_start is `step`.
  std::int64_t round_start = 0;
  std::int64_t round_batches = 0;
  std::vector<std::int64_t> updates;

  NamedTensors weights;
  NamedTensors optimizer;
  std::map<int, NamedTensors> stashed;    // by version of the round
  std::optional<ReplicaRecord> replicas;  // where they do not wait for each other
  /// The best model so far, as it is exported: in snapshots (train/snapshot.h), and where no
  /// checkpoint of its step is written.
  NamedTensors best_weights;

  /// Where processes have written the tensors: the folder, and its files with their checksums.
  std::filesystem::path written_in;
  std::vector<FileRecord> files;

  bool in_flight() const { return round_start != step; }
  double epoch() const;
  std::uint64_t bytes() const;
};

/// "step-000400".
std::string checkpoint_name(std::int64_t step);
/// The checkpoint of another step in the same folder: beside a "given-up-step-000300", one that
/// was given up as well, if there is one.
std::filesystem::path checkpoint_beside(const std::filesystem::path& checkpoint, std::int64_t step);
/// The checkpoints in a folder, newest first, by the number in their name; but those of more steps
/// than the newest one, which a run has given up by going back, come last.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);
/// The same without those that were given up, unless there are no others.
std::vector<std::filesystem::path> list_own_checkpoints(const std::filesystem::path& folder);
/// The step of the newest one; 0: there is none.
std::int64_t newest_step(const std::filesystem::path& folder);
/// Error (kUsage) for a checkpoint with a name of its own that is not the only one in its folder: a
/// run cannot go on from it there, since "latest" names checkpoints by their steps.
void check_may_go_back(const std::filesystem::path& checkpoint);
/// Has "latest" name this checkpoint, so that those of more steps count as given up. The caller
/// holds the lock of the run's folder. Error as above.
void give_up_steps_after(const std::filesystem::path& checkpoint);

struct WrittenCheckpoint {
  std::filesystem::path path;
  std::int64_t step = 0;
  std::string reason;
  std::uint64_t bytes = 0;
  double seconds = 0;
  std::vector<std::string> deleted;  // names of older ones that were one too many
};

/// Writes a checkpoint atomically into a folder, which is created if needed. An older one of the
/// same step is replaced. Those of fewer steps that were given up become "given-up-step-000300":
/// they are not of this run. Error (kResource) when there is not enough space, checked before
/// writing, or the disk fails.
WrittenCheckpoint write_checkpoint(const std::filesystem::path& folder,
                                   const Checkpoint& checkpoint);

/// The folder that becomes the checkpoint of a step. `tag`: distinguishes who makes it.
std::filesystem::path unfinished_folder(const std::filesystem::path& folder, std::int64_t step,
                                        const std::string& tag);
/// Writes the tensors of one of several processes there, and makes it if needed. Error (kResource).
std::vector<FileRecord> write_part(const std::filesystem::path& unfinished, const Checkpoint& part,
                                   int process);

/// Deletes all but the newest `keep`, the best and the one at `step`, which has just been written;
/// those that were given up, too. keep 0: deletes none.
std::vector<std::string> delete_old_checkpoints(const std::filesystem::path& folder, int keep,
                                                std::optional<std::int64_t> best_step,
                                                std::int64_t step);

/// Deletes all checkpoints in a folder, unless it is a symbolic link.
void delete_checkpoints(const std::filesystem::path& folder);

/// Deletes leftovers of runs that were killed while writing, and gives checkpoints that were to be
/// replaced their names again. Other hidden files stay. The caller holds the lock of the run's
/// folder.
void delete_unfinished(const std::filesystem::path& folder);

/// Reads and checks a whole checkpoint. Error (kData) that names the file and the damage; any
/// changed bit is detected.
Checkpoint read_checkpoint(const std::filesystem::path& path);

/// The newest checkpoint that is not damaged, among those in a folder.
struct FoundCheckpoint {
  std::filesystem::path path;
  Checkpoint checkpoint;
  std::vector<std::string> refused;  // newer ones, each with the reason
};
/// Empty when there is no checkpoint at all. Error (kData) when all are damaged.
std::optional<FoundCheckpoint> newest_checkpoint(const std::filesystem::path& folder);

/// Reads the manifest and the record of updates of the newest checkpoint, but no tensors. `given`:
/// a run's folder, its folder of checkpoints, or a checkpoint. Skips those that cannot be read;
/// empty: there is none.
std::optional<Checkpoint> newest_record(const std::filesystem::path& given);

/// Resolves `given`: a checkpoint, a run's folder, its folder of checkpoints, or a file "latest" or
/// "best" in it. Error (kUsage) when there is none.
FoundCheckpoint find_checkpoint(const std::filesystem::path& given);

}  // namespace pipetrain
