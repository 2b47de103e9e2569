// Documents that people write or edit, schedules, and what checkpoints consist of: what can be read
// without operators and options (program_inputs.cpp).
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/document.h"
#include "base/error.h"
#include "fuzz/inputs.h"
#include "fuzz/refusing.h"
#include "partition/order_text.h"
#include "partition/pipedream_profile.h"
#include "partition/plan_file.h"
#include "partition/topology_file.h"
#include "pipeline/program/check.h"
#include "pipeline/program/compute_csv.h"
#include "pipeline/program/text.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/simulate/costs_file.h"
#include "pipeline/simulate/simulate.h"
#include "support/temporary_directory.h"
#include "train/manifest.h"
#include "train/safetensors.h"

namespace pipetrain::fuzz {
namespace {

const std::vector<std::string> kNodes = {"conv1", "relu1", "conv2", "relu2", "pool", "head"};

std::vector<std::string> plans() {
  return {
      R"({"schema": "pipetrain.plan/1", "stages": [
       {"first_node": "conv1", "first_index": 0, "devices": [0], "recompute": "none"},
       {"first_node": "conv2", "first_index": 2, "devices": [1, 2]},
       {"first_node": "head", "first_index": 5, "devices": [3]}],
       "schedule": "1f1b", "micro_batches": 8, "order": "0-5"})",
      R"({"schema": "pipetrain.plan/1", "stages": [{"first_index": 0}, {"first_index": 3}]})",
      R"({"schema": "pipetrain.plan/1", "stages": [{"first_node": "conv1"}, {"first_node": "pool"}],
       "schedule": "gpipe"})"};
}

void read_a_plan(std::string_view text) {
  refusing(ErrorKind::kUsage, [&] {
    const PlanChoice choice = parse_plan(text, "plan.json", kNodes);
    int before = 0;
    for (const int cut : choice.cuts) {
      expect(cut > before && cut < static_cast<int>(kNodes.size()), "a cut outside of the chain");
      before = cut;
    }
    expect(choice.micro_batches.value_or(1) > 0, "no micro-batches");
    if (!choice.order.empty()) parse_order(choice.order, 6);
  });
}

std::vector<std::string> topologies() {
  return {R"({"schema": "pipetrain.topology/1", "name": "two servers", "source": "a page",
    "levels": [{"name": "NVLink", "count": 8, "gigabytes_per_second": 450, "latency_microseconds": 2, "all_reduce_gigabytes_per_second": 700},
               {"name": "network", "count": 2, "bytes_per_second": 5e10, "latency_seconds": 5e-6}],
    "device": {"memory_gibibytes": 80, "teraflops_per_second": 600, "memory_gigabytes_per_second": 3350}})",
          R"({"schema": "pipetrain.topology/1", "name": "one", "levels":
    [{"name": "PCIe", "count": 2, "gigabytes_per_second": 20, "latency_microseconds": 5}],
    "device": {"speed": [1, 0.5]}})"};
}

void read_a_topology(std::string_view text) {
  refusing(ErrorKind::kUsage, [&] {
    const Topology topology = parse_topology(text, "topology.json");
    const std::string again = topology_text(topology, "");
    expect(topology_text(parse_topology(again, "again"), "") == again,
           "another topology when read again");
  });
}

/// Schedules of all kinds, in their text form.
std::vector<std::string> schedules_as_text() {
  std::vector<std::string> out;
  for (const ScheduleDescription& description : schedules()) {
    ScheduleOptions options;
    options.name = description.name;
    options.stages = description.placement == Placement::kChain ? 3 : 4;
    options.micro_batches = 4;
    const Program program = generate(options);
    out.push_back(to_text(program));
    std::vector<Edge> edges = program.edges;
    out.push_back(to_text(lower(program, edges)));
  }
  return out;
}

void check_program(const Program& program) {
  const std::string again = to_text(program);
  expect(to_text(parse_program(again, "again")) == again, "another program when read again");
  check(program, ErrorKind::kUsage);
}

void read_a_schedule(std::string_view text) {
  refusing(ErrorKind::kUsage, [&] { check_program(parse_program(text, "schedule")); });
}

