// A network with the times of its kernels and the order in which its nodes are cut.
#pragma once

#include <optional>
#include <vector>

#include "partition/plan.h"
#include "partition/topology.h"
#include "passes/linearise.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/stage/stage.h"
#include "pipeline/transport/bucket_floats.h"
#include "profile/measure.h"
#include "profile/profile.h"
#include "train/network.h"

namespace pipetrain {

class ProfiledNetwork : public Network {
 public:
  /// Reads, estimates or measures the profile, as the options say; several processes take what
  /// process 0 has found. Chooses the order of the nodes, on which no number that is trained
  /// depends. Error (kUsage, kData) for a profile, a topology or an order that does not fit.
  explicit ProfiledNetwork(Network network);

  const Profile& profile() const { return profile_; }
  /// Whether the devices are those of a topology, not present. Unless a profile is given, times are
  /// estimated for them, or measured here where the topology has no speeds.
  bool estimated() const { return estimated_; }
  /// The links between the devices; empty if unknown.
  const std::optional<Topology>& topology() const { return topology_; }
  /// Gives a plan of one device per stage the links that its cuts go over.
  void set_links(PlanRequest& request) const;
  /// The speeds of the devices, where a topology that is named says that they differ; else empty.
  /// In a run whose kernels are timed here, on its first device, that one has speed 1.
  std::vector<double> device_speeds() const;
  /// Whether plans of stages count them: each stage has devices of its own, in order.
  bool plans_speeds() const;
  /// Gives a plan of `stages` an equal share of the memory of a device for each of its stages, and
  /// what the optimizer keeps there.
  void set_memory(PlanRequest& request, std::size_t device_limit) const;
  /// How sums over replicas in several processes are divided.
  BucketFloats bucket_floats() const;
  /// Seconds until all processes have told each other something short; 0 with one.
  double all_gather_seconds() const;
  /// The same until one on the same host has been told.
  double all_gather_on_host_seconds() const;
  const Chain& chain() const { return chain_; }
  /// The order of the chain if it is not the standard one; else empty.
  const std::vector<int>& order() const { return order_; }
  /// The cuts that the configuration gives; empty: none that hold for this chain.
  std::vector<int> given_cuts() const;
  const ChainCosts& costs() const { return costs_; }
  /// What a device may hold, as given or as the devices of a topology that is given have it; 0:
  /// anything.
  std::size_t memory_limit_bytes() const { return memory_limit_bytes_; }
  /// Stages that can compute at once on this machine's cores, or on the GPUs of the run; 0: as many
  /// as there are, on devices that are not at hand.
  int processors() const;
  /// What it takes to wake the threads of this process's CPU devices; nothing for other devices.
  std::optional<CoreSharing> waking() const;
  /// Where stages of several processes are threads on the CPU: the devices that share cores, and
  /// how many of them compute at once. Empty elsewhere.
  std::vector<CoreGroup> cores_of_processes() const;
  /// Has the kernels measured again by the next run, where this one has taken them from the cache.
  /// Does nothing for asynchronous schedules, whose results depend on the cut.
  void forget_measurements() const;
  /// The same for the links between processes.
  void forget_measured_links() const;

 protected:
  /// Puts the measured times of a step into the profile, which was an estimate. Whether there were
  /// any.
  bool take_times(const KernelTimes& times, double update_seconds);

 private:
  ProfileOptions profile_options() const;
  Profile make_profile() const;
  void choose_order();
  bool is_cut_elsewhere() const;
  void take_order(std::vector<int> order);

  std::optional<Topology> topology_;
  bool estimated_;
  std::size_t memory_limit_bytes_;
  Chain chain_;
  Profile profile_;
  ChainCosts costs_;
  std::vector<int> order_;
};

}  // namespace pipetrain
