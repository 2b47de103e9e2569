#include "pipeline/program/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "pipeline/program/annotate.h"

namespace pipetrain {
namespace {

constexpr std::string_view kHeader = "pipetrain-schedule 1";

/// Consumes characters from the front of a text.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  bool done() const { return text_.empty(); }
  bool take(char c) {
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  char take_any(std::string_view letters) {
    if (text_.empty() || letters.find(text_.front()) == std::string_view::npos) return 0;
    const char c = text_.front();
    text_.remove_prefix(1);
    return c;
  }
  std::optional<std::int64_t> number() {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return value;
  }
  std::optional<int> small_number() {
    constexpr std::int64_t kMost = 1 << 24;
    const std::optional<std::int64_t> value = number();
    if (!value || *value > kMost) return std::nullopt;
    return static_cast<int>(*value);
  }
  std::string_view rest() { return std::exchange(text_, {}); }
  /// The next word, with the blanks around it.
  std::string_view word() {
    const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
    while (!text_.empty() && blank(text_.front())) text_.remove_prefix(1);
    std::size_t length = 0;
    while (length < text_.size() && !blank(text_[length])) ++length;
    const std::string_view result = text_.substr(0, length);
    text_.remove_prefix(length);
    while (!text_.empty() && blank(text_.front())) text_.remove_prefix(1);
    return result;
  }

 private:
  std::string_view text_;
};

/// An instruction as written: transfers are given by their stages.
struct Word {
  Instruction instruction;
  int peer = -1;
  bool gradient = false;
};

std::optional<Word> parse_word(std::string_view text) {
  Word word;
  if (text == "G") {
    word.instruction.kind = Kind::kGradientSync;
    return word;
  }
  Cursor cursor(text);
  const std::optional<int> stage = cursor.small_number();
  const char letter = cursor.take_any("FBIWRUSA");
  if (!stage || letter == 0) return std::nullopt;
  word.instruction.stage = *stage;
  const char cargo = letter == 'S' || letter == 'R' ? cursor.take_any("FB") : '\0';
  switch (letter) {
    case 'F':
      word.instruction.kind = Kind::kForward;
      break;
    case 'B':
      word.instruction.kind = Kind::kBackward;
      break;
    case 'I':
      word.instruction.kind = Kind::kBackwardInput;
      break;
    case 'W':
      word.instruction.kind = Kind::kBackwardWeight;
      break;
    case 'U':
      word.instruction.kind = Kind::kUpdate;
      break;
    case 'A':
      word.instruction.kind = Kind::kReduce;
      break;
    case 'S':
      word.instruction.kind = Kind::kSend;
      break;
    default:
      word.instruction.kind = cargo != 0 ? Kind::kReceive : Kind::kRecompute;
      break;
  }
  if (word.instruction.kind == Kind::kSend && cargo == 0) return std::nullopt;
  word.gradient = cargo == 'B';
  const std::optional<int> micro_batch = cursor.small_number();
  const bool whole_round =
      word.instruction.kind == Kind::kUpdate || word.instruction.kind == Kind::kReduce;
  if (!micro_batch && !whole_round) return std::nullopt;
  word.instruction.micro_batch = micro_batch.value_or(-1);
  if (is_transfer(word.instruction.kind)) {
    if (!cursor.take(word.instruction.kind == Kind::kSend ? '>' : '<')) return std::nullopt;
    const std::optional<int> peer = cursor.small_number();
    if (!peer) return std::nullopt;
    word.peer = *peer;
  }
  if (!cursor.done()) return std::nullopt;
  return word;
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  Program parse() {
    bool header = false;
    while (next_line()) {
      if (line_text_.empty()) continue;
      if (!header) {
        require(line_text_ == kHeader, "must be '{}'", kHeader);
        header = true;
        continue;
      }
      Cursor cursor(line_text_);
      const std::string_view key = cursor.word();
      read_entry(key, cursor);
    }
    require(header, "the schedule is empty");
    finish();
    return std::move(program_);
  }

 private:
  template <class... Values>
  void require(bool condition, fmt::format_string<Values...> format, Values&&... values) const {
    if (condition) return;
    PT_FAIL(kUsage, "{}:{}: {}", printable(source_), line_,
            fmt::format(format, std::forward<Values>(values)...));
  }

  bool next_line() {
    if (text_.empty()) return false;
    ++line_;
    const std::size_t end = text_.find('\n');
    line_text_ = text_.substr(0, end);
    text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
    line_text_ = line_text_.substr(0, line_text_.find('#'));
    while (!line_text_.empty() &&
           (line_text_.back() == ' ' || line_text_.back() == '\t' || line_text_.back() == '\r')) {
      line_text_.remove_suffix(1);
    }
    return true;
  }

  int read_number(Cursor& cursor, std::string_view key) {
    const std::string_view word = cursor.word();
    Cursor digits(word);
    const std::optional<int> value = digits.small_number();
    require(value && digits.done(), "'{}' needs a number, not '{}'", key, printable(word));
    return *value;
  }

  void read_entry(std::string_view key, Cursor& cursor) {
    if (key == "name") {
      program_.schedule = cursor.rest();
    } else if (key == "rule") {
      read_rule(cursor.word());
    } else if (key == "stages") {
      program_.stages = read_number(cursor, key);
    } else if (key == "units") {
      program_.micro_batches = read_number(cursor, key);
    } else if (key == "placement") {
      while (!cursor.done()) read_devices(cursor.word());
    } else if (key == "route") {
      while (!cursor.done()) program_.route.push_back(read_number(cursor, key));
    } else if (key == "units-per-update") {
      program_.micro_batches_per_update = read_number(cursor, key);
    } else if (key == "recompute") {
      while (!cursor.done()) recompute_.push_back(read_number(cursor, key));
    } else if (key == "gradient-sync") {
      program_.gradient_sync = true;
    } else if (key == "transfers") {
      const std::string_view word = cursor.word();
      require(word == "yes" || word == "no", "'transfers' is yes or no, not '{}'", printable(word));
      program_.lowered = word == "yes";
    } else if (key == "edge") {
      read_edge(cursor);
    } else if (key == "device") {
      read_list(cursor);
    } else {
      require(false, "unknown entry '{}'", printable(key));
    }
    require(cursor.done(), "more than '{}' takes", printable(key));
  }

  void read_rule(std::string_view word) {
    for (const UpdateRule rule : {UpdateRule::kNone, UpdateRule::kSync, UpdateRule::kStash,
                                  UpdateRule::kVertical, UpdateRule::kDoubleBuffer}) {
      if (to_text(rule) != word) continue;
      program_.rule = rule;
      return;
    }
    require(false, "'rule' is none, sync, stash, vertical or double-buffer, not '{}'",
            printable(word));
  }

  /// The devices of one stage, `0+1` for two replicas.
  void read_devices(std::string_view word) {
    Cursor devices(word);
    auto& replicas = program_.placement.emplace_back();
    bool more = true;
    while (more) {
      const std::optional<int> device = devices.small_number();
      require(device.has_value(), "the devices of a stage are written like 0 or 0+1, not '{}'",
              printable(word));
      require(std::find(replicas.begin(), replicas.end(), *device) == replicas.end(),
              "'{}' names device {} twice", printable(word), *device);
      replicas.push_back(*device);
      more = devices.take('+');
    }
    require(devices.done(), "the devices of a stage are written like 0 or 0+1, not '{}'",
            printable(word));
  }

  void read_edge(Cursor& cursor) {
    const std::string_view word = cursor.word();
    Cursor stages(word);
    const std::optional<int> from = stages.small_number();
    const bool arrow = stages.take('>');
    const std::optional<int> to = stages.small_number();
    Cursor bytes(cursor.word());
    const std::optional<std::int64_t> size = bytes.number();
    require(from && arrow && to && stages.done() && size && bytes.done(),
            "an edge is written like 'edge 0>1 4096'");
    require(edges_.emplace(*from, *to).second, "the edge {}>{} is given twice", *from, *to);
    program_.edges.push_back({*from, *to, *size, *from > *to});
  }

  void read_list(Cursor& cursor) {
    const std::string_view number = cursor.word();
    const std::string expected = fmt::format("{}:", words_.size());
    require(number == expected, "the list of device {} must come here, not '{}'", words_.size(),
            printable(number));
    auto& list = words_.emplace_back();
    while (!cursor.done()) {
      const std::string_view text = cursor.word();
      const std::optional<Word> word = parse_word(text);
      require(word.has_value(), "'{}' is not an instruction", printable(text));
      list.push_back(*word);
    }
  }

  /// Resolves what was read. Errors from here on point at the end of the file.
  void finish() {
    std::size_t instructions = 0;
    for (const auto& list : words_) instructions += list.size();
    const auto stages = static_cast<std::size_t>(program_.stages);
    const auto micro_batches = static_cast<std::size_t>(program_.micro_batches);
    require(stages >= 1 && micro_batches >= 1, "'stages' and 'units' must be at least 1");
    // Limits tables to the size of the file.
    require(instructions / stages >= micro_batches,
            "{} stages and {} micro-batches need more instructions", program_.stages,
            program_.micro_batches);
    require(program_.placement.size() == stages, "'placement' must name the devices of {} stages",
            stages);
    for (const auto& replicas : program_.placement) {
      for (const int device : replicas) {
        require(static_cast<std::size_t>(device) < words_.size(),
                "'placement' names device {}, but there are {} lists", device, words_.size());
      }
    }
    require(program_.route.empty() || program_.route.size() == micro_batches,
            "'route' must name the replica of {} micro-batches", micro_batches);
    require(program_.micro_batches_per_update >= 1, "'units-per-update' must be at least 1");
    require(program_.micro_batches_per_update == 1 || program_.rule == UpdateRule::kDoubleBuffer,
            "'units-per-update' needs rule double-buffer");
    program_.devices = static_cast<int>(words_.size());
    program_.recompute.assign(stages, false);
    for (const int stage : recompute_) {
      require(stage < program_.stages, "'recompute' names stage {} of {}", stage, stages);
      program_.recompute[static_cast<std::size_t>(stage)] = true;
    }
    if (program_.edges.empty() && !program_.lowered) {
      program_.edges = chain_edges(program_.stages);
      if (program_.rule == UpdateRule::kNone) {
        std::erase_if(program_.edges, [](const Edge& edge) { return edge.gradient; });
      }
    }
    for (const Edge& edge : program_.edges) {
      require(edge.from_stage < program_.stages && edge.to_stage < program_.stages &&
                  edge.from_stage != edge.to_stage,
              "the edge {}>{} does not fit {} stages", edge.from_stage, edge.to_stage, stages);
    }
    // Limits tables, too; stages exchange values with far fewer others than that.
    constexpr std::size_t kMostEdges = 64;
    require(program_.edges.size() / kMostEdges <= instructions / micro_batches,
            "{} edges and {} micro-batches need more instructions", program_.edges.size(),
            micro_batches);
    if (program_.lowered) add_transfers(instructions);
    for (const auto& list : words_) {
      auto& instructions_of_device = program_.device.emplace_back();
      for (const Word& word : list) instructions_of_device.push_back(resolved(word));
    }
    annotate(program_);
  }

  void add_transfers(std::size_t instructions) {
    for (std::size_t e = 0; e < program_.edges.size(); ++e) {
      const Edge& edge = program_.edges[e];
      for (int micro_batch = 0; micro_batch < program_.micro_batches; ++micro_batch) {
        const int from = program_.device_of(edge.from_stage, micro_batch);
        const int to = program_.device_of(edge.to_stage, micro_batch);
        if (from == to) continue;
        require(program_.transfers.size() < instructions,
                "the edges need more sends and receives than there are");
        index_[{edge.from_stage, edge.to_stage, micro_batch}] =
            static_cast<int>(program_.transfers.size());
        program_.transfers.push_back({static_cast<int>(e), edge.from_stage, edge.to_stage, from, to,
                                      micro_batch, edge.gradient});
      }
    }
  }

  Instruction resolved(const Word& word) const {
    Instruction instruction = word.instruction;
    require(instruction.stage < program_.stages && instruction.micro_batch < program_.micro_batches,
            "instruction '{}' names a stage or micro-batch that does not exist",
            to_text(program_, instruction));
    if (!is_transfer(instruction.kind)) return instruction;
    const bool send = instruction.kind == Kind::kSend;
    const int from = send ? instruction.stage : word.peer;
    const int to = send ? word.peer : instruction.stage;
    const auto found = index_.find({from, to, instruction.micro_batch});
    require(found != index_.end() && word.gradient == (from > to),
            "there is no edge between devices for '{}{}{}{}{}{}'", instruction.stage,
            send ? 'S' : 'R', word.gradient ? 'B' : 'F', instruction.micro_batch, send ? '>' : '<',
            word.peer);
    instruction.transfer = found->second;
    return instruction;
  }

  std::string_view text_;
  std::string_view line_text_;
  const std::string& source_;
  int line_ = 0;
  Program program_;
  std::vector<int> recompute_;
  std::set<std::pair<int, int>> edges_;  // from stage, to stage
  std::vector<std::vector<Word>> words_;
  std::map<std::tuple<int, int, int>, int> index_;  // from stage, to stage, micro-batch
};

}  // namespace

Program parse_program(std::string_view text, const std::string& source) {
  return Parser(text, source).parse();
}

std::string to_text(const Program& program) {
  std::string text =
      fmt::format("{}\nname {}\nrule {}\nstages {}\nunits {}\n", kHeader, program.schedule,
                  to_text(program.rule), program.stages, program.micro_batches);
  if (program.rule == UpdateRule::kDoubleBuffer) {
    text += fmt::format("units-per-update {}\n", program.micro_batches_per_update);
  }
  text += "placement";
  for (const auto& replicas : program.placement) {
    text += fmt::format(" {}", fmt::join(replicas, "+"));
  }
  text += '\n';
  if (!program.route.empty()) text += fmt::format("route {}\n", fmt::join(program.route, " "));
  if (std::find(program.recompute.begin(), program.recompute.end(), true) !=
      program.recompute.end()) {
    text += "recompute";
    for (std::size_t s = 0; s < program.recompute.size(); ++s) {
      if (program.recompute[s]) text += fmt::format(" {}", s);
    }
    text += '\n';
  }
  if (program.gradient_sync) text += "gradient-sync\n";
  text += program.lowered ? "transfers yes\n" : "transfers no\n";
  for (const Edge& edge : program.edges) {
    text +=
        fmt::format("edge {}>{} {}\n", edge.from_stage, edge.to_stage, edge.bytes_per_micro_batch);
  }
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    text += fmt::format("device {}:", d);
    for (const Instruction& instruction : program.device[d]) {
      text += ' ' + to_text(program, instruction);
    }
    text += '\n';
  }
  return text;
}

}  // namespace pipetrain
