// A runtime of several processes: which devices are here, what goes to the others. Decisions are
// made by all alike, from the same numbers in the same order, so that no bit depends on how many
// processes there are.
#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/index.h"
#include "pipeline/program/annotate.h"
#include "pipeline/runtime/runtime_worker.h"
#include "pipeline/stage/content_bytes.h"
#include "pipeline/transport/remote_links.h"

namespace pipetrain {

void Runtime::connect_processes() {
  const std::vector<int>& process_of = options_.process_of_device;
  PT_CHECK(process_of.size() == at(program_->devices), kInternal,
           "processes of {} devices for a program on {}", process_of.size(), program_->devices);
  PT_CHECK(options_.rehearsal.empty(), kInternal, "a rehearsal is of one process");
  for (const Program* program : programs_) {
    PT_CHECK(!is_asynchronous(program->rule), kUsage,
             "{} updates stages while others compute, which several processes cannot do yet; use "
             "1f1b, gpipe or a zero-bubble schedule, or one process",
             program->schedule);
  }
  PT_CHECK(options_.devices.empty() || options_.collectives, kUsage,
           "GPUs of several processes exchange values by NCCL; leave out --edge copy");
  // Moments of running statistics are exchanged by replicas in host memory only.
  for (const Program* program : programs_) {
    for (int s = 0; s < program->stages && !options_.devices.empty(); ++s) {
      const auto& devices = program->placement[at(s)];
      const bool apart = std::any_of(devices.begin(), devices.end(), [&](int device) {
        return process_of[at(device)] != process_of[at(devices.front())];
      });
      const std::vector<int> ranks = exchange_ranks();
      std::set<int> distinct;
      for (const int device : devices) distinct.insert(ranks[at(device)]);
      PT_CHECK(!apart || distinct.size() == devices.size(), kUsage,
               "replicas of stage {} share a GPU and have others in another process; give each a "
               "GPU of its own",
               s);
      PT_CHECK(!apart || slices_[0]->stages[at(s)].statistics.empty(), kUsage,
               "stage {} has running statistics (BatchNormalization) and replicas on GPUs of "
               "several processes, which cannot merge them yet; let each process have whole "
               "stages, or give --bn frozen",
               s);
    }
  }
  remote_ = std::make_unique<RemoteLinks>(
      *options_.processes, [this](std::exception_ptr error) { fail(error); },
      [this] {
        const std::lock_guard lock(mutex_);
        const bool waits = running_ > 0 && program_ && round_ > 0;
        return std::pair(waits ? describe_waits() : std::string(), progress_.load());
      },
      options_.timeout_seconds);
}

bool Runtime::is_here(int device) const {
  return !options_.processes ||
         options_.process_of_device[at(device)] == options_.processes->rank();
}

const Runtime::Copy* Runtime::copy_here(int stage) const {
  for (const Copy& copy : stages_[at(stage)]) {
    if (copy.stage) return &copy;
  }
  return nullptr;
}

/// One rank for each device that there is, whosever it is.
std::vector<int> Runtime::exchange_ranks() const {
  std::vector<std::pair<int, std::intptr_t>> known;
  std::vector<int> ranks;
  for (std::size_t d = 0; d < options_.devices.size(); ++d) {
    const std::pair<int, std::intptr_t> device =
        options_.processes ? std::pair<int, std::intptr_t>(options_.process_of_device[d],
                                                           options_.device_numbers.at(d))
                           : std::pair<int, std::intptr_t>(
                                 0, reinterpret_cast<std::intptr_t>(options_.devices[d]));
    const auto found = std::find(known.begin(), known.end(), device);
    ranks.push_back(static_cast<int>(found - known.begin()));
    if (found == known.end()) known.push_back(device);
  }
  return ranks;
}

int Runtime::first_device_here() const {
  int device = 0;
  while (!is_here(device)) ++device;
  return device;
}

bool Runtime::is_remote(int from, int to, int unit) const {
  if (exchange_) return false;
  const auto process_of = [&](int stage) {
    return options_.process_of_device[at(program_->device_of(stage, unit))];
  };
  return process_of(from) != process_of(to);
}

/// Room for all that a stage may hold at once of what other processes send it.
void Runtime::allocate_remote(Copy& copy, int stage) {
  copy.remote.resize(links_.size());
  for (std::size_t l = 0; l < links_.size(); ++l) {
    const Link& link = links_[l];
    const auto& senders = program_->placement[at(link.from)];
    if (link.to != stage ||
        std::all_of(senders.begin(), senders.end(), [&](int device) { return is_here(device); }))
      continue;
    std::size_t bytes = 0;
    for (std::size_t v = 0; v < slices_.size(); ++v) {
      for (const ValueEdge& edge : slices_[v]->edges) {
        if (edge.from == link.from && edge.to == link.to && edge.gradient == link.gradient)
          bytes = std::max(bytes, copy.stage->received_bytes(static_cast<int>(v), edge));
      }
    }
    int slots = 0;
    for (const Program* program : programs_) {
      for (std::size_t e = 0; e < program->edges.size(); ++e) {
        const Edge& edge = program->edges[e];
        if (edge.from_stage == link.from && edge.to_stage == link.to &&
            edge.gradient == link.gradient)
          slots = std::max(slots, program->slots_per_edge[e]);
      }
    }
    for (int slot = 0; slot < slots; ++slot) copy.remote[l].emplace_back(bytes);
  }
}

/// Tells the thread that moves values what will come, in the order of the lists.
void Runtime::start_remote_round() {
  std::vector<RemoteLinks::Inbox> inboxes;
  for (const auto& worker : workers_) {
    if (!worker) continue;
    for (const Instruction& instruction : program_->device[at(worker->device)]) {
      if (instruction.kind != Kind::kReceive) continue;
      const Transfer& moved = program_->transfers[at(instruction.transfer)];
      if (exchange_ || is_here(moved.from_device)) continue;
      const int variant = source_->acquire(moved.unit).variant;
      const auto edge = std::find_if(slices_[at(variant)]->edges.begin(),
                                     slices_[at(variant)]->edges.end(), [&](const ValueEdge& one) {
                                       return one.from == moved.from_stage &&
                                              one.to == moved.to_stage &&
                                              one.gradient == moved.gradient;
                                     });
      if (edge == slices_[at(variant)]->edges.end()) continue;  // a variant that hands over nothing
      const auto link = std::find_if(links_.begin(), links_.end(), [&](const Link& one) {
        return one.from == moved.from_stage && one.to == moved.to_stage &&
               one.gradient == moved.gradient;
      });
      const int l = static_cast<int>(link - links_.begin());
      const int peer = options_.process_of_device[at(moved.from_device)];
      Copy& copy = copy_on(moved.to_stage, worker->device);
      const std::byte* buffer = copy.remote[at(l)].at(at(instruction.slot)).data();
      auto inbox = std::find_if(inboxes.begin(), inboxes.end(), [&](const auto& one) {
        return one.link == l && one.device == worker->device;
      });
      if (inbox == inboxes.end()) {
        inboxes.push_back({l, worker->device, link->channel.get(), {}, {}, 0});
        inbox = inboxes.end() - 1;
        inbox->held.resize(copy.remote[at(l)].size());
      }
      inbox->arrivals.push_back(
          {moved.unit, peer, instruction.slot,
           copy.stage->received(variant, *edge, const_cast<std::byte*>(buffer))});
    }
  }
  remote_->start_round(std::move(inboxes));
}

void Runtime::send_remote(const ValueEdge& edge, const Copy& copy, int variant, int unit,
                          const std::byte* base) {
  for (std::size_t l = 0; l < links_.size(); ++l) {
    const Link& link = links_[l];
    if (link.from != edge.from || link.to != edge.to || link.gradient != edge.gradient) continue;
    remote_->send(static_cast<int>(l), unit,
                  options_.process_of_device[at(program_->device_of(edge.to, unit))], *link.channel,
                  copy.stage->handed_on(variant, edge, base));
  }
}

/// Tied weights get the gradients that stages of other processes have computed.
void Runtime::exchange_tied_gradients() {
  ProcessGroup& group = *options_.processes;
  const auto has = [&](int process, std::size_t stage) {
    return std::any_of(stages_[stage].begin(), stages_[stage].end(), [&](const Copy& copy) {
      return options_.process_of_device[at(copy.device)] == process;
    });
  };
  // All go through the same list, and whoever has part in an entry of it does its part; the first
  // entry that is not done can always be done.
  for (std::size_t to = 0; to < stages_.size(); ++to) {
    for (const int i : slices_[0]->stages[to].remote_accumulations) {
      for (std::size_t from = 0; from < stages_.size(); ++from) {
        const auto& computed = slices_[0]->stages[from].accumulations;
        if (std::find(computed.begin(), computed.end(), i) == computed.end()) continue;
        const int sender = options_.process_of_device[at(stages_[from].front().device)];
        for (int process = 0; process < group.size(); ++process) {
          if (!has(process, to) || has(process, from)) continue;
          if (sender == group.rank()) {
            group.send(stages_[from].front().stage->read_accumulator(i), process);
          } else if (process == group.rank()) {
            const std::string bytes = group.receive(sender);
            for (Copy& copy : stages_[to]) {
              if (copy.stage) copy.stage->write_accumulator(i, bytes);
            }
          }
        }
      }
    }
  }
}

/// Everybody gets the norms of all gradients, which are then added up in one order everywhere.
void Runtime::share_norms() {
  ProcessGroup& group = *options_.processes;
  const std::vector<std::string> all =
      group.all_gather({reinterpret_cast<const char*>(squared_norms_.data()),
                        squared_norms_.size() * sizeof(double)});
  for (std::size_t p = 0; p < squared_norms_.size(); ++p) {
    const int owner = slices_[0]->owner[p];
    if (owner < 0) continue;
    const int process = options_.process_of_device[at(stages_[at(owner)].front().device)];
    std::string_view(all[at(process)])
        .substr(p * sizeof(double))
        .copy(reinterpret_cast<char*>(&squared_norms_[p]), sizeof(double));
  }
}

/// What the stages hold, for all to know; and nobody starts before all are ready.
void Runtime::share_memory() {
  memory_.resize(stages_.size());
  ByteWriter here;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    if (stages_[s].front().stage) memory_[s] = stages_[s].front().stage->memory();
    here.put(memory_[s]);
  }
  if (!options_.processes) return;
  const std::vector<std::string> all = options_.processes->all_gather(here.take());
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const int process = options_.process_of_device[at(stages_[s].front().device)];
    std::string_view(all[at(process)])
        .substr(s * sizeof(ArenaBytes))
        .copy(reinterpret_cast<char*>(&memory_[s]), sizeof(ArenaBytes));
  }
}

