#include "pipeline/program/compute_csv.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "pipeline/program/complete.h"

namespace pipetrain {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '"'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Consumes the text up to a separator, and the separator.
std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

std::optional<int> take_number(std::string_view& text) {
  constexpr int kMost = 1 << 20;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value > kMost) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<Kind> kind_of(char letter) {
  switch (letter) {
    case 'F':
      return Kind::kForward;
    case 'B':
      return Kind::kBackward;
    case 'I':
      return Kind::kBackwardInput;
    case 'W':
      return Kind::kBackwardWeight;
    default:
      return std::nullopt;
  }
}

std::optional<Instruction> parse_action(std::string_view text) {
  text = trimmed(text);
  const std::optional<int> stage = take_number(text);
  if (!stage || text.empty()) return std::nullopt;
  const std::optional<Kind> kind = kind_of(text.front());
  text.remove_prefix(1);
  const std::optional<int> micro_batch = take_number(text);
  if (!kind || !micro_batch || !text.empty()) return std::nullopt;
  return Instruction{*kind, *stage, *micro_batch};
}

class CsvReader {
 public:
  explicit CsvReader(const std::string& source) : source_(source) {}

  Program read(std::string_view text, const RoundSettings& settings) {
    while (!text.empty()) read_row(take_until(text, '\n'));
    while (!program_.device.empty() && program_.device.back().empty()) program_.device.pop_back();
    finish(settings);
    return std::move(program_);
  }

 private:
  template <class... Values>
  void require(bool condition, fmt::format_string<Values...> format, Values&&... values) const {
    if (condition) return;
    PT_FAIL(kUsage, "{}: {}", printable(source_),
            fmt::format(format, std::forward<Values>(values)...));
  }

  void read_row(std::string_view row) {
    auto& list = program_.device.emplace_back();
    for (std::size_t column = 1; !row.empty(); ++column) {
      std::string_view cell = trimmed(take_until(row, ','));
      const auto where = fmt::format("row {}, column {}", program_.device.size(), column);
      constexpr std::string_view kOverlap = ")OVERLAP_F_B";
      const bool overlap = cell.size() > kOverlap.size() && cell.front() == '(' &&
                           cell.substr(cell.size() - kOverlap.size()) == kOverlap;
      if (overlap) cell = cell.substr(1, cell.size() - kOverlap.size() - 1);
      while (!cell.empty()) {
        const std::string_view part = overlap ? take_until(cell, ';') : std::exchange(cell, {});
        const std::optional<Instruction> instruction = parse_action(part);
        require(instruction.has_value(),
                "{}: '{}' is no action; only F, B, I and W with stage and micro-batch are read, "
                "such as 0F1",
                where, printable(part));
        place(*instruction, where);
        list.push_back(*instruction);
      }
    }
  }

  /// Every stage stays on the device that ran it first.
  void place(const Instruction& instruction, const std::string& where) {
    const auto stage = static_cast<std::size_t>(instruction.stage);
    const int device = static_cast<int>(program_.device.size()) - 1;
    if (stage >= device_of_.size()) device_of_.resize(stage + 1, -1);
    int& home = device_of_[stage];
    if (home < 0) home = device;
    require(home == device, "{}: stage {} is also in row {}; a stage is on one device", where,
            stage, home + 1);
    program_.micro_batches = std::max(program_.micro_batches, instruction.micro_batch + 1);
  }

  void finish(const RoundSettings& settings) {
    std::size_t instructions = 0;
    for (const auto& list : program_.device) instructions += list.size();
    require(instructions > 0, "the schedule is empty");
    program_.schedule = "csv";
    program_.rule = UpdateRule::kSync;
    program_.stages = static_cast<int>(device_of_.size());
    program_.devices = static_cast<int>(program_.device.size());
    // Limits tables to the size of the file.
    require(instructions / device_of_.size() >= static_cast<std::size_t>(program_.micro_batches),
            "{} stages and {} micro-batches need more actions", program_.stages,
            program_.micro_batches);
    for (std::size_t s = 0; s < device_of_.size(); ++s) {
      require(device_of_[s] >= 0, "stage {} is in no row, but stage {} is", s,
              device_of_.size() - 1);
      program_.placement.push_back({device_of_[s]});
    }
    split_backwards();
    program_.recompute = settings.recompute;
    require(program_.recompute.empty() || program_.recompute.size() == device_of_.size(),
            "the schedule has {} stages, but recompute is set for {}", device_of_.size(),
            program_.recompute.size());
    program_.recompute.resize(device_of_.size(), false);
    program_.gradient_sync = settings.gradient_sync;
    program_.edges = chain_edges(program_.stages);
    complete(program_);
  }

  /// A B whose weight gradient is a separate W is an input gradient: older files write it as B.
  void split_backwards() {
    std::set<std::pair<int, int>> split;  // stage, micro-batch
    for (const auto& list : program_.device) {
      for (const Instruction& i : list) {
        if (i.kind == Kind::kBackwardWeight) split.emplace(i.stage, i.micro_batch);
      }
    }
    for (auto& list : program_.device) {
      for (Instruction& i : list) {
        const bool half = i.kind == Kind::kBackward && split.count({i.stage, i.micro_batch}) > 0;
        if (half) i.kind = Kind::kBackwardInput;
      }
    }
  }

  const std::string& source_;
  Program program_;
  std::vector<int> device_of_;  // [stages]
};

}  // namespace

Program parse_compute_csv(std::string_view text, const std::string& source,
                          const RoundSettings& settings) {
  return CsvReader(source).read(text, settings);
}

std::string to_compute_csv(const Program& program) {
  for (int s = 0; s < program.stages; ++s) {
    PT_CHECK(program.replicas(s) == 1, kUsage,
             "a compute-only CSV cannot say that stage {} has {} replicas; use the text form", s,
             program.replicas(s));
  }
  std::string text;
  for (const auto& list : program.device) {
    const char* separator = "";
    for (const Instruction& instruction : list) {
      if (!is_compute(instruction.kind) || instruction.kind == Kind::kRecompute) continue;
      text += separator + to_text(program, instruction);
      separator = ",";
    }
    text += '\n';
  }
  return text;
}

}  // namespace pipetrain
