#include "train/plan_notes.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/setting.h"
#include "device/plugin.h"

namespace pipetrain {

void add_prediction_notes(const ProfiledNetwork& network, Plan& plan) {
  const Profile& profile = network.profile();
  const std::vector<int>& gpus = network.config().pipeline.gpu_ids;
  const std::string& profile_path = network.config().pipeline.profile_path;
  if (!gpus.empty() && !network.estimated() && profile.backend == "estimate")
    plan.notes.emplace_back(
        "GPU times are estimated from FLOPs and bytes, not measured; pipetrain profile measures "
        "them");
  if (network.estimated() && profile_path.empty() && profile.backend != "estimate")
    plan.notes.push_back(fmt::format(
        "topology \"{}\" does not say how fast its devices compute: times are those of {}",
        printable(network.topology()->name), profile.device));
  if (!network.estimated() && gpus.empty() && !profile_path.empty() &&
      profile.threads != network.threads())
    plan.notes.push_back(fmt::format(
        "the profile {} was taken with {} thread{} per stage, but stages have {}; profile again",
        printable(profile_path), profile.threads, profile.threads == 1 ? "" : "s",
        network.threads()));
  // Of this process's GPUs: opening another's would allocate memory there.
  std::set<std::string> makes;
  for (int device = 0; profile.backend == "device" && network.leads() && device < std::ssize(gpus);
       ++device) {
    if (network.is_here(device))
      makes.insert(cuda_plugin().open(gpus[static_cast<std::size_t>(device)]).make());
  }
  if (makes.size() > 1)
    plan.notes.push_back(fmt::format("the GPUs differ: times are those of {}", profile.device));
  if (!network.order().empty())
    plan.notes.emplace_back("the nodes were reordered before cutting; the plan has their order");
  const bool replicated = std::any_of(plan.stages.begin(), plan.stages.end(),
                                      [](const StagePlan& stage) { return stage.replicas > 1; });
  const PipelineConfig& pipeline = network.config().pipeline;
  for (const auto& [is_given, name] : {std::pair(pipeline.shard_optimizer, "shard-optimizer"),
                                       std::pair(pipeline.bfloat16_sums, "compress")}) {
    if (is_given && !replicated)
      plan.notes.push_back(fmt::format("{} changes nothing: no stage has several {}", setting(name),
                                       setting("replicas")));
  }
  if (!network.plans_speeds() && !network.device_speeds().empty()) {
    plan.notes.push_back(fmt::format(
        "the devices of topology \"{}\" differ in speed: the predicted step counts that, "
        "but the times of stages do not",
        printable(network.topology()->name)));
  }
  if (network.config().pipeline.topology.empty() && network.topology() && replicated &&
      !network.processes()) {
    plan.notes.push_back(fmt::format(
        "the all-reduce of gradients is predicted from the copy speed of two threads; with all "
        "threads busy it is slower (doctor {} shows both)",
        setting("measure")));
  }
}

}  // namespace pipetrain
