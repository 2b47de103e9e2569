#include "cli/options/config_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/input_file.h"
#include "cli/options/option_table.h"
#include "cli/options/other_names.h"

namespace pipetrain {
namespace {

struct ConfigLine {
  const std::string& name;
  int number = 0;
  [[noreturn]] void fail(const std::string& what) const {
    PT_FAIL(kUsage, "{}, line {}: {}", printable(name), number, what);
  }
};

constexpr std::string_view kBlank = " \t\r";
constexpr std::size_t kMostBytes = std::size_t{16} << 20;  // of a file

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

/// The lines of a file without the blanks around them.
class ConfigLines {
 public:
  ConfigLines(std::string_view text, ConfigLine& line) : text_(text), line_(line) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // of editors on Windows
    if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
  }

  /// None: there are no more.
  std::optional<std::string_view> next() {
    if (text_.empty()) return {};
    const std::size_t end = text_.find('\n');
    const std::string_view content = trimmed(text_.substr(0, end));
    text_.remove_prefix(end == text_.npos ? text_.size() : end + 1);
    ++line_.number;
    return content;
  }

 private:
  std::string_view text_;
  ConfigLine& line_;
};

/// Reads values from the right side of a line. A list may go on in the lines below.
class ValueReader {
 public:
  ValueReader(std::string_view text, ConfigLines& lines, const ConfigLine& line)
      : text_(text), lines_(lines), line_(line) {}

  std::vector<std::string> read() {
    std::vector<std::string> values;
    skip();
    if (next() == '[') {
      ++at_;
      for (skip_in_list(); next() != ']'; skip_in_list()) {
        values.push_back(scalar(",]"));
        skip_in_list();
        if (next() == ',')
          ++at_;
        else if (next() != ']')
          line_.fail("a list needs a comma between values and ends with ]");
      }
      ++at_;
    } else {
      values.push_back(scalar(""));
    }
    skip();
    if (at_ < text_.size() && next() != '#') {
      line_.fail(fmt::format("unexpected \"{}\" after the value",
                             printable(std::string(text_.substr(at_)))));
    }
    return values;
  }

 private:
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip() {
    while (at_ < text_.size() && kBlank.find(text_[at_]) != std::string_view::npos) ++at_;
  }
  void skip_in_list() {
    for (skip(); at_ == text_.size() || next() == '#'; skip()) {
      const std::optional<std::string_view> more = lines_.next();
      if (!more) line_.fail("the closing ] of a list is missing");
      text_ = *more;
      at_ = 0;
    }
  }
  std::string scalar(std::string_view ends) {
    const char quote = next();
    if (quote == '"' || quote == '\'') return quoted(quote);
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '#' &&
           ends.find(text_[at_]) == std::string_view::npos)
      ++at_;
    const std::string_view word = trimmed(text_.substr(begin, at_ - begin));
    if (word.empty()) line_.fail("a value is missing");
    return std::string(word);
  }
  std::string quoted(char quote) {
    std::string out;
    for (++at_; next() != quote; ++at_) {
      if (at_ >= text_.size()) line_.fail(fmt::format("the closing {} is missing", quote));
      if (quote != '"' || text_[at_] != '\\') {
        out += text_[at_];
        continue;
      }
      static const std::map<char, char> escapes = {
          {'n', '\n'}, {'t', '\t'}, {'"', '"'}, {'\\', '\\'}};
      ++at_;
      const auto found = escapes.find(next());
      if (found == escapes.end()) line_.fail("only \\n, \\t, \\\" and \\\\ may follow a \\");
      out += found->second;
    }
    ++at_;
    return out;
  }

  std::string_view text_;
  ConfigLines& lines_;
  const ConfigLine& line_;
  std::size_t at_ = 0;
};

struct FoundKey {
  const OptionSpec* spec = nullptr;
  const OptionSpec* part = nullptr;
};

