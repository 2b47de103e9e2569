// plan.json: a plan that can be read, edited and passed with --plan.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "partition/plan.h"

namespace pipetrain {

inline constexpr std::string_view kPlanSchema = "pipetrain.plan/1";

/// The decisions in a plan file. Everything else is informational; predictions are recomputed when
/// it is read.
struct PlanChoice {
  std::vector<int> cuts;             // first elements of stages 1, 2, …
  std::vector<Recompute> recompute;  // of each stage; kAuto where the file does not say
  std::vector<DeviceRange> devices;  // of each stage; without a word in the file one after another
  std::optional<std::string> schedule;
  std::optional<int> micro_batches;
  std::optional<int> virtual_stages;  // of each device
  std::optional<int> memory_units;    // of the schedule
  std::optional<double> warm_up_tolerance;
  /// Of the model's nodes, as parse_order() reads it; empty: the standard one.
  std::string order;

  int stages() const { return static_cast<int>(cuts.size()) + 1; }
  /// Some stage has several devices.
  bool replicated() const;
};

/// The file's text. A stage is given by its first node, by name and index; it ends where the next
/// one begins. `order`: of the model's nodes, where it is not the standard one (order_text.h).
std::string plan_text(const Plan& plan, const ChainCosts& chain, const PlanRequest& request,
                      std::string_view model, std::span<const int> order = {});
void write_plan(const std::filesystem::path& path, const Plan& plan, const ChainCosts& chain,
                const PlanRequest& request, std::string_view model,
                std::span<const int> order = {});

/// Reads a plan for a chain whose elements have these names. Of first_node and first_index one may
/// be missing. Error (kUsage) naming the field that does not fit the chain.
PlanChoice read_plan(const std::filesystem::path& path, std::span<const std::string> names);
/// What a plan says of the run, without the model: schedule, micro-batches and order where it has
/// them, and its devices in `devices` (cuts and recompute stay empty).
PlanChoice read_plan_outline(const std::filesystem::path& path);
PlanChoice parse_plan(std::string_view text, const std::string& file,
                      std::span<const std::string> names);

/// The numbers of the chosen plan; micro-batches of the request give way to those of the choice.
/// The caller looks up the schedule that the choice names: here names mean nothing.
Plan plan_of_choice(const ChainCosts& chain, PlanRequest request, const PlanChoice& choice);

/// Where the element of that name begins (one node of a file may become several elements in a row).
/// Error (kUsage) when there is none or when there are several apart.
int find_element(std::span<const std::string> names, std::string_view name);
/// The same for a word that may also be a position, where no element has it as its name. Whether a
/// stage can begin there is left open.
int find_cut(std::span<const std::string> names, std::string_view word);

std::vector<std::string> element_names(const ChainCosts& chain);

/// "none", "all", "auto".
std::string_view name_of(Recompute recompute);

}  // namespace pipetrain
