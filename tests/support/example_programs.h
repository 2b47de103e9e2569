// Programs for the tests: named schedules in all variants, and hand-made ones of schedules to come.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "pipeline/program/annotate.h"
#include "pipeline/program/program.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/warm_up.h"

namespace pipetrain {

inline ScheduleOptions options_for(const std::string& name, int stages, int micro_batches) {
  ScheduleOptions options;
  options.name = name;
  options.stages = stages;
  options.micro_batches = micro_batches;
  return options;
}

inline Program lowered(const ScheduleOptions& options) {
  return lower(generate(options), chain_edges(options.stages, 1));
}

/// `F0 B0 …` of one device's list, without transfers and updates, for chains where stage is device.
inline std::string compute_text(const Program& program, std::size_t device) {
  std::string text;
  for (const Instruction& instruction : program.device[device]) {
    if (!is_compute(instruction.kind)) continue;
    const std::string full = to_text(program, instruction);
    text += (text.empty() ? "" : " ") + full.substr(full.find_first_not_of("0123456789"));
  }
  return text;
}

/// The whole list of one device.
inline std::string full_text(const Program& program, std::size_t device) {
  std::string text;
  for (const Instruction& instruction : program.device[device]) {
    text += (text.empty() ? "" : " ") + to_text(program, instruction);
  }
  return text;
}

/// Chain edges with some taken away and some skips put in.
inline std::vector<Edge> random_edges(int stages, std::mt19937& random) {
  std::vector<Edge> edges;
  for (int s = 0; s < stages; ++s) {
    for (int t = s + 1; t < stages; ++t) {
      const bool chain = t == s + 1;
      if (random() % 8 >= (chain ? 7U : 3U)) continue;
      const auto bytes = static_cast<std::int64_t>(random() % 5);
      edges.push_back({s, t, bytes, false});
      if (random() % 8 != 0) edges.push_back({t, s, bytes, true});
    }
  }
  std::shuffle(edges.begin(), edges.end(), random);
  return edges;
}

/// Most stages and micro-batches of a device that hold activations at once, in list order.
inline int device_peak(const Program& program, std::size_t device) {
  int live = 0;
  int peak = 0;
  for (const Instruction& instruction : program.device[device]) {
    if (instruction.kind == Kind::kForward) peak = std::max(peak, ++live);
    if (adds_gradient(instruction.kind)) --live;
  }
  return peak;
}

/// A warm-up that never rises.
inline std::vector<int> random_warm_up(int stages, std::mt19937& random) {
  std::vector<int> warm;
  for (int s = 0; s < stages; ++s) warm.push_back(static_cast<int>(random() % (2U * stages)));
  std::sort(warm.rbegin(), warm.rend());
  return warm;
}

/// A synchronous compute-only program from words such as `F0 I0 W0` or, with stages, `F0.2`
/// (stage.micro-batch).
inline Program program_of_words(const std::vector<std::string>& lists, int stages,
                                int micro_batches, const std::vector<int>& device_of_stage) {
  Program program;
  program.schedule = "by hand";
  program.rule = UpdateRule::kSync;
  program.stages = stages;
  program.micro_batches = micro_batches;
  program.devices = static_cast<int>(lists.size());
  for (const int device : device_of_stage) program.placement.push_back({device});
  program.recompute.assign(static_cast<std::size_t>(stages), false);
  program.edges = chain_edges(stages);
  for (std::size_t d = 0; d < lists.size(); ++d) {
    auto& list = program.device.emplace_back();
    std::istringstream words(lists[d]);
    for (std::string word; words >> word;) {
      const char letter = word[0];
      const Kind kind = letter == 'F'   ? Kind::kForward
                        : letter == 'B' ? Kind::kBackward
                        : letter == 'I' ? Kind::kBackwardInput
                                        : Kind::kBackwardWeight;
      const std::size_t dot = word.find('.');
      const int stage = dot == std::string::npos ? static_cast<int>(d) : std::stoi(word.substr(1));
      const int micro_batch =
          std::stoi(dot == std::string::npos ? word.substr(1) : word.substr(dot + 1));
      list.push_back({kind, stage, micro_batch});
    }
  }
  for (int s = 0; s < stages; ++s) {
    program.device[static_cast<std::size_t>(device_of_stage[static_cast<std::size_t>(s)])]
        .push_back({Kind::kUpdate, s});
  }
  annotate(program);
  return program;
}

/// Zero-bubble H1 for 3 stages and 4 micro-batches: the backward in two parts.
inline Program zero_bubble_h1() {
  return program_of_words(
      {"F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3", "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
       "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"},
      3, 4, {0, 1, 2});
}

/// Interleaved 1F1B (Narayanan et al., 2021): `chunks` stages per device, micro-batches a multiple
/// of devices.
inline Program interleaved(int devices, int micro_batches, int chunks) {
  const int total = micro_batches * chunks;
  std::vector<std::string> lists;
  const auto word = [&](char letter, int device, int k) {
    const int group = k / (devices * chunks);
    const int rest = k % (devices * chunks);
    const int chunk = letter == 'F' ? rest / devices : chunks - 1 - rest / devices;
    return std::string(1, letter) + std::to_string(chunk * devices + device) + "." +
           std::to_string(group * devices + rest % devices) + " ";
  };
  std::vector<int> placement(static_cast<std::size_t>(devices * chunks));
  for (int s = 0; s < devices * chunks; ++s) placement[static_cast<std::size_t>(s)] = s % devices;
  for (int r = 0; r < devices; ++r) {
    const int warm = std::min(total, 2 * (devices - 1 - r) + (chunks - 1) * devices);
    std::string list;
    for (int k = 0; k < warm; ++k) list += word('F', r, k);
    for (int k = 0; k < total - warm; ++k) list += word('F', r, warm + k) + word('B', r, k);
    for (int k = total - warm; k < total; ++k) list += word('B', r, k);
    lists.push_back(list);
  }
  return program_of_words(lists, devices * chunks, micro_batches, placement);
}

}  // namespace pipetrain
