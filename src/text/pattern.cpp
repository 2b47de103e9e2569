#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/error.h"

namespace pipetrain {

namespace {

constexpr std::size_t kLongestPattern = 4096;
constexpr std::uint32_t kMostMatchSteps = 1'000'000;
constexpr std::size_t kMatchStepsPerByte = 8;   // of longer texts, where that is more
constexpr std::uint32_t kMostMemory = 1 << 16;  // KiB

// Oniguruma's \s is White_Space; PCRE2's also has U+180E.
constexpr std::string_view kSpaces = "\\t-\\r \\x{85}\\p{Z}";

/// Translates an expression, and refuses what the two libraries read differently.
class Translator {
 public:
  explicit Translator(std::string_view expression) : rest_(expression), whole_(expression) {}

  std::string translate() {
    while (!rest_.empty()) {
      const char c = take();
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        check(!in_class_, "a class within a class");
        in_class_ = true;
        out_ += c;
        if (rest_.starts_with('^')) out_ += take();
        check(!rest_.starts_with(']'), "a class that begins with ]");
      } else if (in_class_) {
        check(!(c == '&' && rest_.starts_with('&')), "an intersection of classes");
        in_class_ = c != ']';
        out_ += c;
      } else {
        outside(c);
      }
    }
    return std::move(out_);
  }

 private:
  char take() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }
  void check(bool fine, std::string_view what) const {
    PT_CHECK(fine, kData, "the pattern \"{}\" has {}, which is not supported", printable(whole_),
             what);
  }

  void escape() {
    check(!rest_.empty(), "a backslash at its end");
    const char c = take();
    if (c == 's') {
      out_ += in_class_ ? std::string(kSpaces) : fmt::format("[{}]", kSpaces);
    } else if (c == 'S') {
      check(!in_class_, "\\S in a class");
      out_ += fmt::format("[^{}]", kSpaces);
    } else if (c == 'p' || c == 'P') {
      property(c);
    } else {
      const bool letter =
          (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
      constexpr std::string_view kSame = "rntfd";
      check(!letter || kSame.find(c) != std::string_view::npos, fmt::format("\\{}", c));
      out_ += '\\';
      out_ += c;
    }
  }

  void property(char c) {
    const std::size_t end = rest_.find('}');
    check(rest_.starts_with('{') && end != std::string_view::npos, fmt::format("\\{}", c));
    const std::string_view name = rest_.substr(1, end - 1);
    // General categories; scripts by name.
    check(!name.empty() && name.find_first_of("^&_ =:") == std::string_view::npos,
          fmt::format("\\{}{{{}}}", c, printable(name)));
    out_ += fmt::format("\\{}{{{}}}", c, name);
    rest_.remove_prefix(end + 1);
  }

  void outside(char c) {
    check(c != '.' && c != '^' && c != '$', fmt::format("\"{}\"", c));
    out_ += c;
    if (c == '(' && rest_.starts_with('?')) {
      static constexpr std::array<std::string_view, 6> kGroups = {"?:", "?i:", "?!",
                                                                  "?=", "?<!", "?<="};
      bool known = false;
      for (const std::string_view group : kGroups) {
        if (known || !rest_.starts_with(group)) continue;
        out_ += group;
        rest_.remove_prefix(group.size());
        known = true;
      }
      check(known, "a group of another kind than (?:, (?i:, (?!, (?=, (?<!, (?<=");
    }
    check(c != '(' || !rest_.starts_with('*'), "a control verb");
    if (c == '{') {  // a count: {1,3}
      const std::size_t end = rest_.find('}');
      check(end != std::string_view::npos && end > 0 && rest_[0] != ',' &&
                rest_.substr(0, end).find_first_not_of("0123456789,") == std::string_view::npos,
            "a brace that is no count");
      out_ += rest_.substr(0, end + 1);
      rest_.remove_prefix(end + 1);
      // Possessive for one library, a second repetition for the other.
      check(!rest_.starts_with('+') && !rest_.starts_with('?'), "a sign after a count");
    }
  }

  std::string_view rest_, whole_;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

struct Pattern::Compiled {
  std::string expression;
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;

  ~Compiled() {
    pcre2_code_free(code);
    pcre2_match_context_free(limits);
  }
};

Pattern::Pattern(std::string_view expression) {
  PT_CHECK(expression.size() <= kLongestPattern, kData, "a pattern is longer than {} characters",
           kLongestPattern);
  auto compiled = std::make_unique<Compiled>();
  compiled->expression = expression;
  const std::string text = Translator(expression).translate();
  int error = 0;
  PCRE2_SIZE at = 0;
  compiled->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (!compiled->code) {
    std::array<PCRE2_UCHAR, 256> reason{};
    pcre2_get_error_message(error, reason.data(), reason.size());
    PT_FAIL(kData, "the pattern \"{}\" is no regular expression: {}", printable(expression),
            reinterpret_cast<const char*>(reason.data()));
  }
  std::uint32_t may_be_empty = 0;
  pcre2_pattern_info(compiled->code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  PT_CHECK(!may_be_empty, kData,
           "the pattern \"{}\" matches nothing at all, which is not supported",
           printable(expression));
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);  // where it cannot, matching is slower
  compiled->limits = pcre2_match_context_create(nullptr);
  PT_CHECK(compiled->limits, kResource, "there is no memory for a pattern");
  pcre2_set_heap_limit(compiled->limits, kMostMemory);
  compiled_ = std::move(compiled);
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;

std::vector<TextRange> Pattern::matches(std::string_view text) const {
  using Match = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
  const Match match(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  PT_CHECK(match != nullptr, kResource, "there is no memory for a match");
  using Limits = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;
  const Limits limits(pcre2_match_context_copy(compiled_->limits), pcre2_match_context_free);
  PT_CHECK(limits != nullptr, kResource, "there is no memory for a match");
  pcre2_set_match_limit(limits.get(), static_cast<std::uint32_t>(std::clamp<std::size_t>(
                                          kMatchStepsPerByte * text.size(), kMostMatchSteps,
                                          std::numeric_limits<std::uint32_t>::max())));
  std::vector<TextRange> out;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    const auto run = [&](std::uint32_t how) {
      return pcre2_match(compiled_->code, subject, text.size(), at,
                         PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | how, match.get(), limits.get());
    };
    int found = run(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = run(PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) break;
    PT_CHECK(found >= 0, kData, "the pattern \"{}\" takes too many steps on a text of {} bytes",
             printable(compiled_->expression), text.size());
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    out.push_back({range[0], range[1]});
    at = range[1];
  }
  return out;
}

}  // namespace pipetrain
