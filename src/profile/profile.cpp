#include "profile/profile.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/atomic_file.h"
#include "base/document.h"
#include "graph/op.h"
#include "passes/batch_weight_gradients.h"
#include "profile/estimate.h"

namespace pipetrain {
namespace {

Json node_json(const Profile& profile, const TrainingGraph& training, std::size_t n) {
  const Graph& graph = training.graph;
  const Node& node = graph.nodes[n];
  std::size_t bytes = 0;
  for (const TensorType& type : graph.output_types(node)) bytes += type.bytes();
  return {{"op", node.op->name},
          {"name", node.name},
          {"part", name_of(node.part)},
          {"seconds", profile.node_seconds[n]},
          {"runs", runs_per_micro_batch(training, node)},
          {"flops", node_flops(graph, node)},
          {"output_bytes", bytes},
          {"workspace_bytes", profile.workspace_bytes[n]}};
}

/// Seconds that can be added up and compared.
double seconds_of(const DocumentField& field) { return field.real(0, DocumentField::kMostSeconds); }

std::int64_t bytes_of(const DocumentField& field) {
  return field.integer(0, DocumentField::kMostBytes);
}

/// What stands there to be read by people, or to tell models apart, which may be missing.
void check_information(const DocumentField& node) {
  constexpr double kMostOperations = 1e30;
  for (const char* name : {"name", "part", "comment"})
    if (node.has(name)) node.at(name).text();
  if (node.has("runs")) node.at("runs").real(0, 1);  // per micro-batch, as the graph says itself
  if (node.has("flops")) node.at("flops").real(0, kMostOperations);
  if (node.has("output_bytes")) bytes_of(node.at("output_bytes"));
}

/// Models of the same nodes may differ in their sizes. What a forward node writes is the same on
/// every device, but for padded rows (passes/pad_rows.h).
void check_output_bytes(const DocumentField& nodes, const Graph& graph) {
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.part != Part::kForward || !nodes.item(n).has("output_bytes")) continue;
    std::size_t least = 0, most = 0;
    for (TensorType type : graph.output_types(node)) {
      type.layout = Layout::kRowMajor;
      least += type.bytes();
      if (type.shape.rank() > 1) type.layout = Layout::kPaddedRows;
      most += type.bytes();
    }
    const DocumentField field = nodes.item(n).at("output_bytes");
    const auto bytes = static_cast<std::size_t>(bytes_of(field));
    if (bytes < least || bytes > most)
      field.fail(fmt::format("is {}, but the model's node {} writes {}; profile again", bytes,
                             printable(node.name), least));
  }
}

/// What threads cost, by the names of a profile's file. Older files have none of them.
std::vector<std::pair<const char*, double*>> costs_of_threads(Profile& profile) {
  return {{"wake_seconds", &profile.wake_seconds},
          {"switch_seconds", &profile.switch_seconds},
          {"notify_seconds", &profile.notify_seconds}};
}

