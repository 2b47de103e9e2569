#include "processes/link_measure.h"

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "processes/message_parts.h"
#include "processes/process_group.h"

namespace pipetrain {
namespace {

constexpr std::size_t kShort = 8, kMedium = Processes::kEagerBytes, kLong = std::size_t{8} << 20;
constexpr std::size_t kBlock = std::size_t{64} << 10;  // that is read before it is added
constexpr double kSecondsEach = 0.03;                  // for which one size is tried
constexpr double kMostSeconds = 0.25;                  // while a network still becomes faster
constexpr int kTries = 3;                              // that one order asks for
constexpr int kLeastInVain = 2;  // last tries that were not faster, before it ends

/// What two processes that measure their link do.
enum class Probe : std::int32_t {
  kOneWay,  // one sends, the other answers with kShort
  kBoth,    // both send
  kRead,    // both sum what the other has in memory
};

/// One of two processes that measure their link: the first one decides what is sent.
class LinkEndPoint {
 public:
  LinkEndPoint(ProcessGroup& group, int peer) : group_(group), peer_(peer) {
    out_.resize(kLong);
    in_.resize(kLong);
  }

  ProcessLink measure() {
    seconds_of(kShort, Probe::kOneWay, 0);  // connects
    ProcessLink link;
    link.latency_seconds = seconds_of(kShort, Probe::kOneWay, kSecondsEach) / 2;
    const double medium = seconds_of(kMedium, Probe::kOneWay, kSecondsEach);
    // So many that the network's way to its speed counts little.
    const double enough = medium + std::max(kSecondsEach, 2 * link.latency_seconds);
    std::size_t bytes = 2 * kMedium;
    while (bytes < kLong && seconds_of(bytes, Probe::kOneWay, 0) < enough) bytes *= 2;
    link.bytes_per_second = rate_of(Probe::kOneWay, bytes, medium);
    const double medium_both = seconds_of(kMedium, Probe::kBoth, kSecondsEach);
    link.both_bytes_per_second =
        2 * std::min(rate_of(Probe::kBoth, bytes, medium_both), link.bytes_per_second);
    if (group_.can_read(peer_) && *group_.hosts_read()) {
      const double medium_read = seconds_of(kMedium, Probe::kRead, kSecondsEach);
      link.read_bytes_per_second = rate_of(Probe::kRead, kLong, medium_read);
    }
    order({});
    return link;
  }

  void follow() {
    while (receive_order().bytes > 0) {
      for (int i = 0; i < order_.tries; ++i) exchange(order_, /*first=*/false);
    }
  }

 private:
  struct Order {
    std::uint64_t bytes = 0;  // 0: the end
    Probe probe = Probe::kOneWay;
    std::int32_t tries = 0;
  };

  /// Bytes per second one way, of what `bytes` take longer than kMedium, which take `medium`.
  double rate_of(Probe probe, std::size_t bytes, double medium) {
    const double seconds = seconds_of(bytes, probe, kSecondsEach);
    return seconds > medium ? static_cast<double>(bytes - kMedium) / (seconds - medium)
                            : static_cast<double>(bytes) / seconds;
  }

  /// The least time of a probe of so many bytes.
  double seconds_of(std::size_t bytes, Probe probe, double for_seconds) {
    const double begin = steady_seconds();
    double least = 1e9, elapsed = 0;
    int in_vain = 0;  // tries since one was faster by a twentieth
    do {
      order({bytes, probe, for_seconds > 0 ? kTries : 1});
      for (int i = 0; i < order_.tries; ++i) {
        const double start = steady_seconds();
        exchange(order_, /*first=*/true);
        const double seconds = steady_seconds() - start;
        in_vain = seconds < 0.95 * least ? 0 : in_vain + 1;
        least = std::min(least, seconds);
      }
      elapsed = steady_seconds() - begin;
    } while (elapsed < for_seconds ||
             (for_seconds > 0 && in_vain < kLeastInVain && elapsed < kMostSeconds));
    return least;
  }

  void exchange(const Order& order, bool first) {
    if (order.probe == Probe::kRead) return read(order.bytes);
    const bool both = order.probe == Probe::kBoth;
    const std::size_t answer = both ? order.bytes : kShort;
    Requests receives, sends;
    post_receive_in_parts(group_.processes(), in_.data(), first ? answer : order.bytes, peer_, kTag,
                          receives, Processes::kEagerBytes);
    if (!first && !both) wait(receives);
    post_send_in_parts(group_.processes(), out_.data(), first ? order.bytes : answer, peer_, kTag,
                       sends, Processes::kEagerBytes);
    wait(sends);
    wait(receives);
  }

