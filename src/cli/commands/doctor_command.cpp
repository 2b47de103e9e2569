// pipetrain doctor: shows the machine's CPU, memory, GPUs and libraries.
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/cache_directory.h"
#include "base/cores.h"
#include "base/document.h"
#include "base/error.h"
#include "base/units.h"
#include "base/vectors.h"
#include "cli/commands/commands.h"
#include "cli/commands/run_together.h"
#include "cli/output/doctor_measure.h"
#include "cli/output/output.h"
#include "device/nvidia_libraries.h"
#include "device/plugin.h"
#include "processes/link_measure.h"
#include "processes/process_group.h"
#include "profile/machine.h"

namespace pipetrain {
namespace {

using Json = nlohmann::ordered_json;

/// The GPUs and libraries of this machine.
struct Gpus {
  std::vector<std::string> names;
  std::string absent;                   // why there is none
  std::string exchange;                 // NCCL and its version, or why not; empty without a GPU
  std::vector<FoundLibrary> libraries;  // empty without a plugin
};

Gpus find_gpus() {
  const auto reason = [](const Error& error) {
    const std::string text = error.message();
    return text.substr(0, text.find('\n'));
  };
  Gpus gpus;
  try {
    gpus.names = cuda_plugin().devices();
  } catch (const Error& error) {
    gpus.absent = reason(error);
    return gpus;
  }
  try {
    gpus.exchange = cuda_plugin().collectives().name();
  } catch (const Error& error) {
    gpus.exchange = "none: " + reason(error);
  }
  return gpus;
}

std::string gpus_text(const Gpus& gpus) {
  if (gpus.names.empty()) return "none: " + gpus.absent;
  std::string text;
  for (std::size_t g = 0; g < gpus.names.size(); ++g)
    text += fmt::format("{}cuda:{} {}", g == 0 ? "" : ", ", g, printable(gpus.names[g]));
  return text + "\nnccl     " + gpus.exchange;
}

std::string libraries_text(const std::vector<FoundLibrary>& libraries) {
  std::string text, missing;
  const auto line = [&](const std::string& content) {
    text += fmt::format("{:<9}{}\n", text.empty() ? "cuda" : "", content);
  };
  for (const FoundLibrary& library : libraries) {
    if (library.handle) {
      line(fmt::format("{} {}: {}, from {}", library.name, library.version, printable(library.path),
                       library.origin));
    } else if (library.damaged) {
      line(fmt::format("{}: none: {}", library.name, library.problem));
    } else {
      missing += (missing.empty() ? "" : ", ") + library.file;
    }
  }
  if (!missing.empty())
    line("not found: " + missing + " (set PIPETRAIN_CUDA_LIBRARIES to their folder)");
  return text;
}

Json libraries_json(const std::vector<FoundLibrary>& libraries) {
  Json json = Json::array();
  for (const FoundLibrary& library : libraries)
    json.push_back({{"name", library.name},
                    {"file", library.file},
                    {"version", library.version},
                    {"path", library.path},
                    {"from", library.origin},
                    {"absent", library.problem}});
  return json;
}

/// Of the processes that a launcher has started: how many, where, and the links between them.
std::string processes_text(const std::vector<std::vector<int>>& hosts, const ProcessLinks& links,
                           ProcessGroup& group) {
  std::string text =
      fmt::format("mpi      {}: {} processes on {} host{}\n", group.processes().name(),
                  group.size(), hosts.size(), hosts.size() == 1 ? "" : "s");
  const auto line = [&](bool any, const char* where, const ProcessLink& link) {
    if (any)
      text += fmt::format("links    {}: {}/s one way, {}/s both ways, {} per message\n", where,
                          bytes_text(static_cast<std::size_t>(link.bytes_per_second)),
                          bytes_text(static_cast<std::size_t>(link.both_bytes_per_second)),
                          seconds_text(link.latency_seconds));
  };
  line(links.on_hosts, "between processes of a host", links.on_host);
  line(links.between_hosts, "between hosts", links.between);
  if (const std::optional<bool> reads = group.hosts_read())
    text += "         replicas in processes of a host " +
            (*reads ? fmt::format(
                          "read gradients from each other's memory at {}/s\n",
                          bytes_text(static_cast<std::size_t>(links.on_host.read_bytes_per_second)))
                    : "send each other gradients as messages\n");
  return text;
}

Json processes_json(const std::vector<std::vector<int>>& hosts, const ProcessLinks& links,
                    ProcessGroup& group) {
  const auto link = [](bool any, const ProcessLink& one) {
    return !any ? Json()
                : Json({{"latency_seconds", one.latency_seconds},
                        {"bytes_per_second", one.bytes_per_second},
                        {"both_bytes_per_second", one.both_bytes_per_second},
                        {"read_bytes_per_second", one.read_bytes_per_second}});
  };
  return {{"library", group.processes().name()},
          {"processes", group.size()},
          {"hosts", hosts.size()},
          {"links_on_host", link(links.on_hosts, links.on_host)},
          {"links_between_hosts", link(links.between_hosts, links.between)},
          {"reads_memory", group.hosts_read() ? Json(*group.hosts_read()) : Json()}};
}

int doctor_in(const Options& options, ProcessGroup* processes) {
  const bool leads = !processes || processes->leads();
  std::vector<std::vector<int>> hosts;
  ProcessLinks links;
  if (processes) {
    hosts = processes_of_hosts(*processes);
    links = measure_process_links(*processes, machine_id());
  }
  if (!leads) return 0;
  resolve_verbosity(options);
  if (options.measure) {
    PT_CHECK(options.output != "-", kUsage,
             "--output - cannot write to standard output, where the measurements are printed; give "
             "a file");
    check_processor();
    return measure_and_report(options.json, options.output);
  }
  const int cores = available_cores();
  const std::size_t memory = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                             static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::string vectors = vector_instructions(), missing = missing_instructions();
  const std::string cache = default_cache_directory().string();
  Gpus gpus = find_gpus();
  // Also if the plugin is unusable; after loading it, so that these are the libraries it uses.
  if (has_cuda_plugin()) gpus.libraries = nvidia_libraries();
  if (options.json) {
    Json json = {{"version", PIPETRAIN_VERSION},
                 {"build", std::string(build_id())},
                 {"cores", cores},
                 {"memory_bytes", memory},
                 {"avx2", vectors != "none"},
                 {"avx512", vectors.starts_with("AVX-512")},
                 {"avx512_bfloat16", has_avx512_bfloat16()},
                 {"amx", has_amx()},
                 {"gpus", gpus.names.size()},
                 {"gpu_names", gpus.names},
                 {"gpus_absent", gpus.absent},
                 {"nccl", gpus.exchange},
                 {"cuda_libraries", libraries_json(gpus.libraries)},
                 {"cache", cache}};
    if (processes) json["mpi"] = processes_json(hosts, links, *processes);
    print(document_text("pipetrain.doctor/1", json));
    return 0;
  }
  std::string text = fmt::format(
      "pipetrain {}\ncores    {}{}\nmemory   {}\nvectors  {}\ngpus     {}\n{}cache    {}\n",
      PIPETRAIN_VERSION, cores,
      cores > 1 ? fmt::format(": up to {} stages with one core each", cores) : "",
      bytes_text(memory),
      missing.empty() ? vectors : "too old for this build's CPU kernels, which need " + missing,
      gpus_text(gpus), libraries_text(gpus.libraries), cache.empty() ? "none" : cache);
  if (processes) text += processes_text(hosts, links, *processes);
  print(text);
  return 0;
}

}  // namespace

int doctor_command(Options& options) {
  PT_CHECK(options.arguments.empty(), kUsage,
           "unexpected argument \"{}\"; see: pipetrain doctor --help",
           printable(options.arguments.front()));
  return run_together(options.run.pipeline.timeout_seconds,
                      [&](ProcessGroup* processes) { return doctor_in(options, processes); });
}

}  // namespace pipetrain
