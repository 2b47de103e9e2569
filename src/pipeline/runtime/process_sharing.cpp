#include "pipeline/runtime/process_sharing.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "pipeline/stage/content_bytes.h"
#include "pipeline/stage/update_owners.h"
#include "processes/process_group.h"

namespace pipetrain {
namespace {

void write_nonfinite(const NonfiniteValue& value, ByteWriter& writer) {
  writer.put_text(value.what);
  writer.put(value.sample);
  writer.put(value.stage);
  writer.put(value.backward);
  writer.put(value.place.has_value());
  writer.put(value.place.value_or(PassPlace()));
}

NonfiniteValue read_nonfinite(ByteReader& reader) {
  NonfiniteValue value;
  value.what = reader.get_text();
  value.sample = reader.get<std::int64_t>();
  value.stage = reader.get<std::int32_t>();
  value.backward = reader.get<bool>();
  const bool has_place = reader.get<bool>();
  const auto place = reader.get<PassPlace>();
  if (has_place) value.place = place;
  return value;
}

}  // namespace

ProcessSharing::ProcessSharing(const RuntimeSetup& setup, StageReplicas& replicas,
                               RoundState& round)
    : setup_(setup), replicas_(replicas), round_(round) {
  if (!setup.options.processes) return;
  const Slices& slices = *setup.slices[0];
  process_of_norm_.assign(slices.owner.size(), -1);
  for (int s = 0; s < setup.stages(); ++s) {
    const StageSlice& slice = slices.stages[at(s)];
    const UpdateOwners owners =
        update_owners(*setup.variants[0].training, slice, setup.update_shares(s));
    for (std::size_t k = 0; k < slice.parameters.size(); ++k) {
      const std::size_t parameter = at(slice.parameters[k]);
      if (slices.owner[parameter] != s) continue;
      const int device = setup.placement(s)[at(std::max(owners.of_parameter[k], 0))];
      process_of_norm_[parameter] = setup.options.process_of_device[at(device)];
    }
  }
}

bool ProcessSharing::has(int process, int stage) const {
  const std::vector<StageReplica>& replicas = replicas_.of(stage);
  return std::any_of(replicas.begin(), replicas.end(), [&](const StageReplica& replica) {
    return setup_.options.process_of_device[at(replica.device)] == process;
  });
}

void ProcessSharing::exchange_tied_gradients() {
  if (!setup_.options.processes) return;
  // All processes walk through the same list and do their part of each entry, so the first open
  // entry can always complete.
  const std::vector<StageSlice>& stages = setup_.slices[0]->stages;
  for (int to = 0; to < replicas_.stages(); ++to) {
    for (const int i : stages[at(to)].remote_accumulations) {
      for (int from = 0; from < replicas_.stages(); ++from) {
        const std::vector<int>& computed = stages[at(from)].accumulations;
        if (std::find(computed.begin(), computed.end(), i) != computed.end())
          hand_on_accumulator(i, from, to);
      }
    }
  }
}

void ProcessSharing::hand_on_accumulator(int accumulation, int from, int to) {
  ProcessGroup& group = *setup_.options.processes;
  const int sender = setup_.process_of(from);
  for (int process = 0; process < group.size(); ++process) {
    if (!has(process, to) || has(process, from)) continue;
    if (sender == group.rank()) {
      group.send(replicas_.of(from).front().stage->read_accumulator(accumulation), process);
    } else if (process == group.rank()) {
      const std::string bytes = group.receive(sender);
      for (StageReplica& replica : replicas_.of(to)) {
        if (replica.stage) replica.stage->write_accumulator(accumulation, bytes);
      }
    }
  }
}

void ProcessSharing::share_norms() {
  if (!setup_.options.processes) return;
  std::vector<double>& norms = round_.squared_norms;
  const std::vector<std::string> all = setup_.options.processes->all_gather(
      {reinterpret_cast<const char*>(norms.data()), norms.size() * sizeof(double)});
  for (std::size_t p = 0; p < norms.size(); ++p) {
    if (process_of_norm_[p] < 0) continue;
    std::string_view(all[at(process_of_norm_[p])])
        .substr(p * sizeof(double))
        .copy(reinterpret_cast<char*>(&norms[p]), sizeof(double));
  }
}

void ProcessSharing::share_memory() {
  memory_.resize(at(replicas_.stages()));
  ByteWriter here;
  for (int s = 0; s < replicas_.stages(); ++s) {
    for (const StageReplica& replica : replicas_.of(s)) {
      if (replica.stage && replica.stage->memory().total() > memory_[at(s)].total())
        memory_[at(s)] = replica.stage->memory();
    }
    here.put(memory_[at(s)]);
  }
  if (!setup_.options.processes) return;
  const std::vector<std::string> all = setup_.options.processes->all_gather(here.take());
  for (const std::string& bytes : all) {
    ByteReader reader(bytes);
    for (ArenaBytes& most : memory_) {
      const auto one = reader.get<ArenaBytes>();
      if (one.total() > most.total()) most = one;
    }
  }
}

void ProcessSharing::share_results(RoundResult& result) {
  ByteWriter here;
  here.put_text(notes_.mine ? notes_.mine() : std::string());
  here.put(result.seconds);
  here.put(std::exchange(result.stolen_seconds, 0));
  // Asynchronous rounds are long: their source hands losses on while they run.
  const std::vector<MicroBatch*> micro_batches =
      is_asynchronous(round_.program->rule) ? std::vector<MicroBatch*>() : round_.results;
  here.put(static_cast<std::int32_t>(
      std::count_if(micro_batches.begin(), micro_batches.end(),
                    [](const MicroBatch* micro_batch) { return !!micro_batch; })));
  for (std::size_t u = 0; u < micro_batches.size(); ++u) {
    if (!micro_batches[u]) continue;
    here.put(static_cast<std::int32_t>(u));
    here.put(micro_batches[u]->loss_sum);
    here.put(micro_batches[u]->correct);
  }
  here.put(static_cast<std::int32_t>(result.buckets.size()));
  for (const BucketEvent& bucket : std::exchange(result.buckets, {})) here.put(bucket);
  for (std::size_t d = 0; d < result.events.size(); ++d) {
    if (!setup_.is_here(static_cast<int>(d))) continue;
    here.put(static_cast<std::int32_t>(d));
    here.put(result.busy_seconds[d]);
    here.put(result.cpu_seconds[d]);
    here.put(static_cast<std::uint64_t>(result.events[d].size()));
    for (const Event& event : result.events[d]) here.put(event);
  }
  std::vector<std::string> notes;
  for (const std::string& bytes : setup_.options.processes->all_gather(here.take())) {
    ByteReader reader(bytes);
    notes.emplace_back(reader.get_text());
    // Stages without a backward are done before the others.
    result.seconds = std::max(result.seconds, reader.get<double>());
    result.stolen_seconds += reader.get<double>();
    for (auto left = reader.get<std::int32_t>(); left > 0; --left) {
      MicroBatch& micro_batch = round_.source->acquire(reader.get<std::int32_t>());
      micro_batch.loss_sum = reader.get<double>();
      micro_batch.correct = reader.get<double>();
    }
    for (auto left = reader.get<std::int32_t>(); left > 0; --left)
      result.buckets.push_back(reader.get<BucketEvent>());
    while (!reader.at_end()) {
      const std::size_t d = at(reader.get<std::int32_t>());
      result.busy_seconds[d] = reader.get<double>();
      result.cpu_seconds[d] = reader.get<double>();
      result.events[d].resize(reader.get<std::uint64_t>());
      for (Event& event : result.events[d]) event = reader.get<Event>();
    }
  }
  if (notes_.all) notes_.all(notes);
}

std::vector<StageContent> ProcessSharing::contents() const {
  std::vector<StageContent> all;
  for (int s = 0; s < replicas_.stages(); ++s) {
    if (!setup_.options.processes) {
      all.push_back(replicas_.content(s, 0));
      continue;
    }
    ProcessGroup& group = *setup_.options.processes;
    StageContent content;
    for (int process = 0; process < group.size(); ++process) {
      // The first replica has everything but the optimizer's state, where that is spread.
      const bool first = process == setup_.process_of(s);
      if (!first && (setup_.update_shares(s) == 1 || !has(process, s))) continue;
      StageContent part;
      if (process == group.rank()) part = first ? replicas_.content(s, 0) : replicas_.states(s);
      if (process == group.rank() && !group.leads()) group.send(bytes_of(part), 0);
      if (!group.leads()) continue;
      if (process != 0) part = content_of(group.receive(process));
      merge(std::move(part), content);
    }
    if (group.leads()) all.push_back(std::move(content));
  }
  return all;
}

std::map<std::string, HostTensor> ProcessSharing::weights_of_others() const {
  std::map<std::string, HostTensor> all;
  if (!setup_.options.processes) return all;
  ProcessGroup& group = *setup_.options.processes;
  for (int s = 0; s < replicas_.stages(); ++s) {
    const int process = setup_.process_of(s);
    if (process == 0) continue;
    if (process == group.rank()) {
      StageContent part;
      part.weights = replicas_.weights(s);
      group.send(bytes_of(part), 0);
    } else if (group.leads()) {
      all.merge(content_of(group.receive(process)).weights);
    }
  }
  return all;
}

std::vector<StageContent> ProcessSharing::own_contents() const {
  std::vector<StageContent> all(at(replicas_.stages()));
  const int rank = setup_.options.processes ? setup_.options.processes->rank() : 0;
  for (int s = 0; s < replicas_.stages(); ++s) {
    if (!setup_.options.processes || setup_.process_of(s) == rank) {
      all[at(s)] = replicas_.content(s, 0);
    } else if (setup_.update_shares(s) > 1 && has(rank, s)) {
      all[at(s)] = replicas_.states(s);
    }
  }
  return all;
}

std::optional<NonfiniteValue> ProcessSharing::first_nonfinite() const {
  std::optional<NonfiniteValue> here = round_.nonfinite.first();
  if (!setup_.options.processes) return here ? here : replicas_.first_nonfinite();
  std::optional<NonfiniteValue> first;
  // What passes have found, or else what the stages hold.
  for (int looks = 0; looks < 2 && !first; ++looks) {
    if (looks == 1) here = replicas_.first_nonfinite();
    ByteWriter writer;
    if (here) write_nonfinite(*here, writer);
    for (const std::string& bytes : setup_.options.processes->all_gather(writer.take())) {
      ByteReader reader(bytes);
      if (reader.at_end()) continue;
      NonfiniteValue value = read_nonfinite(reader);
      if (!first || comes_before(value, *first)) first = std::move(value);
    }
  }
  return first;
}

}  // namespace pipetrain