/// The option of a key: one of the command before one of other commands.
FoundKey find_key(const std::string& key, const std::string& command,
                  const std::vector<OptionSpec>& specs) {
  const std::string flag = "--" + key;
  const auto matches = [&](const OptionSpec& spec) {
    return spec.name == flag ||
           std::find(spec.aliases.begin(), spec.aliases.end(), flag) != spec.aliases.end();
  };
  FoundKey found;
  for (const OptionSpec& spec : specs) {
    const bool here = spec.applies_to(command);
    if (matches(spec) && (here || !found.spec)) found = {&spec, nullptr};
    for (const OptionSpec& part : spec.parts) {
      if (matches(part) && (here || !found.spec)) found = {&spec, &part};
    }
    if (found.spec == &spec && here) return found;
  }
  return found;
}

std::string nearest_key(const std::string& key, const std::vector<OptionSpec>& specs) {
  std::vector<std::string> keys;
  for (const OptionSpec& spec : specs) {
    keys.push_back(spec.name.substr(2));
    for (const OptionSpec& part : spec.parts) keys.push_back(part.name.substr(2));
  }
  return nearest(key, keys);
}

std::string section_of(std::string_view text, const ConfigLine& line) {
  const std::size_t end = text.find(']');
  const std::string_view rest = trimmed(text.substr(std::min(end + 1, text.size())));
  if (end == std::string_view::npos || (!rest.empty() && rest[0] != '#'))
    line.fail("a section is written [COMMAND]");
  const std::string name(trimmed(text.substr(1, end - 1)));
  std::vector<std::string> known;
  for (const CommandSpec& command : commands()) known.push_back(command.name);
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    const std::string near = nearest(name, known);
    line.fail(fmt::format("unknown command \"{}\"{}", printable(name),
                          near.empty() ? "" : fmt::format("; did you mean {}?", near)));
  }
  return name;
}

/// A value as it is written in a file.
std::string quoted_value(const std::string& value) {
  const bool bare = value == "true" || value == "false" ||
                    (!value.empty() && value.find_first_not_of("0123456789.") == std::string::npos);
  if (bare) return value;
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else
      out += c;
  }
  return out + "\"";
}

/// Adds the parts in a text to others. The last value of a part holds, unless values add up: a file
/// may set it only once.
void add_parts(const OptionSpec& spec, const std::string& text,
               std::map<std::string, std::string>& parts) {
  for (const auto& [key, value] : split_parts(spec.name, text)) {
    const auto part = std::ranges::find(spec.parts, key, &OptionSpec::key);
    if (part == spec.parts.end()) continue;
    std::string& all = parts[part->name.substr(2)];
    all = part->repeatable && !all.empty() ? all + "," + value : value;
  }
}

}  // namespace

