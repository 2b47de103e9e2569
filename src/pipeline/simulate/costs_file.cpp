#include "pipeline/simulate/costs_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/document.h"
#include "base/error.h"

namespace pipetrain {
namespace {

constexpr double kMostScale = 1e6;
constexpr double kLeastPerSecond = 1e-3;

double seconds(const DocumentField& field, std::string_view name, double otherwise) {
  return field.has(name) ? field.at(name).real(0, DocumentField::kMostSeconds) : otherwise;
}

StageSeconds stage_of(const DocumentField& field) {
  field.allow_only({"forward", "backward", "backward_input", "backward_weight", "recompute",
                    "update", "reduce"});
  StageSeconds stage;
  stage.forward = field.at("forward").real(0, DocumentField::kMostSeconds);
  const bool parts = field.has("backward_input") || field.has("backward_weight");
  if (!parts && !field.has("backward")) {
    field.fail("needs backward, or backward_input and backward_weight");
  }
  const double whole = seconds(field, "backward", 0);
  stage.backward_input =
      parts ? field.at("backward_input").real(0, DocumentField::kMostSeconds) : whole / 2;
  stage.backward_weight =
      parts ? field.at("backward_weight").real(0, DocumentField::kMostSeconds) : whole / 2;
  stage.backward = field.has("backward") ? whole : stage.backward_input + stage.backward_weight;
  stage.recompute = seconds(field, "recompute", stage.forward);
  stage.update = seconds(field, "update", 0);
  stage.reduce = seconds(field, "reduce", 0);
  return stage;
}

void read_link(const DocumentField& field, LinkCost& link) {
  link.latency_seconds = seconds(field, "latency", link.latency_seconds);
  if (!field.has("bytes_per_second")) return;
  link.bytes_per_second = field.at("bytes_per_second").real(0, DocumentField::kMostPerSecond);
  if (link.bytes_per_second < kLeastPerSecond)
    field.at("bytes_per_second").fail(fmt::format("must be at least {}", kLeastPerSecond));
}

void read_edge(const DocumentField& field, Program& program, Costs& costs) {
  field.allow_only({"from", "to", "bytes", "latency", "bytes_per_second"});
  const auto from = static_cast<int>(field.at("from").integer(0, program.stages - 1));
  const auto to = static_cast<int>(field.at("to").integer(0, program.stages - 1));
  for (std::size_t e = 0; e < program.edges.size(); ++e) {
    Edge& edge = program.edges[e];
    if (edge.from_stage != from || edge.to_stage != to) continue;
    if (field.has("bytes"))
      edge.bytes_per_micro_batch = field.at("bytes").integer(0, DocumentField::kMostBytes);
    return read_link(field, costs.edge_link[e]);
  }
  field.fail(fmt::format("is an edge from stage {} to stage {}, which the schedule '{}' has not",
                         from, to, printable(program.schedule)));
}

std::vector<double> scales(const DocumentField& field, int count, const char* what) {
  if (field.size() != static_cast<std::size_t>(count)) {
    field.fail(
        fmt::format("has {} numbers, but the schedule has {} {}", field.size(), count, what));
  }
  std::vector<double> result;
  for (std::size_t n = 0; n < field.size(); ++n)
    result.push_back(field.item(n).real(0, kMostScale));
  return result;
}

Costs costs_of(const Document& document, Program& program) {
  const DocumentField root = document.root();
  root.allow_only(
      {"schema", "stages", "link", "edges", "units", "devices", "gradient_sync", "transfers"});
  Costs costs;
  const DocumentField stages = root.at("stages");
  const auto count = static_cast<std::size_t>(program.stages);
  if (stages.size() != count && stages.size() != 1) {
    stages.fail(fmt::format("has {} entries, but the schedule '{}' has {} stages", stages.size(),
                            printable(program.schedule), program.stages));
  }
  for (std::size_t s = 0; s < stages.size(); ++s) {
    costs.stage.push_back(stage_of(stages.item(s)));
  }
  costs.stage.resize(count, costs.stage.front());
  if (root.has("link")) {
    root.at("link").allow_only({"latency", "bytes_per_second"});
    read_link(root.at("link"), costs.link);
  }
  if (root.has("edges")) {
    costs.edge_link.assign(program.edges.size(), costs.link);
    const DocumentField edges = root.at("edges");
    for (std::size_t n = 0; n < edges.size(); ++n) {
      read_edge(edges.item(n), program, costs);
    }
  }
  if (root.has("units"))
    costs.micro_batch_scale = scales(root.at("units"), program.micro_batches, "units");
  if (root.has("devices")) {
    costs.device_scale = scales(root.at("devices"), program.devices, "devices");
  }
  costs.gradient_sync_seconds = seconds(root, "gradient_sync", 0);
  if (!root.has("transfers")) return costs;
  const std::string transfers = root.at("transfers").text();
  if (transfers == "rendezvous") {
    costs.transfers = TransferMode::kRendezvous;
  } else if (transfers != "buffered") {
    root.at("transfers").fail("is buffered or rendezvous");
  }
  return costs;
}

}  // namespace

Costs read_costs(const std::filesystem::path& path, Program& program) {
  return costs_of(Document::read(path, kCostsSchema), program);
}

Costs parse_costs(std::string_view text, const std::string& file, Program& program) {
  return costs_of(Document::parse(text, file, kCostsSchema), program);
}

}  // namespace pipetrain