std::vector<std::string> schedules_as_csv() {
  std::vector<std::string> out;
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-v"}) {
    ScheduleOptions options;
    options.name = name;
    options.stages = 4;
    options.micro_batches = 4;
    out.push_back(to_compute_csv(generate(options)));
  }
  out.push_back("0F0,0F1,,0B0,0B1\n,1F0,(1F1;1B0)OVERLAP_F_B,,1B1\n");
  return out;
}

void read_a_schedule_csv(std::string_view text) {
  refusing(ErrorKind::kUsage, [&] { check_program(parse_compute_csv(text, "schedule.csv")); });
}

std::vector<std::string> costs() {
  return {R"({"schema": "pipetrain.costs/1",
  "stages": [{"forward": 0.010, "backward": 0.020, "update": 0.001},
             {"forward": 0.012, "backward_input": 0.013, "backward_weight": 0.011}],
  "link": {"latency": 5e-6, "bytes_per_second": 25e9},
  "edges": [{"from": 0, "to": 1, "bytes": 4194304, "latency": 2e-5}],
  "units": [1, 1, 0.5], "devices": [1, 1.3], "gradient_sync": 0.002, "transfers": "buffered"})",
          R"({"schema": "pipetrain.costs/1", "stages": [{"forward": 0.010}]})"};
}

void read_costs_of_a_round(std::string_view text) {
  static const Program program = [] {
    ScheduleOptions options;
    options.stages = 2;
    options.micro_batches = 3;
    const Program computed = generate(options);
    return lower(computed, computed.edges);
  }();
  refusing(ErrorKind::kUsage, [&] {
    Program copy = program;
    const Costs costs = parse_costs(text, "costs.json", copy);
    const double makespan = simulate(copy, costs).makespan;
    expect(makespan >= 0 && std::isfinite(makespan), "a round of no finite length");
  });
}

std::vector<std::string> pipedream_profiles() {
  return {
      "node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, "
      "activation_size=0.0, parameter_size=0.000\n"
      "node2 -- Conv2d(3, 64) -- forward_compute_time=5.100, backward_compute_time=9.200, "
      "activation_size=512.0, parameter_size=6912.000\n"
      "node3 -- Linear(9) -- forward_compute_time=1.000, backward_compute_time=2.000, "
      "activation_size=[16.0; 8.0], parameter_size=100.000 -- stage_id=1\n"
      "\tnode1 -- node2\n\tnode2 -- node3"};
}

void read_a_pipedream_profile(std::string_view text) {
  refusing(ErrorKind::kUsage, [&] { parse_pipedream_profile(text, "graph.txt"); });
}

constexpr std::string_view kDigestLine = ",\n  \"sha256\": \"";

Checkpoint some_checkpoint() {
  Checkpoint checkpoint;
  checkpoint.reason = "every";
  checkpoint.step = 40;
  checkpoint.round_start = 40;
  checkpoint.total_steps = 100;
  checkpoint.batches_per_epoch = 10;
  checkpoint.best = BestResult{30, 0.5};
  checkpoint.cuts = {2, 4};
  checkpoint.order = {0, 2, 1, 3, 4};
  checkpoint.run.settings = {{"--lr", "0.1"}};
  checkpoint.run.numbers = {{"lr", "0.1"}, {"schedule", "1f1b"}};
  return checkpoint;
}

std::vector<std::string> manifests() {
  FileRecord file{
      "weights.safetensors", 256, sha256("weights"), {{"w", 128, 64, 7}, {"b", 192, 64, 9}}};
  return {manifest_text(some_checkpoint(), {file})};
}

/// Changes what is hashed, and hashes it again.
void mutate_manifest(std::string& text, Random& random) {
  if (random.below(16) == 0) return mutate_bytes(text, random);
  nlohmann::ordered_json body = nlohmann::ordered_json::parse(text, nullptr, false);
  if (body.is_discarded() || !body.is_object()) return mutate_text(text, random);
  body.erase("sha256");
  text = body.dump();
  mutate_json(text, random);
  text = text.substr(0, text.find_last_not_of("\n }") + 1) + std::string(kDigestLine);
  text += sha256(text) + "\"\n}\n";
}

