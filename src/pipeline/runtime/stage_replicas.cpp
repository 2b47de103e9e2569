#include "pipeline/runtime/stage_replicas.h"

#include <algorithm>
#include <set>
#include <utility>

#include "pipeline/program/program_cut.h"
#include "pipeline/transport/shared_work.h"
#include "pipeline/transport/transport.h"

namespace pipetrain {

StageReplicas::StageReplicas(const RuntimeSetup& setup)
    : setup_(setup), program_(setup.programs[0]), replicas_(at(setup.stages())) {
  for (int s = 0; s < stages(); ++s) {
    const std::vector<int>& devices = setup.placement(s);
    of(s).resize(devices.size());
    for (std::size_t r = 0; r < devices.size(); ++r) of(s)[r].device = devices[r];
  }
  if (setup.options.has_copied) count_holders();
  // Emulated stages have no tasks, and GPUs have no shared memory.
  const RuntimeOptions& options = setup.options;
  if (!options.devices.empty() || !options.emulated_stages.empty() || setup.devices() == 1) return;
  int here = 0;
  for (int device = 0; device < setup.devices(); ++device) here += setup.is_here(device) ? 1 : 0;
  shared_work_ = std::make_unique<SharedWork>(setup.devices(), here);
}

StageReplicas::~StageReplicas() = default;

void StageReplicas::count_holders() {
  for (int s = 0; s < stages(); ++s) {
    std::set<std::string> names;
    for (std::size_t v = 0; v < setup_.variants.size(); ++v) {
      for (const int i : setup_.slices[v]->stages[at(s)].parameters)
        names.insert(setup_.variants[v].training->parameters[at(i)].name);
    }
    for (const StageReplica& replica : of(s)) {
      if (!setup_.is_here(replica.device)) continue;
      for (const std::string& name : names) ++holders_[name];
    }
  }
}

/// A stage has copied the initial value of a parameter.
void StageReplicas::note_copy(const std::string& name) {
  const std::lock_guard lock(holders_mutex_);
  if (--holders_.at(name) == 0) setup_.options.has_copied(name);
}

std::vector<Stage*> StageReplicas::all(int stage) const {
  std::vector<Stage*> out;
  for (const StageReplica& replica : of(stage)) out.push_back(replica.stage.get());
  return out;
}

std::vector<Stage*> StageReplicas::first_here() const {
  std::vector<Stage*> out;
  for (int s = 0; s < stages(); ++s) {
    const auto found = std::find_if(of(s).begin(), of(s).end(),
                                    [](const StageReplica& replica) { return !!replica.stage; });
    out.push_back(found == of(s).end() ? nullptr : found->stage.get());
  }
  return out;
}

void StageReplicas::compile(int device, const StageStreams& streams) {
  each_on(device, [&](StageReplica& replica, int s) {
    const UpdateShare share = {program_->replica_on(s, device), setup_.update_shares(s)};
    std::vector<StageVariant> variants;
    for (std::size_t v = 0; v < setup_.variants.size(); ++v)
      variants.push_back({setup_.variants[v].training, setup_.slices[v].get()});
    std::function<void(const std::string&)> has_copied;
    if (setup_.options.has_copied)
      has_copied = [this](const std::string& name) { note_copy(name); };
    replica.stage =
        std::make_unique<Stage>(s, variants, setup_.options.backend, setup_.capacity[at(s)],
                                setup_.options.optimizer, streams, share, has_copied);
  });
}

void StageReplicas::join(Transport& transport, const std::vector<Stream*>& streams) {
  const std::vector<Stage*> here = first_here();
  for (int s = 0; s < stages(); ++s) {
    if (of(s).size() == 1 || !here[at(s)]) continue;
    std::vector<Stream*> of_replicas;
    for (const StageReplica& replica : of(s)) of_replicas.push_back(streams[at(replica.device)]);
    ReplicaGroup& group = transport.group_replicas(
        s, here[at(s)]->gradient_sizes(), here[at(s)]->gradient_owners(), std::move(of_replicas));
    if (setup_.options.accumulators > 0) group.sum_as_tree();
    if (setup_.options.bfloat16_sums) group.use_bfloat16();
    for (std::size_t r = 0; r < of(s).size(); ++r) {
      if (Stage* stage = of(s)[r].stage.get()) stage->join(group, static_cast<int>(r));
    }
  }
}

void StageReplicas::share_work() {
  if (!shared_work_) return;
  std::vector<std::size_t> workspaces;
  for (const auto& replicas : replicas_) {
    const Stage* stage = replicas.front().stage.get();
    workspaces.push_back(stage ? stage->workspace().bytes : 0);
  }
  // In several processes a device takes the tasks that its own workspace suffices for.
  if (!setup_.options.processes)
    workspaces = shared_workspaces(std::move(workspaces), program_->placement);
  for (std::size_t s = 0; s < replicas_.size(); ++s) {
    // Replicas already reduce each gradient as soon as it is complete.
    const StageReplica& replica = replicas_[s].front();
    if (replicas_[s].size() > 1 || !replica.stage) continue;
    replica.stage->share(*shared_work_, replica.device, workspaces[s]);
  }
}

Workspace StageReplicas::free_workspace(int device) const {
  Workspace out;
  for (const auto& replicas : replicas_) {
    for (const StageReplica& replica : replicas) {
      if (replica.device != device) continue;
      const Workspace one = replica.stage->workspace();
      if (one.bytes >= out.bytes) out = one;
    }
  }
  return out;
}

void StageReplicas::start_round(const Program& program, const ProgramCut* cut) {
  program_ = &program;
  for (int s = 0; s < stages(); ++s) {
    for (int r = 0; r < program.replicas(s); ++r) {
      StageReplica& replica = of(s)[at(r)];
      if (in_round_ && replica.stage) replica.stage->forget_round();
      replica.accumulating = false;
      replica.leaves = 0;
      replica.deferred_step.reset();
      replica.adding_left =
          micro_batches_to_add(s, r, cut ? cut->micro_batches_done / program.group_size(s) : 0);
      replica.forwards = replica.backwards = replica.updated = 0;
      replica.forward_entry.assign(at(setup_.capacity[at(s)].forward_entries), -1);
      replica.gradient_entry.assign(at(setup_.capacity[at(s)].gradient_entries), -1);
    }
  }
  if (shared_work_) shared_work_->reset();
  in_round_ = true;
}

void StageReplicas::end_round(const ProgramCut* early_end) {
  in_round_ = false;
  for (int s = 0; s < stages(); ++s) {
    const int newest = early_end ? early_end->versions[at(s)].back() : program_->updates(s);
    for (StageReplica& replica : of(s)) replica.base_version = block_of(replica, s, newest);
  }
}

/// kSync rounds have a single version.
int StageReplicas::block_of(const StageReplica& replica, int stage, int version) const {
  if (!is_asynchronous(program_->rule)) return replica.base_version;
  return (replica.base_version + std::max(version, 0)) % setup_.capacity[at(stage)].versions;
}

int StageReplicas::group_of(const Instruction& instruction) const {
  return std::max(instruction.micro_batch, 0) / program_->group_size(instruction.stage);
}

int StageReplicas::leaf_of(const Instruction& instruction) const {
  const int leaves = setup_.options.accumulators;
  if (leaves == 0 || program_->rule == UpdateRule::kNone) return 0;
  return instruction.micro_batch % leaves / program_->replicas(instruction.stage);
}

int StageReplicas::micro_batches_to_add(int stage, int replica, int group) const {
  const int size = program_->group_size(stage);
  int count = 0;
  for (int micro_batch = group * size;
       micro_batch < std::min((group + 1) * size, program_->micro_batches); ++micro_batch) {
    if (program_->replica_of(stage, micro_batch) == replica) ++count;
  }
  return count;
}

}  // namespace pipetrain