std::vector<Assignment> parse_config(const std::string& text, const std::string& name,
                                     const std::string& command,
                                     const std::vector<OptionSpec>& specs) {
  std::vector<Assignment> of_all, of_section;  // of all commands, of this one
  ConfigLine line{name};
  bool applies = true;
  std::string section;
  // The lines that set options, by section and key: what is set twice is a mistake.
  std::map<std::string, int> set_in;
  ConfigLines lines(text, line);
  while (const std::optional<std::string_view> next = lines.next()) {
    const std::string_view content = *next;
    if (content.empty() || content[0] == '#') continue;
    if (content[0] == '[') {
      section = section_of(content, line);
      applies = section == command;
      continue;
    }
    const std::size_t equal = content.find('=');
    if (equal == std::string_view::npos) line.fail("expected KEY = VALUE");
    std::string key(trimmed(content.substr(0, equal)));
    if (key.size() > 1 && key.front() == '"' && key.back() == '"')
      key = key.substr(1, key.size() - 2);
    std::replace(key.begin(), key.end(), '_', '-');
    const bool is_earlier = current_spelling("--" + key, "true").has_value();
    const FoundKey found = find_key(is_earlier ? "log-to" : key, command, specs);
    static const std::set<std::string> meaningless = {"--config", "--print-config", "--help",
                                                      "--version"};
    if (!found.spec || meaningless.contains(found.spec->name)) {
      const std::string near = nearest_key(key, specs);
      line.fail(
          fmt::format("unknown option \"{}\"{}", printable(key),
                      found.spec || near.empty() ? "" : fmt::format("; did you mean {}?", near)));
    }
    const OptionSpec& named = found.part ? *found.part : *found.spec;
    if (found.part || !named.repeatable) {
      const auto [first, is_new] = set_in.emplace(section + named.name, line.number);
      if (!is_new)
        line.fail(fmt::format("{} is already set in line {}", named.name, first->second));
    }
    const std::vector<std::string> values =
        ValueReader(content.substr(equal + 1), lines, line).read();
    if (!applies || !found.spec->applies_to(command)) continue;
    if (values.size() > 1 && !named.repeatable)
      line.fail(fmt::format("{} takes one value", named.name));
    std::vector<Assignment>& settings = section.empty() ? of_all : of_section;
    for (const std::string& given : values) {
      const std::string value = is_earlier ? current_spelling("--" + key, given)->second
                                           : value_under_own_name("--" + key, given);
      const Assignment setting = setting_of(*found.spec, found.part, value);
      discard_replaced(specs, setting, settings);
      settings.push_back(setting);
      try {
        found.spec->set(setting.second);
      } catch (const Error& error) {
        line.fail(error.what());
      }
    }
  }
  return overlay(of_all, of_section);
}

std::vector<Assignment> read_config(const std::string& path, const std::string& command,
                                    const std::vector<OptionSpec>& specs) {
  if (path == "-") {
    const std::string text =
        read_all(STDIN_FILENO, "standard input", ErrorKind::kUsage, kMostBytes);
    return parse_config(text, "standard input", command, specs);
  }
  const std::string text = with_context(
      [] { return "reading --config"; },
      [&] {
        return InputFile(path, ErrorKind::kUsage, InputFile::Takes::kPipesToo).read(kMostBytes);
      });
  return parse_config(text, path, command, specs);
}

std::string config_text(const Options& options, const std::string& command, bool all) {
  Options copy = options;
  static const std::set<std::string> left_out = {"--config", "--print-config", "--resume",
                                                 "--help",   "--version",      "--dry-run"};
  std::string text =
      fmt::format("# pipetrain {} · to repeat this run: pipetrain {} --config FILE\n",
                  PIPETRAIN_VERSION, command);
  std::string group;
  for (const OptionSpec& spec : describe_options(copy)) {
    if (!spec.applies_to(command) || left_out.contains(spec.name)) continue;
    std::vector<std::string> values;
    std::map<std::string, std::string> parts;
    for (const auto& [name, value] : options.settings) {
      if (name != spec.name) continue;
      const auto [own, rest] = spec.split_value(value);
      if (own.empty() && !rest.empty()) {
        add_parts(spec, rest.substr(1), parts);
      } else if (spec.repeatable) {
        values.push_back(value);
      } else {
        values = {value};
      }
    }
    if (values.empty() && parts.empty() && !all) continue;
    if (group != spec.group) text += fmt::format("\n# {}\n", group = spec.group);
    const std::string key = spec.name.substr(2);
    for (std::string& value : values) value = quoted_value(value);
    if (values.size() > 1) {
      text += fmt::format("{} = [{}]\n", key, fmt::join(values, ", "));
    } else if (values.size() == 1) {
      text += fmt::format("{} = {}\n", key, values[0]);
    } else if (all) {
      text += fmt::format("# {} = {}\n", key, quoted_value(spec.get ? spec.get() : ""));
    }
    for (const auto& [name, value] : parts)
      text += fmt::format("{} = {}\n", name, quoted_value(value));
  }
  return text;
}

}  // namespace pipetrain
