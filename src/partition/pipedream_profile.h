// PipeDream's profile graphs (Narayanan et al., SOSP 2019): a line for every layer of a network
// with its times and sizes, then a line for every edge, as its profiler writes and its optimizer
// reads them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace pipetrain {

/// How the file writes a node's activations; PipeDream's older profiles have another format.
enum class ActivationFormat : unsigned char {
  kShort,          // 512.0
  kThreeDecimals,  // 512.000
  kList,           // [512.0; 16.0]
};

/// One layer. Times and activations are of a whole mini-batch, whose size is not in the file.
struct PipeDreamNode {
  std::string id;           // "node12"
  std::string description;  // "Conv2d(3, 64, kernel_size=(3, 3))"
  double forward_milliseconds = 0;
  double backward_milliseconds = 0;
  std::vector<double> activation_bytes;  // of each output
  ActivationFormat activation_format = ActivationFormat::kShort;
  double parameter_bytes = 0;
  int stage = -1;  // -1: not planned

  /// Bytes of all outputs together.
  double output_bytes() const;
  /// Forward and backward.
  double seconds() const { return (forward_milliseconds + backward_milliseconds) / 1e3; }
  /// PipeDream does not plan these: data come from outside.
  bool is_input() const { return description.starts_with("Input"); }

  bool operator==(const PipeDreamNode&) const = default;
};

/// Indices into PipeDreamProfile::nodes.
struct PipeDreamEdge {
  int from = 0;
  int to = 0;

  bool operator==(const PipeDreamEdge&) const = default;
};

struct PipeDreamProfile {
  std::vector<PipeDreamNode> nodes;  // in the order of the file, as the edges
  std::vector<PipeDreamEdge> edges;

  bool operator==(const PipeDreamProfile&) const = default;
};

/// Reads a profile of at most 64 MiB. An Error (kUsage) names file and line: a line of neither
/// form, a number that is negative or none, an edge to a node that no earlier line describes, two
/// nodes of one name, a cycle.
PipeDreamProfile read_pipedream_profile(const std::filesystem::path& path);
/// The same from text; `file` is what errors call it.
PipeDreamProfile parse_pipedream_profile(std::string_view text, const std::string& file);

/// The text that PipeDream's tools read, without a final newline as they write it: reading one of
/// their files and writing it gives the same bytes.
std::string pipedream_text(const PipeDreamProfile& profile);

/// The nodes in an order in which every edge leads forward: the earliest in the file first. An
/// Error (kUsage) naming a node of a cycle.
std::vector<int> topological_order(const PipeDreamProfile& profile);

}  // namespace pipetrain