  /// As two replicas do it: first an address; half of the bytes are read in blocks and added to
  /// what is here, the other half are sums; at the end an empty message.
  void read(std::size_t bytes) {
    address_ = reinterpret_cast<std::uint64_t>(out_.data());
    swap_messages(&address_, &address_there_, sizeof address_);
    for (std::size_t begin = 0; begin < bytes / 2; begin += kBlock) {
      const std::size_t count = std::min(kBlock, bytes / 2 - begin);
      group_.read(peer_, address_there_ + begin, block_.data(), count);
      auto* const sums = reinterpret_cast<float*>(in_.data() + begin);
      for (std::size_t i = 0; i < count / sizeof(float); ++i) sums[i] += block_[i];
    }
    group_.read(peer_, address_there_ + bytes / 2, in_.data() + bytes / 2, bytes - bytes / 2);
    swap_messages(nullptr, nullptr, 0);
  }

  void swap_messages(const void* to_send, void* to_receive, std::size_t bytes) {
    const auto receive = group_.processes().post_receive(to_receive, bytes, peer_, kTag);
    wait(group_.processes().post_send(to_send, bytes, peer_, kTag));
    wait(receive);
  }

  /// The answer says that the other side is ready.
  void order(const Order& next) {
    order_ = next;
    const auto receive = group_.processes().post_receive(&ready_, 1, peer_, kTag);
    wait(group_.processes().post_send(&order_, sizeof order_, peer_, kTag));
    wait(receive);
  }
  const Order& receive_order() {
    wait(group_.processes().post_receive(&order_, sizeof order_, peer_, kTag));
    wait(group_.processes().post_send(&ready_, 1, peer_, kTag));
    return order_;
  }

  using Requests = std::vector<Processes::Request>;
  void wait(Requests& requests) {
    for (const Processes::Request request : requests) wait(request);
    requests.clear();
  }
  void wait(Processes::Request request) {
    while (!group_.processes().test(request)) {
      group_.check();
      std::this_thread::yield();
    }
  }

  static constexpr int kTag = ProcessGroup::kMeasureTag;
  ProcessGroup& group_;
  const int peer_;
  std::vector<std::byte> out_, in_;
  std::vector<float> block_ = std::vector<float>(kBlock / sizeof(float));
  std::uint64_t address_ = 0, address_there_ = 0;  // of out_
  Order order_;
  char ready_ = 1;
};

/// Measures the link to `peer`, or helps it to. Empty: it does.
std::string measure_with(ProcessGroup& group, int peer, bool first) {
  auto end = std::make_unique<LinkEndPoint>(group, peer);
  try {
    ByteWriter writer;
    first ? writer.put(end->measure()) : end->follow();
    return writer.take();
  } catch (...) {
    end.release();  // messages in flight may still use its memory
    throw;
  }
}

void add_slower(ProcessLink& slowest, bool& any, const ProcessLink& link) {
  if (!std::exchange(any, true)) {
    slowest = link;
    return;
  }
  slowest.latency_seconds = std::max(slowest.latency_seconds, link.latency_seconds);
  slowest.bytes_per_second = std::min(slowest.bytes_per_second, link.bytes_per_second);
  slowest.both_bytes_per_second =
      std::min(slowest.both_bytes_per_second, link.both_bytes_per_second);
  slowest.read_bytes_per_second =
      std::min(slowest.read_bytes_per_second, link.read_bytes_per_second);
}

}  // namespace

std::vector<std::vector<int>> processes_of_hosts(const ProcessGroup& group) {
  std::vector<std::vector<int>> hosts;
  std::map<std::string, std::size_t> numbers;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto [place, is_new] = numbers.emplace(group.host_of(rank), hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[place->second].push_back(rank);
  }
  return hosts;
}

ProcessLinks measure_process_links(ProcessGroup& group, std::string_view machine) {
  const std::vector<std::vector<int>> hosts = processes_of_hosts(group);
  const std::vector<std::string> machines = group.all_gather(machine);
  std::map<std::string, int> measured;  // hosts of each machine
  std::vector<int> turns;               // of each host
  for (const std::vector<int>& host : hosts)
    turns.push_back(host.size() > 1 ? measured[machines[at(host.front())]]++ : 0);
  const int last_turn = turns.empty() ? 0 : *std::ranges::max_element(turns);
  std::string mine;
  const auto measure = [&](int first, int second) {
    if (group.rank() == first) mine = measure_with(group, second, /*first=*/true);
    if (group.rank() == second) measure_with(group, first, /*first=*/false);
  };
  ProcessLinks links;
  const auto gather = [&](ProcessLink& slowest, bool& any) {
    for (const std::string& bytes : group.all_gather(mine)) {
      if (!bytes.empty()) add_slower(slowest, any, ByteReader(bytes).get<ProcessLink>());
    }
    mine.clear();
  };
  for (int turn = 0; turn <= last_turn; ++turn) {
    for (std::size_t h = 0; h < hosts.size(); ++h) {
      if (turns[h] == turn && hosts[h].size() > 1) measure(hosts[h][0], hosts[h][1]);
    }
    gather(links.on_host, links.on_hosts);
  }
  for (std::size_t first = 0; first < 2; ++first) {
    for (std::size_t h = first; h + 1 < hosts.size(); h += 2)
      measure(hosts[h].front(), hosts[h + 1].front());
    gather(links.between, links.between_hosts);
  }
  return links;
}

}  // namespace pipetrain
