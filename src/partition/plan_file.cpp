#include "partition/plan_file.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/atomic_file.h"
#include "base/document.h"
#include "base/setting.h"
#include "partition/order_text.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kMostParts = 1 << 20;  // devices, micro-batches, nodes of a stage

Json stage_json(const StagePlan& stage, std::size_t index, const ChainCosts& chain,
                bool has_own_devices) {
  const auto first = static_cast<std::size_t>(stage.first);
  Json out = {
      {"index", index},
      {"first_node", chain.elements[first].name},
      {"first_index", stage.first},
  };
  // Where a device has several stages, the schedule says which.
  if (has_own_devices) out["first_device"] = stage.first_device;
  out.update({
      {"replicas", stage.replicas},
      {"recompute", stage.recompute},
      {"nodes", stage.last - stage.first},
      {"seconds", stage.seconds},
      {"forward_seconds", stage.forward_seconds},
      {"backward_seconds", stage.backward_seconds},
      {"step_seconds", stage.step_seconds},
      {"transfer_seconds", stage.transfer_seconds},
      {"all_reduce_seconds", stage.all_reduce_seconds},
      {"parameter_bytes", stage.parameter_bytes},
      {"saved_bytes", stage.saved_bytes},
      {"in_flight", stage.in_flight},
      {"weight_versions", stage.weight_versions},
      {"memory_bytes", stage.memory.total()},
      {"memory",
       {{"weights", stage.memory.weight_bytes},
        {"gradients", stage.memory.gradient_bytes},
        {"optimizer", stage.memory.optimizer_bytes},
        {"activations", stage.memory.activation_bytes},
        {"transient", stage.memory.transient_bytes}}},
      {"forward_bytes_in", stage.first == 0 ? 0 : chain.forward_bytes[first]},
      {"backward_bytes_out", stage.first == 0 ? 0 : chain.backward_bytes[first]},
  });
  return out;
}

// The chain's names as they stand in a document.
class Names {
 public:
  explicit Names(std::span<const std::string> names) : names_(names) {}
  int count() const { return static_cast<int>(names_.size()); }
  std::string at(int index) const {
    return as_document_string(names_[static_cast<std::size_t>(index)]);
  }
  std::span<const std::string> all() const { return names_; }

 private:
  std::span<const std::string> names_;
};

int first_of(const DocumentField& stage, const Names& names) {
  const bool has_index = stage.has("first_index");
  const bool has_name = stage.has("first_node");
  if (!has_index && !has_name) stage.fail("needs first_node or first_index");
  if (!has_index) {
    const DocumentField name = stage.at("first_node");
    try {
      return find_element(names.all(), name.text());
    } catch (const Error& error) {
      name.fail(fmt::format("does not fit the model: {}", error.message()));
    }
  }
  const auto index = static_cast<int>(stage.at("first_index").integer(0, names.count() - 1));
  if (has_name && stage.at("first_node").text() != names.at(index)) {
    stage.at("first_node")
        .fail(fmt::format(
            "is \"{}\", but node {} of the model is \"{}\"; correct one of the two or "
            "remove it",
            printable(stage.at("first_node").text()), index, printable(names.at(index))));
  }
  return index;
}

// A hand-written file may also say where a stage ends; then it must be true.
void check_last(const DocumentField& stage, int last, const Names& names) {
  if (stage.has("last_index")) {
    const auto given = static_cast<int>(stage.at("last_index").integer(0, names.count() - 1));
    if (given != last) {
      stage.at("last_index")
          .fail(fmt::format("is {}, but the next stage begins after node {}; every node belongs to "
                            "one stage",
                            given, last));
    }
  }
  if (stage.has("last_node") && stage.at("last_node").text() != names.at(last)) {
    stage.at("last_node")
        .fail(fmt::format("is \"{}\", but the stage ends with \"{}\"",
                          printable(stage.at("last_node").text()), printable(names.at(last))));
  }
}

// The devices of a stage, which may be missing: then one, after those of the stage before.
DeviceRange devices_of(const DocumentField& stage, int free) {
  DeviceRange out{free, 1};
  if (stage.has("replicas")) {
    out.count = static_cast<int>(stage.at("replicas").integer(1, kMostParts));
  }
  if (stage.has("first_device")) {
    const DocumentField first = stage.at("first_device");
    out.first = static_cast<int>(first.integer(0, kMostParts));
    if (out.first < free) {
      first.fail(fmt::format("is {}, but the stages before take the devices up to {}", out.first,
                             free - 1));
    }
    out.first = free;  // programs have no device without a stage, as where one was removed
  }
  return out;
}

// The informational fields of a plan: predictions are recomputed, but an invalid one shows that the
// file is damaged.
void check_information(const DocumentField& field, std::initializer_list<std::string_view> texts,
                       std::initializer_list<std::string_view> seconds,
                       std::initializer_list<std::string_view> bytes) {
  for (const std::string_view name : texts)
    if (field.has(name)) field.at(name).text();
  for (const std::string_view name : seconds)
    if (field.has(name)) field.at(name).real(0, DocumentField::kMostSeconds);
  for (const std::string_view name : bytes)
    if (field.has(name)) field.at(name).integer(0, DocumentField::kMostBytes);
}