void read_a_manifest(std::string_view text) {
  refusing(ErrorKind::kData, [&] {
    std::vector<FileRecord> files;
    const Checkpoint checkpoint = parse_manifest(std::string(text), "manifest.json", files);
    const std::string again = manifest_text(checkpoint, files);
    std::vector<FileRecord> same;
    expect(manifest_text(parse_manifest(again, "again", same), same) == again,
           "another manifest when read again");
  });
}

/// A file of tensors behind the record that a manifest has of it: its JSON, a zero byte, the file.
std::vector<std::string> tensor_files() {
  const TemporaryDirectory directory;
  NamedTensors tensors;
  tensors["w"] = HostTensor(TensorType{DType::kFloat32, Shape{2, 3}});
  tensors["b"] = HostTensor(TensorType{DType::kInt64, Shape{2}});
  const FileRecord record = write_safetensors(directory / "t.safetensors", tensors);
  nlohmann::ordered_json places = nlohmann::ordered_json::array();
  for (const TensorPlace& place : record.tensors)
    places.push_back({place.name, place.offset, place.bytes, place.crc32c});
  return {places.dump() + '\0' + get_file(directory / "t.safetensors")};
}

void mutate_tensor_file(std::string& input, Random& random) {
  const std::size_t zero = std::min(input.find('\0'), input.size());
  std::string places = input.substr(0, zero), file = input.substr(std::min(zero + 1, input.size()));
  std::uint64_t length = 0;
  if (file.size() >= 8) std::memcpy(&length, file.data(), 8);
  const bool whole = file.size() >= 8 && length <= file.size() - 8;
  switch (random.below(4)) {
    case 0:
      mutate_json(places, random);
      break;
    case 1:
      mutate_bytes(file, random);
      break;
    default: {
      if (!whole) break;
      // The header, with the length that it now has.
      std::string header = file.substr(8, length);
      mutate_json(header, random);
      const std::uint64_t now = header.size();
      std::string head(8, '\0');
      std::memcpy(head.data(), &now, 8);
      file = head + header + file.substr(8 + length);
    }
  }
  input = places + '\0' + file;
}

void read_a_tensor_file(std::string_view input) {
  static const TemporaryDirectory directory;
  const std::size_t zero = std::min(input.find('\0'), input.size());
  const std::string file(input.substr(std::min(zero + 1, input.size())));
  FileRecord record{"t.safetensors", file.size(), sha256(file), {}};
  // What a manifest lets through.
  const auto places = nlohmann::ordered_json::parse(input.substr(0, zero), nullptr, false);
  if (!places.is_array()) return;
  for (const auto& place : places) {
    if (!place.is_array() || place.size() != 4 || !place[0].is_string()) return;
    for (int i = 1; i < 4; ++i) {
      if (!place[static_cast<std::size_t>(i)].is_number_unsigned()) return;
    }
    const auto offset = place[1].get<std::uint64_t>(), bytes = place[2].get<std::uint64_t>();
    if (offset > DocumentField::kMostBytes || bytes > DocumentField::kMostBytes) return;
    record.tensors.push_back(
        {place[0].get<std::string>(), offset, bytes, place[3].get<std::uint32_t>()});
  }
  put_file(directory / "t.safetensors", file);
  refusing(ErrorKind::kData, [&] { read_safetensors(directory / "t.safetensors", record); });
}

}  // namespace

std::vector<Input> document_inputs() {
  return {{"plan", plans, mutate_json, read_a_plan},
          {"topology", topologies, mutate_json, read_a_topology},
          {"schedule", schedules_as_text, mutate_text, read_a_schedule},
          {"schedule-csv", schedules_as_csv, mutate_text, read_a_schedule_csv},
          {"costs", costs, mutate_json, read_costs_of_a_round},
          {"pipedream-profile", pipedream_profiles, mutate_text, read_a_pipedream_profile},
          {"manifest", manifests, mutate_manifest, read_a_manifest},
          {"safetensors", tensor_files, mutate_tensor_file, read_a_tensor_file}};
}

}  // namespace pipetrain::fuzz
