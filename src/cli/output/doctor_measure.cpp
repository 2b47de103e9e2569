#include "cli/output/doctor_measure.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/cores.h"
#include "base/document.h"
#include "base/error.h"
#include "base/units.h"
#include "cli/output/output.h"
#include "partition/topology_file.h"
#include "pipeline/transport/channel.h"
#include "profile/link_measure.h"
#include "profile/machine.h"

namespace pipetrain {
namespace {

constexpr std::size_t kAllReduceBytes = std::size_t{16} << 20;

// The channel that stages of a run use.
ThreadLink make_link() {
  constexpr int kMostUnits = 1 << 17;
  const auto channel = std::make_shared<Channel>();
  channel->reset(kMostUnits);
  return {[channel](int unit, const std::byte* memory) {
            if (unit > 0) channel->wait_released(unit - 1);
            channel->send(unit, memory);
          },
          [channel](int unit) {
            const std::byte* memory = channel->receive(unit);
            channel->release(unit);
            return memory;
          }};
}

std::string rate_text(double bytes_per_second) {
  return fmt::format("{:.1f} GB/s", bytes_per_second / 1e9);
}

std::string table_of(const MachineMeasurement& measured) {
  const int n = measured.threads;
  std::string out = fmt::format("{:<28}{:>14}{:>20}\n", "", "1 thread",
                                n > 1 ? fmt::format("each of {} at once", n) : std::string());
  const auto row = [&](const char* what, const std::string& alone, const std::string& together) {
    out += fmt::format("{:<28}{:>14}{:>20}\n", what, alone, n > 1 ? together : std::string());
  };
  row("memory copy", rate_text(measured.copy_bytes_per_second_alone),
      rate_text(measured.copy_bytes_per_second));
  row("matmul, float32", fmt::format("{:.1f} Gflop/s", measured.flops_per_second_alone / 1e9),
      fmt::format("{:.1f} Gflop/s", measured.flops_per_second / 1e9));
  if (n == 1) return out + "one core: no link between stages to measure\n";
  const auto line = [&](const char* what, const std::string& value) {
    out += fmt::format("{:<28}{:>14}\n", what, value);
  };
  line("latency between stages", seconds_text(measured.hand_over_seconds));
  line("bandwidth between stages", rate_text(measured.between_threads_bytes_per_second));
  line(fmt::format("all-reduce of {}", bytes_text(measured.all_reduce_bytes)).c_str(),
       seconds_text(measured.all_reduce_seconds));
  line("  per link of a ring", rate_text(measured.all_reduce_ring_bytes_per_second));
  return out;
}

Json json_of(const MachineMeasurement& measured, const std::string& file) {
  return {{"threads", measured.threads},
          {"copy_bytes_per_second_alone", measured.copy_bytes_per_second_alone},
          {"copy_bytes_per_second", measured.copy_bytes_per_second},
          {"flops_per_second_alone", measured.flops_per_second_alone},
          {"flops_per_second", measured.flops_per_second},
          {"hand_over_seconds", measured.hand_over_seconds},
          {"between_threads_bytes_per_second", measured.between_threads_bytes_per_second},
          {"all_reduce_bytes", measured.all_reduce_bytes},
          {"all_reduce_seconds", measured.all_reduce_seconds},
          {"all_reduce_ring_bytes_per_second", measured.all_reduce_ring_bytes_per_second},
          {"memory_bytes", measured.memory_bytes},
          {"topology", file}};
}

std::filesystem::path write_result(const MachineMeasurement& measured, const std::string& output) {
  const std::filesystem::path path =
      output.empty() ? measured_topology_path() : std::filesystem::path(output);
  if (path.empty()) return path;
  std::error_code code;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), code);
  write_topology(path, topology_of(measured),
                 fmt::format("pipetrain doctor --measure, {}", processor_name()));
  return path;
}

}  // namespace

MachineMeasurement measure_machine() {
  MachineMeasurement out;
  out.threads = available_cores();
  out.copy_bytes_per_second_alone = measure_memory_copy(1);
  out.flops_per_second_alone = measure_matrix_product(1);
  out.copy_bytes_per_second = out.copy_bytes_per_second_alone;
  out.flops_per_second = out.flops_per_second_alone;
  out.memory_bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                     static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (out.threads == 1) return out;
  out.copy_bytes_per_second = measure_memory_copy(out.threads);
  out.flops_per_second = measure_matrix_product(out.threads);
  out.hand_over_seconds = measure_hand_over(make_link);
  out.between_threads_bytes_per_second = measure_copy_between_threads(make_link);
  out.all_reduce_bytes = kAllReduceBytes;
  out.all_reduce_seconds = measure_all_reduce(out.threads, out.all_reduce_bytes);
  out.all_reduce_ring_bytes_per_second =
      ring_bytes_per_second(out.threads, out.all_reduce_bytes, out.all_reduce_seconds);
  return out;
}

Topology topology_of(const MachineMeasurement& measurement) {
  Topology out;
  out.name = "this machine";
  TopologyLevel level{"shared memory", measurement.threads, measurement.copy_bytes_per_second,
                      measurement.hand_over_seconds};
  if (measurement.threads > 1) {
    level.bytes_per_second = measurement.between_threads_bytes_per_second;
  }
  out.levels.push_back(level);
  out.memory_bytes = measurement.memory_bytes / static_cast<std::size_t>(measurement.threads);
  out.flops_per_second = measurement.flops_per_second;
  out.memory_bytes_per_second = measurement.copy_bytes_per_second;
  return out;
}

int measure_and_report(bool json, const std::string& output) {
  const MachineMeasurement measured = measure_machine();
  const std::string file = write_result(measured, output).string();
  std::string text;
  if (json) {
    text = document_text("pipetrain.measurement/1", json_of(measured, file));
  } else {
    text =
        table_of(measured) +
        (file.empty() ? "no folder for the topology file: give one with -o\n"
                      : fmt::format("wrote {}{}\n", file,
                                    output.empty() ? ", which the planner uses from now on" : ""));
  }
  print(text);
  return 0;
}

}  // namespace pipetrain