void check_stage(const DocumentField& stage) {
  stage.allow_only({"index",        "first_node",       "first_index",        "last_node",
                    "last_index",   "first_device",     "replicas",           "recompute",
                    "nodes",        "seconds",          "forward_seconds",    "backward_seconds",
                    "step_seconds", "transfer_seconds", "all_reduce_seconds", "parameter_bytes",
                    "saved_bytes",  "in_flight",        "weight_versions",    "memory_bytes",
                    "memory",       "forward_bytes_in", "backward_bytes_out", "comment"});
  check_information(
      stage, {"comment"},
      {"seconds", "forward_seconds", "backward_seconds", "step_seconds", "transfer_seconds",
       "all_reduce_seconds"},
      {"parameter_bytes", "saved_bytes", "memory_bytes", "forward_bytes_in", "backward_bytes_out"});
  for (const char* name : {"index", "nodes", "in_flight", "weight_versions"})
    if (stage.has(name)) stage.at(name).integer(0, kMostParts);
  if (!stage.has("memory")) return;
  const std::initializer_list<std::string_view> parts = {"weights", "gradients", "optimizer",
                                                         "activations", "transient"};
  stage.at("memory").allow_only(parts);
  check_information(stage.at("memory"), {}, {}, parts);
}

/// Refuses unknown fields and invalid values anywhere in the file.
void check_fields(const DocumentField& root) {
  root.allow_only({"schema", "model", "chain_nodes", "schedule", "virtual_stages", "memory_units",
                   "warm_up_tolerance", "micro_batches", "devices", "bottleneck_seconds",
                   "mini_batch_seconds", "lower_bound_seconds", "lower_bound_reason", "gap",
                   "stages", "cut_reasons", "notes", "order", "comment"});
  check_information(root, {"model", "lower_bound_reason", "comment"},
                    {"bottleneck_seconds", "mini_batch_seconds", "lower_bound_seconds"}, {});
  constexpr double kRounding = 1e-6, kMostGap = 1e18;
  if (root.has("gap")) root.at("gap").real(-kRounding, kMostGap);
  if (root.has("devices")) root.at("devices").integer(1, kMostParts);
  for (const char* name : {"cut_reasons", "notes"}) {
    for (std::size_t i = 0; root.has(name) && i < root.at(name).size(); ++i)
      root.at(name).item(i).text();
  }
  const DocumentField stages = root.at("stages");
  for (std::size_t i = 0; i < stages.size(); ++i) check_stage(stages.item(i));
}

/// What a plan says about the run.
void take_run(const DocumentField& root, PlanChoice& out) {
  if (root.has("order")) out.order = root.at("order").text();
  if (root.has("schedule")) out.schedule = root.at("schedule").text();
  if (root.has("virtual_stages")) {
    out.virtual_stages = static_cast<int>(root.at("virtual_stages").integer(1, kMostParts));
  }
  if (root.has("memory_units")) {
    out.memory_units = static_cast<int>(root.at("memory_units").integer(1, kMostParts));
  }
  if (root.has("warm_up_tolerance")) {
    out.warm_up_tolerance = root.at("warm_up_tolerance").real(0, 1);
  }
  if (root.has("micro_batches")) {
    out.micro_batches = static_cast<int>(root.at("micro_batches").integer(1, kMostParts));
  }
}

PlanChoice choice_of(const DocumentField& root, const Names& names) {
  check_fields(root);
  if (root.has("chain_nodes")) {
    const std::int64_t count = root.at("chain_nodes").integer(1, std::numeric_limits<int>::max());
    if (count != names.count()) {
      root.at("chain_nodes")
          .fail(fmt::format("is {}, but the model has {} nodes; the plan was made for another "
                            "model, make a new one with \"pipetrain plan\"",
                            count, names.count()));
    }
  }
  const DocumentField stages = root.at("stages");
  if (stages.size() == 0) stages.fail("lists no stage");
  PlanChoice out;
  std::vector<int> firsts;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const DocumentField stage = stages.item(i);
    const int first = first_of(stage, names);
    if (i == 0 && first != 0) {
      stage.fail(fmt::format("begins at node {}, but the first stage begins at node 0 (\"{}\")",
                             first, printable(names.at(0))));
    }
    if (i > 0 && first <= firsts.back()) {
      stage.fail(fmt::format("begins at node {}, not after stage {}, which begins at node {}",
                             first, i - 1, firsts.back()));
    }
    firsts.push_back(first);
    Recompute mode = Recompute::kAuto;
    if (stage.has("recompute")) {
      mode = stage.at("recompute").flag() ? Recompute::kAll : Recompute::kNone;
    }
    out.recompute.push_back(mode);
    const int free = i == 0 ? 0 : out.devices.back().first + out.devices.back().count;
    out.devices.push_back(devices_of(stage, free));
  }
  for (std::size_t i = 0; i < firsts.size(); ++i) {
    const int end = i + 1 < firsts.size() ? firsts[i + 1] : names.count();
    check_last(stages.item(i), end - 1, names);
  }
  out.cuts.assign(firsts.begin() + 1, firsts.end());
  take_run(root, out);
  return out;
}

}  // namespace