/// Losses of the units and the devices' times, for all to know.
void Runtime::share_results(RoundResult& result) {
  ByteWriter here;
  const auto units = std::count_if(round_units_.begin(), round_units_.end(),
                                   [](const MicroBatch* unit) { return unit != nullptr; });
  here.put(static_cast<std::int32_t>(units));
  for (std::size_t u = 0; u < round_units_.size(); ++u) {
    if (!round_units_[u]) continue;
    here.put(static_cast<std::int32_t>(u));
    here.put(round_units_[u]->loss_sum);
    here.put(round_units_[u]->correct);
  }
  for (std::size_t d = 0; d < workers_.size(); ++d) {
    if (!workers_[d]) continue;
    here.put(static_cast<std::int32_t>(d));
    here.put(result.busy_seconds[d]);
    here.put(result.cpu_seconds[d]);
    here.put(static_cast<std::uint64_t>(result.events[d].size()));
    for (const Event& event : result.events[d]) here.put(event);
  }
  for (const std::string& bytes : options_.processes->all_gather(here.take())) {
    ByteReader reader(bytes);
    for (auto left = reader.get<std::int32_t>(); left > 0; --left) {
      MicroBatch& unit = source_->acquire(reader.get<std::int32_t>());
      unit.loss_sum = reader.get<double>();
      unit.correct = reader.get<double>();
    }
    while (!reader.at_end()) {
      const std::size_t d = at(reader.get<std::int32_t>());
      result.busy_seconds[d] = reader.get<double>();
      result.cpu_seconds[d] = reader.get<double>();
      result.events[d].resize(reader.get<std::uint64_t>());
      for (Event& event : result.events[d]) event = reader.get<Event>();
    }
  }
}

std::vector<StageContent> Runtime::contents() const {
  std::vector<StageContent> all;
  for (int s = 0; s < stages(); ++s) {
    if (!options_.processes) {
      all.push_back(content(s));
      continue;
    }
    ProcessGroup& group = *options_.processes;
    const int process = options_.process_of_device[at(copy(s, 0).device)];
    if (process == group.rank() && !group.leads()) group.send(bytes_of(content(s)), 0);
    if (group.leads())
      all.push_back(process == 0 ? content(s) : content_of(group.receive(process)));
  }
  return all;
}

}  // namespace pipetrain
