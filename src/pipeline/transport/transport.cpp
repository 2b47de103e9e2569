#include "pipeline/transport/transport.h"

#include <algorithm>

#include "base/index.h"
#include "pipeline/transport/communicated_replicas.h"
#include "pipeline/transport/device_replicas.h"
#include "pipeline/transport/exchange.h"
#include "pipeline/transport/exchanged_link.h"
#include "pipeline/transport/local_link.h"
#include "pipeline/transport/message_thread.h"
#include "pipeline/transport/remote_link.h"
#include "pipeline/transport/remote_replicas.h"

namespace pipetrain {

Transport::Transport(const Program& program, TransportSettings settings)
    : settings_(std::move(settings)),
      placement_(program.placement),
      from_(2 * placement_.size()),
      to_(2 * placement_.size()),
      groups_(placement_.size()),
      program_(&program) {
  if (settings_.processes) {
    messages_ = std::make_unique<MessageThread>(*settings_.processes, settings_.failed,
                                                settings_.state, settings_.computes,
                                                settings_.timeout_seconds, settings_.notify);
  }
  if (settings_.collectives) {
    exchange_ = std::make_unique<Exchange>(*settings_.collectives, settings_.devices,
                                           settings_.ranks, placement_, settings_.timeout_seconds,
                                           settings_.failed, settings_.processes);
  }
  for (const LinkEdge& stages : settings_.edges) add_edge(stages);
}

/// Creates the links of an edge: one for shared memory, one for everything else.
void Transport::add_edge(const LinkEdge& stages) {
  const int number = static_cast<int>(edges_.size());
  numbers_[{stages.from, stages.to, stages.gradient}] = number;
  from_[at(2 * stages.from + (stages.gradient ? 1 : 0))].push_back(number);
  to_[at(2 * stages.to + (stages.gradient ? 1 : 0))].push_back(number);
  EdgeLinks& edge = edges_.emplace_back(EdgeLinks{stages, {}});
  int local = -1, across = -1;
  const auto once = [&](int& link, const auto& make) {
    if (link < 0) {
      link = static_cast<int>(links_.size());
      links_.push_back(make());
    }
    return link;
  };
  for (const int from : placement_[at(stages.from)]) {
    for (const int to : placement_[at(stages.to)]) {
      edge.link_of.push_back(crosses(from, to)
                                 ? once(across, [&] { return make_across(number, stages); })
                                 : once(local, [&]() -> std::unique_ptr<Link> {
                                     return std::make_unique<LocalLink>(number,
                                                                        settings_.latency_seconds);
                                   }));
    }
  }
}

std::unique_ptr<Link> Transport::make_across(int number, const LinkEdge& stages) {
  if (exchange_) return std::make_unique<ExchangedLink>(number, stages, *exchange_);
  return std::make_unique<RemoteLink>(number, stages, settings_.process_of_device, *messages_);
}

Transport::~Transport() { close(); }

/// Whether values must leave memory that both devices can access.
bool Transport::crosses(int from_device, int to_device) const {
  if (exchange_) return exchange_->crosses(from_device, to_device);
  return messages_ &&
         settings_.process_of_device[at(from_device)] != settings_.process_of_device[at(to_device)];
}

void Transport::connect(std::vector<LinkEnd*> ends) {
  ends_ = std::move(ends);
  for (const EdgeLinks& edge : edges_) {
    const auto& receivers = placement_[at(edge.stages.to)];
    for (std::size_t r = 0; r < receivers.size(); ++r) {
      const LinkEnd* receiver = ends_[at(receivers[r])];
      std::vector<int> links;
      for (std::size_t i = r; receiver && i < edge.link_of.size(); i += receivers.size())
        links.push_back(edge.link_of[i]);
      std::sort(links.begin(), links.end());
      links.erase(std::unique(links.begin(), links.end()), links.end());
      for (const int link : links) links_[at(link)]->allocate(*receiver);
    }
  }
}

ReplicaGroup& Transport::group_replicas(int stage, const std::vector<std::size_t>& sizes,
                                        const std::vector<int>& owners,
                                        std::vector<Stream*> streams) {
  const std::vector<int>& devices = placement_[at(stage)];
  std::vector<int> processes;
  for (const int device : devices) {
    if (settings_.processes) processes.push_back(settings_.process_of_device[at(device)]);
  }
  const bool apart = std::any_of(processes.begin(), processes.end(), [&](int process) {
    return process != settings_.processes->rank();
  });
  std::unique_ptr<ReplicaGroup> group;
  if (exchange_ && exchange_->reduces(*program_, stage)) {
    group = std::make_unique<CommunicatedReplicas>(sizes, std::move(streams), devices, *exchange_);
  } else if (apart) {
    auto remote =
        std::make_unique<RemoteReplicas>(*settings_.processes, *messages_, std::move(processes),
                                         first_tag_of(stage), sizes, owners, settings_.buckets);
    messages_->add(*remote);
    group = std::move(remote);
  } else if (settings_.devices.empty()) {
    group = std::make_unique<ReplicaGroup>(static_cast<int>(streams.size()), sizes);
  } else {
    group = std::make_unique<DeviceReplicaGroup>(sizes, std::move(streams));
  }
  const std::lock_guard lock(groups_mutex_);
  groups_[at(stage)] = std::move(group);
  return *groups_[at(stage)];
}

/// The first tag of the sums of a stage; that of as many stages as there are: behind all of them.
int Transport::first_tag_of(int stage) const {
  int tag = ProcessGroup::kFreeTag;
  for (int s = 0; s < stage; ++s)
    tag += RemoteReplicas::tags(static_cast<int>(placement_[at(s)].size()));
  return tag;
}

void Transport::expect_signs_of_life() {
  if (messages_) messages_->expect_signs_of_life();
}

void Transport::start_round(const Program& program, bool keep) {
  program_ = &program;
  for (const auto& group : groups_) {
    if (group) group->reset();
  }
  if (exchange_) exchange_->start_round(program, keep);
  if (messages_) {
    // Within a step a stage may be sent every micro-batch before it has done the first one.
    constexpr int kAsynchronous = 1'024;  // more than are ever in flight
    messages_->start_round(
        {.first = first_tag_of(static_cast<int>(placement_.size())),
         .of_link = is_asynchronous(program.rule) ? kAsynchronous : program.micro_batches});
  }
  std::vector<LinkRound> rounds = plan_round(program);
  for (std::size_t l = 0; l < links_.size(); ++l) links_[l]->start_round(std::move(rounds[l]));
}

/// Collects the transfers of each link from the program's lists.
std::vector<LinkRound> Transport::plan_round(const Program& program) {
  std::vector<LinkRound> rounds(links_.size());
  for (LinkRound& round : rounds) round.program = &program;
  edge_of_program_edge_.clear();
  for (std::size_t e = 0; e < program.edges.size(); ++e) {
    const Edge& edge = program.edges[e];
    const int number = edge_between(edge.from_stage, edge.to_stage, edge.gradient);
    edge_of_program_edge_.push_back(number);
    if (number < 0) continue;
    for (const int link : edges_[at(number)].link_of)
      rounds[at(link)].program_edge = static_cast<int>(e);
  }
  receive_index_.assign(edges_.size() * at(program.micro_batches), -1);
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    const auto& list = program.device[d];
    for (std::size_t i = 0; ends_[d] && i < list.size(); ++i) {
      if (list[i].kind != Kind::kReceive) continue;
      const Transfer& moved = program.transfers[at(list[i].transfer)];
      const int number = edge_of(moved.edge);
      if (number < 0) continue;
      receive_index_[at(number) * at(program.micro_batches) + at(moved.micro_batch)] =
          static_cast<int>(i);
      rounds[at(link_of(number, moved.micro_batch))].receives.push_back(
          {ends_[d], moved.micro_batch, list[i].slot, moved.from_device});
    }
  }
  return rounds;
}

