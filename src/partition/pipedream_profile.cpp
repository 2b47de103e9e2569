#include "partition/pipedream_profile.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <queue>
#include <unordered_map>

#include "base/error.h"
#include "base/input_file.h"

namespace pipetrain {
namespace {

constexpr std::size_t kMaximumBytes = std::size_t{64} << 20;
constexpr std::string_view kDash = " -- ";

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> out;
  while (true) {
    const std::size_t at = text.find(separator);
    out.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + separator.size());
  }
}

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  PipeDreamProfile read() {
    while (!text_.empty()) {
      const std::size_t end = std::min(text_.find('\n'), text_.size());
      read_line(text_.substr(0, end));
      text_.remove_prefix(std::min(end + 1, text_.size()));
    }
    PT_CHECK(!profile_.nodes.empty(), kUsage,
             "{} describes no node; a PipeDream profile has lines \"node1 -- Linear(…) -- "
             "forward_compute_time=…, …\"",
             file_);
    return std::move(profile_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    PT_FAIL(kUsage, "{} line {}: {}", file_, line_, message);
  }

  void read_line(std::string_view line) {
    ++line_;
    if (trimmed(line).empty()) return;
    if (line.front() == '\t') {
      read_edge(trimmed(line));
    } else {
      read_node(trimmed(line));
    }
  }

  void read_edge(std::string_view line) {
    const auto ends = split(line, kDash);
    if (ends.size() != 2) fail("an edge is \"<tab>FROM -- TO\"");
    const PipeDreamEdge edge{find(ends[0]), find(ends[1])};
    if (edge.from == edge.to) fail(fmt::format("\"{}\" leads to itself", printable(ends[0])));
    profile_.edges.push_back(edge);
  }

  int find(std::string_view id) const {
    const auto found = index_.find(std::string(id));
    if (found == index_.end()) {
      fail(fmt::format("no line before this one describes \"{}\"", printable(id)));
    }
    return found->second;
  }

  // ID -- DESCRIPTION -- the four fields[ -- stage_id=K]
  void read_node(std::string_view line) {
    const auto parts = split(line, kDash);
    if (parts.size() != 3 && parts.size() != 4) {
      fail(
          fmt::format("a node is \"ID -- DESCRIPTION -- forward_compute_time=…, …\", with edges "
                      "after a tab; got \"{}\"",
                      printable(line)));
    }
    PipeDreamNode node;
    node.id = parts[0];
    node.description = parts[1];
    const auto fields = split(parts[2], ", ");
    if (fields.size() != 4) {
      fail(
          fmt::format("a node has 4 fields (forward_compute_time, backward_compute_time, "
                      "activation_size, parameter_size), got {}",
                      fields.size()));
    }
    node.forward_milliseconds = number(value(fields[0], "forward_compute_time"));
    node.backward_milliseconds = number(value(fields[1], "backward_compute_time"));
    read_activations(value(fields[2], "activation_size"), node);
    node.parameter_bytes = number(value(fields[3], "parameter_size"));
    if (parts.size() == 4) node.stage = stage(value(parts[3], "stage_id"));
    const auto index = static_cast<int>(profile_.nodes.size());
    if (!index_.emplace(node.id, index).second) {
      fail(fmt::format("a second node called \"{}\"", printable(node.id)));
    }
    profile_.nodes.push_back(std::move(node));
  }

  std::string_view value(std::string_view field, std::string_view name) const {
    if (!field.starts_with(name) || field.size() <= name.size() || field[name.size()] != '=') {
      fail(fmt::format("\"{}\" should be {}=…", printable(field), name));
    }
    return trimmed(field.substr(name.size() + 1));
  }

  // "6291456.0", or "[6291456.0; 131072.0]"
  void read_activations(std::string_view text, PipeDreamNode& node) const {
    const std::size_t point = text.find('.');
    if (point != std::string_view::npos && text.size() - point > 2) {
      node.activation_format = ActivationFormat::kThreeDecimals;
    }
    if (text.starts_with('[')) {
      node.activation_format = ActivationFormat::kList;
      if (!text.ends_with(']')) fail("the list of activation sizes has no \"]\"");
      text = text.substr(1, text.size() - 2);
    }
    for (const std::string_view item : split(text, ";")) {
      node.activation_bytes.push_back(number(trimmed(item)));
    }
  }

  double number(std::string_view text) const {
    double out = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
    // The limit keeps every sum of a file's numbers finite.
    if (code != std::errc() || end != text.data() + text.size() || !(out >= 0 && out <= 1e30)) {
      fail(fmt::format("\"{}\" is not a number from 0 to 1e30", printable(text)));
    }
    return out;
  }

  int stage(std::string_view text) const {
    int out = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (code != std::errc() || end != text.data() + text.size() || out < 0) {
      fail(fmt::format("\"{}\" is not the number of a stage", printable(text)));
    }
    return out;
  }

  std::string_view text_;
  const std::string& file_;
  int line_ = 0;
  PipeDreamProfile profile_;
  std::unordered_map<std::string, int> index_;
};

