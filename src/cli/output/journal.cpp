#include "cli/output/journal.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <sstream>
#include <system_error>

#include "base/error.h"
#include "base/input_file.h"
#include "base/output_file.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "journal.txt";
constexpr std::size_t kMostBytes = std::size_t{1} << 32;

/// A number that is all of a text.
template <class Number>
bool parse(const std::string& text, Number& out, int base) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

bool is_hash(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

Journal::Journal(const fs::path& path, bool append) {
  descriptor_ = open_output(path, append ? OutputMode::kAppend : OutputMode::kReplace);
  // A line that a kill has cut off ends here, and an empty one tells that it was cut off.
  const std::string head = append ? "\n\n" : "# step, bits of the loss, SHA-256 of the weights\n";
  write_all_or_nothing(descriptor_, head);
}

Journal::~Journal() { ::close(descriptor_); }

void Journal::step(const StepReport& report) {
  const std::string line =
      fmt::format("{} {:016x}{}{}\n", report.step, std::bit_cast<std::uint64_t>(report.loss),
                  report.weights_digest.empty() ? "" : " ", report.weights_digest);
  write_all_or_nothing(descriptor_, line);  // a full disk loses lines of the journal, not the run
}

JournalContent read_journal(const fs::path& folder) {
  const fs::path path = folder / kName;
  const std::string text = read_file(path, ErrorKind::kUsage, kMostBytes);
  JournalContent content;
  std::istringstream in(text);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string step_text, loss_text, weights, more;
    words >> step_text >> loss_text >> weights >> more;
    std::int64_t step = 0;
    JournalStep read;
    const bool whole = parse(step_text, step, 10) && step > 0 && loss_text.size() == 16 &&
                       parse(loss_text, read.loss_bits, 16) &&
                       (weights.empty() || is_hash(weights)) && more.empty();
    if (!whole) {
      // A kill may have cut it off: the last line, or one before a restart.
      const bool cut = in.peek() == std::istringstream::traits_type::eof() || in.peek() == '\n';
      PT_CHECK(cut, kData, "{}, line {}: expected a step, the bits of its loss and maybe a SHA-256",
               printable(path.string()), number);
      continue;
    }
    read.weights = weights;
    const auto [place, is_new] = content.steps.try_emplace(step, read);
    if (is_new) continue;
    JournalStep& before = place->second;
    const bool differs = before.loss_bits != read.loss_bits ||
                         (!before.weights.empty() && !weights.empty() && before.weights != weights);
    if (differs && content.contradicted == 0) content.contradicted = step;
    if (read.weights.empty()) read.weights = before.weights;
    before = read;
  }
  return content;
}

std::int64_t last_step_in_journal(const fs::path& folder) {
  constexpr std::size_t kTail = 4'096;  // bytes, of many lines
  std::string text = end_of_file(folder / kName, kTail);
  text.resize(text.rfind('\n') + 1);  // npos + 1: nothing
  while (!text.empty()) {
    text.pop_back();
    const std::size_t begin = text.rfind('\n') + 1;
    std::int64_t step = 0;
    if (parse(text.substr(begin, text.find(' ', begin) - begin), step, 10)) return step;
    text.resize(begin);
  }
  return 0;
}

JournalDifference first_difference(const JournalContent& a, const JournalContent& b) {
  JournalDifference out;
  for (const auto& [step, mine] : a.steps) {
    const auto found = b.steps.find(step);
    if (found == b.steps.end()) continue;
    ++out.compared;
    const JournalStep& other = found->second;
    const bool loss = mine.loss_bits != other.loss_bits;
    const bool weights =
        !mine.weights.empty() && !other.weights.empty() && mine.weights != other.weights;
    if (out.step > 0 || (!loss && !weights)) continue;
    out.step = step;
    out.in_weights = !loss;
  }
  return out;
}

}  // namespace pipetrain
