#include "pipeline/runtime/runtime_setup.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/index.h"
#include "base/setting.h"
#include "processes/process_group.h"

namespace pipetrain {

RuntimeSetup::RuntimeSetup(std::vector<RuntimeVariant> all_variants,
                           std::vector<const Program*> all_programs,
                           const RuntimeOptions& runtime_options)
    : options(runtime_options),
      variants(std::move(all_variants)),
      programs(std::move(all_programs)) {
  PT_CHECK(!programs.empty() && !variants.empty(), kInternal,
           "a runtime without programs or networks");
  for (const Program* program : programs) {
    PT_CHECK(program->placement == programs[0]->placement, kInternal,
             "programs of one runtime put stages on different devices");
    PT_CHECK(
        !options.loss_scaling.skips || program->gradient_sync || program->rule == UpdateRule::kNone,
        kInternal, "skipping steps needs a gradient sync before the updates");
  }
  for (const RuntimeVariant& variant : variants) {
    slices.push_back(std::make_unique<Slices>(
        slice_stages(*variant.training, variant.stage_of_forward, stages())));
  }
  check_variants();
  PT_CHECK(options.devices.empty() || options.devices.size() == at(devices()), kInternal,
           "{} devices for a program on {}", options.devices.size(), devices());
  capacity = stage_capacities(programs);
  PT_CHECK(options.accumulators == 0 || options.devices.empty(), kInternal,
           "a tree of sums on GPUs");
  PT_CHECK(!options.bfloat16_sums || (options.devices.empty() && options.accumulators == 0),
           kInternal, "bfloat16 sums on GPUs or as a tree");
  add_accumulators(programs, options.accumulators, capacity);
  find_edges();
  if (options.processes) check_processes();
  for (const Program* program : programs) {
    if (options.shard_optimizer)
      check_shared_updates(program->rule, program->schedule, !options.devices.empty());
  }
}

void check_shared_updates(UpdateRule rule, std::string_view schedule, bool on_gpus) {
  PT_CHECK(!on_gpus, kUsage, "{} needs stages on the CPU; leave it out for GPUs",
           setting("shard-optimizer"));
  PT_CHECK(!is_asynchronous(rule), kUsage,
           "{} needs a synchronous schedule such as 1f1b, but {} {} updates stages while others "
           "compute",
           setting("shard-optimizer"), setting("schedule"), printable(schedule));
}

/// Weights are updated where the first network has them, by the sums that it has there.
void RuntimeSetup::check_variants() const {
  const TrainingGraph& first = *variants[0].training;
  for (std::size_t v = 1; v < variants.size(); ++v) {
    const TrainingGraph& training = *variants[v].training;
    for (int s = 0; s < stages(); ++s) {
      const StageSlice& wanted = slices[0]->stages[at(s)];
      const std::set<int> parameters(wanted.parameters.begin(), wanted.parameters.end());
      const std::set<int> sums(wanted.accumulations.begin(), wanted.accumulations.end());
      const StageSlice& found = slices[v]->stages[at(s)];
      const auto refuse_unless = [&](bool same, const std::string& name) {
        PT_CHECK(
            same, kUsage,
            "micro-batches of {} and {} samples do not use \"{}\" in the same stages; use a {} "
            "that divides {} and the number of samples, or other cuts ({})",
            first.micro_batch, training.micro_batch, printable(name), setting("micro-batch-size"),
            setting("batch-size"), setting("split"));
      };
      for (const int i : found.parameters) {
        const Parameter& parameter = first.parameters[at(i)];
        refuse_unless(!parameter.gradient || parameters.contains(i), parameter.name);
      }
      if (training.accumulations.empty()) continue;  // an evaluation
      for (const int i : found.accumulations) {
        const ValueId sum = training.accumulations[at(i)].accumulator;
        refuse_unless(sums.contains(i), training.graph[sum].name);
      }
    }
  }
}

void RuntimeSetup::find_edges() {
  using Key = std::tuple<int, int, bool>;  // from, to, gradient
  std::map<Key, std::size_t> number_of;
  for (const auto& slice : slices) {
    for (const ValueEdge& edge : slice->edges) {
      if (number_of.try_emplace(Key(edge.from, edge.to, edge.gradient), edges.size()).second)
        edges.push_back({edge.from, edge.to, edge.gradient});
    }
  }
  for (const auto& slice : slices) {
    auto& of_variant = values.emplace_back(edges.size(), nullptr);
    for (const ValueEdge& edge : slice->edges)
      of_variant[number_of[Key(edge.from, edge.to, edge.gradient)]] = &edge;
  }
  for (const Program* program : programs) {
    for (std::size_t e = 0; e < program->edges.size(); ++e) {
      const Edge& edge = program->edges[e];
      const auto found = number_of.find(Key(edge.from_stage, edge.to_stage, edge.gradient));
      if (found == number_of.end()) continue;
      int& slots = edges[found->second].slots;
      if (e < program->slots_per_edge.size()) slots = std::max(slots, program->slots_per_edge[e]);
    }
  }
}

void RuntimeSetup::check_processes() const {
  const std::vector<int>& process_of = options.process_of_device;
  PT_CHECK(process_of.size() == at(devices()), kInternal,
           "processes of {} devices for a program on {}", process_of.size(), devices());
  PT_CHECK(options.emulated_stages.empty(), kInternal, "stages are emulated in one process only");
  for (const Program* program : programs) {
    PT_CHECK(options.devices.empty() || !is_asynchronous(program->rule), kUsage,
             "{} updates stages while others compute, which GPUs of several processes cannot do "
             "yet; use 1f1b, gpipe or a zero-bubble schedule, or one process",
             program->schedule);
  }
  PT_CHECK(options.devices.empty() || options.collectives, kUsage,
           "GPUs of several processes exchange values by NCCL; leave out {} copy", setting("edge"));
  if (options.devices.empty()) return;
  // Replicas exchange moments of running statistics only in host memory.
  const std::vector<int> ranks = this->ranks();
  for (int s = 0; s < stages(); ++s) {
    const std::vector<int>& on = placement(s);
    const bool apart = std::any_of(on.begin(), on.end(), [&](int device) {
      return process_of[at(device)] != process_of[at(on.front())];
    });
    std::set<int> distinct;
    for (const int device : on) distinct.insert(ranks[at(device)]);
    PT_CHECK(!apart || distinct.size() == on.size(), kUsage,
             "replicas of stage {} share a GPU and have others in another process; give each a "
             "GPU of its own",
             s);
    PT_CHECK(!apart || slices[0]->stages[at(s)].statistics.empty(), kUsage,
             "stage {} has running statistics (BatchNormalization) and replicas on GPUs of "
             "several processes, which cannot merge them yet; let each process have whole "
             "stages, or give {} frozen",
             s, setting("bn"));
  }
}

bool RuntimeSetup::is_here(int device) const {
  return !options.processes || options.process_of_device[at(device)] == options.processes->rank();
}

int RuntimeSetup::first_device_here() const {
  int device = 0;
  while (!is_here(device)) ++device;
  return device;
}

int RuntimeSetup::process_of(int stage) const {
  return options.process_of_device[at(placement(stage).front())];
}

std::vector<int> RuntimeSetup::ranks() const {
  std::vector<std::pair<int, std::intptr_t>> known;
  std::vector<int> ranks;
  for (std::size_t d = 0; d < options.devices.size(); ++d) {
    const std::pair<int, std::intptr_t> device =
        options.processes
            ? std::pair<int, std::intptr_t>(options.process_of_device[d],
                                            options.device_numbers.at(d))
            : std::pair<int, std::intptr_t>(0, reinterpret_cast<std::intptr_t>(options.devices[d]));
    const auto found = std::find(known.begin(), known.end(), device);
    ranks.push_back(static_cast<int>(found - known.begin()));
    if (found == known.end()) known.push_back(device);
  }
  return ranks;
}

}  // namespace pipetrain