// Python's "%.3f", unless the number has more digits than that.
std::string three_decimals(double number) {
  std::string out = fmt::format("{:.3f}", number);
  double back = 0;
  std::from_chars(out.data(), out.data() + out.size(), back);
  return back == number ? out : fmt::format("{}", number);
}

// Python's str(): "512.0".
std::string python_float(double number) {
  std::string out = fmt::format("{}", number);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

std::string activations_text(const PipeDreamNode& node) {
  if (node.activation_format == ActivationFormat::kThreeDecimals) {
    return three_decimals(node.output_bytes());
  }
  std::string out;
  for (const double bytes : node.activation_bytes) {
    out += (out.empty() ? "" : "; ") + python_float(bytes);
  }
  return node.activation_format == ActivationFormat::kList ? "[" + out + "]" : out;
}

}  // namespace

double PipeDreamNode::output_bytes() const {
  return std::accumulate(activation_bytes.begin(), activation_bytes.end(), 0.0);
}

PipeDreamProfile read_pipedream_profile(const std::filesystem::path& path) {
  const std::string name = printable(path.string());
  return parse_pipedream_profile(read_file(path, ErrorKind::kUsage, kMaximumBytes), name);
}

PipeDreamProfile parse_pipedream_profile(std::string_view text, const std::string& file) {
  PipeDreamProfile profile = Reader(text, file).read();
  with_context([&] { return fmt::format("reading {}", file); },
               [&] { return topological_order(profile); });
  return profile;
}

std::string pipedream_text(const PipeDreamProfile& profile) {
  std::string out;
  for (const PipeDreamNode& node : profile.nodes) {
    out += fmt::format(
        "{}{} -- {} -- forward_compute_time={}, backward_compute_time={}, activation_size={}, "
        "parameter_size={}",
        out.empty() ? "" : "\n", node.id, node.description,
        three_decimals(node.forward_milliseconds), three_decimals(node.backward_milliseconds),
        activations_text(node), three_decimals(node.parameter_bytes));
    if (node.stage >= 0) out += fmt::format(" -- stage_id={}", node.stage);
  }
  for (const PipeDreamEdge& edge : profile.edges) {
    out += fmt::format("\n\t{} -- {}", profile.nodes[static_cast<std::size_t>(edge.from)].id,
                       profile.nodes[static_cast<std::size_t>(edge.to)].id);
  }
  return out;
}

std::vector<int> topological_order(const PipeDreamProfile& profile) {
  const std::size_t count = profile.nodes.size();
  std::vector<std::vector<int>> next(count);
  std::vector<int> waiting(count, 0);
  for (const PipeDreamEdge& edge : profile.edges) {
    next[static_cast<std::size_t>(edge.from)].push_back(edge.to);
    ++waiting[static_cast<std::size_t>(edge.to)];
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (std::size_t i = 0; i < count; ++i) {
    if (waiting[i] == 0) ready.push(static_cast<int>(i));
  }
  std::vector<int> out;
  while (!ready.empty()) {
    const int node = ready.top();
    ready.pop();
    out.push_back(node);
    for (const int to : next[static_cast<std::size_t>(node)]) {
      if (--waiting[static_cast<std::size_t>(to)] == 0) ready.push(to);
    }
  }
  if (out.size() == count) return out;
  const auto stuck = std::find_if(waiting.begin(), waiting.end(), [](int n) { return n > 0; });
  PT_FAIL(kUsage, "the edges make a cycle, which leads to node \"{}\"",
          printable(profile.nodes[static_cast<std::size_t>(stuck - waiting.begin())].id));
}

}  // namespace pipetrain