void Transport::finish(int device) {
  if (exchange_) exchange_->finish(device);
}

void Transport::drop_exchanges() {
  if (exchange_) exchange_->abort();
}

void Transport::finish_round() {
  if (messages_) messages_->finish_round();
}

std::vector<BucketEvent> Transport::bucket_events(double start_seconds) const {
  std::vector<BucketEvent> all;
  for (std::size_t s = 0; s < groups_.size(); ++s) {
    if (!groups_[s]) continue;
    for (BucketEvent event : groups_[s]->bucket_events()) {
      event.stage = static_cast<int>(s);
      for (const int device : placement_[s]) {
        event.device = device;
        if (settings_.process_of_device[at(device)] == settings_.processes->rank()) break;
      }
      event.start -= start_seconds;
      event.end -= start_seconds;
      all.push_back(event);
    }
  }
  return all;
}

void Transport::abort() {
  for (const auto& link : links_) link->abort();
  {
    const std::lock_guard lock(groups_mutex_);
    for (const auto& group : groups_) {
      if (group) group->abort();
    }
  }
  if (exchange_) exchange_->abort();
  if (messages_) messages_->abort();
}

void Transport::close() {
  // Its thread reports failures to the exchange.
  if (messages_) may_still_move_ = messages_->stop();
  messages_.reset();
  exchange_.reset();
}

int Transport::edge_between(int from, int to, bool gradient) const {
  const auto found = numbers_.find({from, to, gradient});
  return found == numbers_.end() ? -1 : found->second;
}

int Transport::link_of(int edge, int micro_batch) const {
  const EdgeLinks& links = edges_[at(edge)];
  const int sender = program_->replica_of(links.stages.from, micro_batch);
  const int receiver = program_->replica_of(links.stages.to, micro_batch);
  return links.link_of[at(sender) * placement_[at(links.stages.to)].size() + at(receiver)];
}

}  // namespace pipetrain
