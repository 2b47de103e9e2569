// The hosts that `launch` may use, as a file, a discovery script, TensorFlow or Slurm lists them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pipetrain {

struct LaunchHost {
  std::string name;
  int slots = 1;  // processes that it takes

  bool operator==(const LaunchHost&) const = default;
};

/// "node1 slots=2" and "node1:2", one per line, as Open MPI's host files and Horovod's discovery
/// scripts have them; without a number, one slot. # begins a comment. Error (kUsage) naming
/// `source` and the line.
std::vector<LaunchHost> parse_hosts(std::string_view text, const std::string& source);

/// What a TF_CONFIG says: {"cluster": {"chief": ["a:2222"], "worker": ["b:2222"]}, "task": {"type":
/// "worker", "index": 0}}.
struct TensorFlowCluster {
  std::vector<LaunchHost> hosts;  // those that train, the chief first; empty: it names none
  /// Whether this task starts the others: the chief, or the first worker where there is none.
  bool starts = true;
  bool evaluates = false;  // it neither starts them nor trains
  std::string task;        // "worker 1"
};
TensorFlowCluster parse_tf_config(const char* text);

/// The hosts of a Slurm allocation. `tasks`: SLURM_TASKS_PER_NODE, as "2(x3),1"; empty: one each.
/// Error (kUsage) when the two do not fit.
std::vector<LaunchHost> hosts_of_slurm(const std::vector<std::string>& names,
                                       const std::string& tasks);

/// Whether this host has that name or address, as far as is known without a name server.
bool is_this_host(const std::string& name);

/// How many processes the hosts take.
int slots_of(const std::vector<LaunchHost>& hosts);
/// "node1, node2"
std::string names_of(const std::vector<LaunchHost>& hosts);

}  // namespace pipetrain