bool PlanChoice::replicated() const {
  return std::any_of(devices.begin(), devices.end(),
                     [](const DeviceRange& range) { return range.count > 1; });
}

std::string plan_text(const Plan& plan, const ChainCosts& chain, const PlanRequest& request,
                      std::string_view model, std::span<const int> order) {
  const bool shared = request.shared_devices > 0;
  Json stages = Json::array();
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    stages.push_back(stage_json(plan.stages[i], i, chain, !shared));
  }
  Json body = {
      {"model", model},
      {"chain_nodes", chain.elements.size()},
      {"schedule", request.schedule.name},
      {"micro_batches", request.micro_batches},
      {"devices", shared ? request.shared_devices : plan.devices()},
      {"bottleneck_seconds", plan.bottleneck_seconds},
      {"mini_batch_seconds", plan.mini_batch_seconds},
      {"lower_bound_seconds", plan.lower_bound_seconds},
      {"lower_bound_reason", plan.lower_bound_reason},
      {"gap", plan.gap()},
      {"stages", stages},
      {"cut_reasons", plan.cut_reasons},
      {"notes", plan.notes},
  };
  if (request.stages_per_device > 1) body["virtual_stages"] = request.stages_per_device;
  if (request.memory_units > 0) body["memory_units"] = request.memory_units;
  if (request.warm_up_tolerance) body["warm_up_tolerance"] = *request.warm_up_tolerance;
  if (!order.empty()) body["order"] = order_text(order);
  return document_text(kPlanSchema, body);
}

void write_plan(const std::filesystem::path& path, const Plan& plan, const ChainCosts& chain,
                const PlanRequest& request, std::string_view model, std::span<const int> order) {
  write_file(path, plan_text(plan, chain, request, model, order));
}

PlanChoice read_plan(const std::filesystem::path& path, std::span<const std::string> names) {
  return choice_of(Document::read(path, kPlanSchema).root(), Names(names));
}

PlanChoice read_plan_outline(const std::filesystem::path& path) {
  const Document document = Document::read(path, kPlanSchema);
  const DocumentField root = document.root();
  check_fields(root);
  PlanChoice out;
  const DocumentField stages = root.at("stages");
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const int free = i == 0 ? 0 : out.devices.back().first + out.devices.back().count;
    out.devices.push_back(devices_of(stages.item(i), free));
  }
  take_run(root, out);
  return out;
}

PlanChoice parse_plan(std::string_view text, const std::string& file,
                      std::span<const std::string> names) {
  return choice_of(Document::parse(text, file, kPlanSchema).root(), Names(names));
}

Plan plan_of_choice(const ChainCosts& chain, PlanRequest request, const PlanChoice& choice) {
  if (choice.micro_batches) request.micro_batches = *choice.micro_batches;
  return plan_with_cuts(chain, request, choice.cuts, choice.recompute, choice.devices);
}

int find_element(std::span<const std::string> names, std::string_view name) {
  std::vector<int> runs;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool here = names[i] == name || as_document_string(names[i]) == name;
    if (here && (i == 0 || names[i - 1] != names[i])) runs.push_back(static_cast<int>(i));
  }
  PT_CHECK(!runs.empty(), kUsage,
           "no node that could begin a stage is called \"{}\" (one that is computed together with "
           "the node before it cannot); \"pipetrain inspect MODEL {}\" lists them",
           printable(name), setting("chain"));
  PT_CHECK(runs.size() == 1, kUsage,
           "{} nodes are called \"{}\", the first two at positions {} and {}; give the position "
           "instead",
           runs.size(), printable(name), runs[0], runs[1]);
  return runs[0];
}

int find_cut(std::span<const std::string> names, std::string_view word) {
  int position = 0;
  const char* const end = word.data() + word.size();
  const std::from_chars_result read = std::from_chars(word.data(), end, position);
  const bool is_position = read.ec == std::errc() && read.ptr == end;
  const bool is_name = std::ranges::find(names, word) != names.end();
  return is_position && !is_name ? position : find_element(names, word);
}

std::vector<std::string> element_names(const ChainCosts& chain) {
  std::vector<std::string> out;
  for (const ChainCost& element : chain.elements) out.push_back(element.name);
  return out;
}

std::string_view name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kAll:
      return "all";
    case Recompute::kAuto:
      break;
  }
  return "auto";
}

}  // namespace pipetrain
