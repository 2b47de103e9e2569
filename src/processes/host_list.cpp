#include "processes/host_list.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/error.h"

namespace pipetrain {
namespace {

constexpr int kMostSlots = 4'096;

std::optional<int> count_in(std::string_view text) {
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1 || count > kMostSlots)
    return {};
  return count;
}

/// A name or an address, which no shell and no launcher takes for anything else.
bool is_host_name(const std::string& name) {
  constexpr std::string_view kOthers = "-_.[]";
  return !name.empty() && name[0] != '-' && name.size() <= 255 &&
         std::ranges::all_of(name, [&](char letter) {
           return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                  (letter >= '0' && letter <= '9') || kOthers.find(letter) != kOthers.npos;
         });
}

/// One line without its comment; empty where it is no host.
std::optional<LaunchHost> host_in(const std::string& line) {
  std::istringstream words(line);
  LaunchHost host;
  words >> host.name;
  const std::size_t colon = host.name.find(':');
  if (colon != std::string::npos) {
    const std::optional<int> slots = count_in(std::string_view(host.name).substr(colon + 1));
    if (!slots) return {};
    host.slots = *slots;
    host.name.resize(colon);
  }
  for (std::string word; words >> word;) {
    const std::size_t equal = std::min(word.find('='), word.size());
    const std::optional<int> value =
        equal < word.size() ? count_in(std::string_view(word).substr(equal + 1)) : std::nullopt;
    if (!value) return {};
    if (word.compare(0, equal, "slots") == 0) {
      host.slots = *value;
    } else if (word.compare(0, equal, "max_slots") != 0 &&
               word.compare(0, equal, "max-slots") != 0) {
      return {};
    }
  }
  if (!is_host_name(host.name)) return {};
  return host;
}

/// Whether a line begins with an IPv6 address, which has several colons.
bool begins_with_ipv6(const std::string& line) {
  std::string name;
  std::istringstream(line) >> name;
  return std::ranges::count(name, ':') > 1;
}

/// The host in "node1:2222".
std::string without_port(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

/// The IP address of a network interface; empty: it has none.
std::string address_text(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address && address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text.data(),
                text.size());
  } else if (address && address->sa_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text.data(),
                text.size());
  }
  return text.data();
}

}  // namespace

bool is_this_host(const std::string& name) {
  if (name.empty()) return false;
  if (name == "localhost") return true;
  std::array<char, 256> text{};
  ::gethostname(text.data(), text.size() - 1);
  const std::string own = text.data();
  // One of them may have a domain.
  if (name == own || name.starts_with(own + ".") || own.starts_with(name + ".")) return true;
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) return false;
  bool has_address = false;
  for (const ifaddrs* one = interfaces; one; one = one->ifa_next)
    has_address = has_address || name == address_text(one->ifa_addr);
  ::freeifaddrs(interfaces);
  return has_address;
}

std::vector<LaunchHost> parse_hosts(std::string_view text, const std::string& source) {
  std::vector<LaunchHost> hosts;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line.resize(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    // In -host, mpirun takes what is behind the first colon for a number of slots.
    PT_CHECK(!begins_with_ipv6(line), kUsage,
             "{}, line {}: mpirun takes no IPv6 addresses; give a host name in place of \"{}\"",
             source, number, printable(line));
    const std::optional<LaunchHost> host = host_in(line);
    PT_CHECK(host, kUsage, "{}, line {}: \"{}\" is no host; write \"node1 slots=2\" or \"node1:2\"",
             source, number, printable(line));
    const auto same = std::ranges::find(hosts, host->name, &LaunchHost::name);
    if (same == hosts.end()) {
      hosts.push_back(*host);
    } else {
      same->slots = std::min(kMostSlots, same->slots + host->slots);
    }
  }
  return hosts;
}

TensorFlowCluster parse_tf_config(const char* text) {
  const auto config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  TensorFlowCluster found;
  if (!config.is_object() || !config.contains("cluster") || !config["cluster"].is_object())
    return found;
  std::string first;  // the kind of task that starts the others
  for (const char* job : {"chief", "master", "worker"}) {
    if (!config["cluster"].contains(job) || !config["cluster"][job].is_array()) continue;
    for (const auto& address : config["cluster"][job]) {
      if (!address.is_string()) continue;
      if (first.empty()) first = job;
      found.hosts.push_back({printable(without_port(address.get<std::string>()))});
    }
  }
  if (!config.contains("task") || !config["task"].is_object()) return found;
  const auto& task = config["task"];
  const std::string type = task.contains("type") && task["type"].is_string()
                               ? task["type"].get<std::string>()
                               : std::string();
  // TensorFlow takes both 1 and "1".
  const std::string index = !task.contains("index")     ? "0"
                            : task["index"].is_string() ? task["index"].get<std::string>()
                                                        : task["index"].dump();
  found.task = printable(type + " " + index);
  found.starts = type.empty() || (type == first && index == "0");
  found.evaluates = type == "evaluator";
  return found;
}

std::vector<LaunchHost> hosts_of_slurm(const std::vector<std::string>& names,
                                       const std::string& tasks) {
  std::vector<int> slots;
  std::istringstream parts(tasks);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t bracket = std::min(part.find("(x"), part.size());
    const std::optional<int> count = count_in(std::string_view(part).substr(0, bracket));
    std::optional<int> times = 1;
    if (bracket < part.size()) {
      PT_CHECK(part.back() == ')', kUsage, "SLURM_TASKS_PER_NODE: \"{}\" is not a list of tasks",
               printable(tasks));
      times = count_in(std::string_view(part).substr(bracket + 2, part.size() - bracket - 3));
    }
    PT_CHECK(count && times, kUsage, "SLURM_TASKS_PER_NODE: \"{}\" is not a list of tasks",
             printable(tasks));
    slots.insert(slots.end(), static_cast<std::size_t>(*times), *count);
  }
  if (slots.empty()) slots.assign(names.size(), 1);
  PT_CHECK(slots.size() == names.size(), kUsage,
           "SLURM_TASKS_PER_NODE has the tasks of {} nodes, but the allocation has {}",
           slots.size(), names.size());
  std::vector<LaunchHost> hosts;
  for (std::size_t i = 0; i < names.size(); ++i) hosts.push_back({names[i], slots[i]});
  return hosts;
}

int slots_of(const std::vector<LaunchHost>& hosts) {
  int slots = 0;
  for (const LaunchHost& host : hosts) slots += host.slots;
  return slots;
}

std::string names_of(const std::vector<LaunchHost>& hosts) {
  std::string names;
  for (const LaunchHost& host : hosts) names += (names.empty() ? "" : ", ") + host.name;
  return names;
}

}  // namespace pipetrain