Profile profile_of(const DocumentField& root, const TrainingGraph& training) {
  const Graph& graph = training.graph;
  root.allow_only({"schema", "model", "device", "backend", "threads", "busy_threads", "micro_batch",
                   "total_seconds", "accumulate_seconds_per_byte", "update_seconds_per_byte",
                   "wake_seconds", "switch_seconds", "notify_seconds", "nodes", "comment"});
  for (const char* name : {"model", "comment"})
    if (root.has(name)) root.at(name).text();
  if (root.has("total_seconds")) seconds_of(root.at("total_seconds"));
  Profile out;
  out.device = root.at("device").text();
  out.backend = root.at("backend").text();
  out.threads = static_cast<int>(root.at("threads").integer(1, 1 << 20));
  out.busy_threads = static_cast<int>(root.at("busy_threads").integer(1, 1 << 20));
  out.accumulate_seconds_per_byte = seconds_of(root.at("accumulate_seconds_per_byte"));
  if (root.has("update_seconds_per_byte"))
    out.update_seconds_per_byte = seconds_of(root.at("update_seconds_per_byte"));
  for (const auto& [name, seconds] : costs_of_threads(out))
    if (root.has(name)) *seconds = seconds_of(root.at(name));
  const std::int64_t samples = root.at("micro_batch").integer(1, DocumentField::kMostSteps);
  if (samples != training.micro_batch) {
    root.at("micro_batch")
        .fail(fmt::format("is {}, but micro-batches of {} samples are to be planned; profile again",
                          samples, training.micro_batch));
  }
  const DocumentField nodes = root.at("nodes");
  if (nodes.size() != graph.nodes.size()) {
    nodes.fail(fmt::format("lists {} nodes, but the model has {}; profile again", nodes.size(),
                           graph.nodes.size()));
  }
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const DocumentField node = nodes.item(n);
    node.allow_only({"op", "name", "part", "seconds", "runs", "flops", "output_bytes",
                     "workspace_bytes", "comment"});
    check_information(node);
    if (node.at("op").text() != graph.nodes[n].op->name) {
      node.at("op").fail(fmt::format("is {}, but the model's node is {}; profile again",
                                     printable(node.at("op").text()), graph.nodes[n].op->name));
    }
    out.node_seconds.push_back(with_context(
        [&] { return fmt::format("reading the times of node {}", printable(graph.nodes[n].name)); },
        [&] { return seconds_of(node.at("seconds")); }));
    out.workspace_bytes.push_back(static_cast<std::size_t>(bytes_of(node.at("workspace_bytes"))));
  }
  check_output_bytes(nodes, graph);
  return out;
}

}  // namespace

std::string_view name_of(Part part) {
  switch (part) {
    case Part::kPrepare:
      return "prepare";
    case Part::kForward:
      return "forward";
    case Part::kInputGradient:
      return "input gradient";
    case Part::kWeightGradient:
      return "weight gradient";
    case Part::kBatchGradient:
      return "batch gradient";
    case Part::kFinish:
      break;
  }
  return "finish";
}

double Profile::total_seconds(const TrainingGraph& training) const {
  double sum = 0;
  for (std::size_t n = 0; n < node_seconds.size(); ++n)
    sum += node_seconds[n] * runs_per_micro_batch(training, training.graph.nodes[n]);
  return sum;
}

std::string profile_text(const Profile& profile, const TrainingGraph& training,
                         std::string_view model) {
  Json nodes = Json::array();
  for (std::size_t n = 0; n < training.graph.nodes.size(); ++n) {
    nodes.push_back(node_json(profile, training, n));
  }
  const Json body = {
      {"model", model},
      {"device", profile.device},
      {"backend", profile.backend},
      {"threads", profile.threads},
      {"busy_threads", profile.busy_threads},
      {"micro_batch", training.micro_batch},
      {"total_seconds", profile.total_seconds(training)},
      {"accumulate_seconds_per_byte", profile.accumulate_seconds_per_byte},
      {"update_seconds_per_byte", profile.update_seconds_per_byte},
      {"wake_seconds", profile.wake_seconds},
      {"switch_seconds", profile.switch_seconds},
      {"notify_seconds", profile.notify_seconds},
      {"nodes", std::move(nodes)},
  };
  return document_text(kProfileSchema, body);
}

void write_profile(const std::filesystem::path& path, const Profile& profile,
                   const TrainingGraph& training, std::string_view model) {
  write_file(path, profile_text(profile, training, model));
}

Profile read_profile(const std::filesystem::path& path, const TrainingGraph& training) {
  return profile_of(Document::read(path, kProfileSchema).root(), training);
}

Profile parse_profile(std::string_view text, const std::string& file,
                      const TrainingGraph& training) {
  return profile_of(Document::parse(text, file, kProfileSchema).root(), training);
}

}  // namespace pipetrain
