// Makes the rows of the option table. The rows themselves are in options_*.cpp, by topic.
#include "cli/options/option_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>

#include "base/atomic_file.h"

namespace pipetrain {

double parse_real(const std::string& name, std::string text) {
  double scale = 1;
  const auto ends = [&](std::string_view suffix) {
    if (text.size() <= suffix.size() ||
        text.compare(text.size() - suffix.size(), suffix.size(), suffix) != 0)
      return false;
    text.resize(text.size() - suffix.size());
    return true;
  };
  for (const auto& [suffix, factor] :
       std::initializer_list<std::pair<std::string_view, double>>{{"GiB", 1073741824.0},
                                                                  {"MiB", 1048576.0},
                                                                  {"KiB", 1024.0},
                                                                  {"GB", 1e9},
                                                                  {"MB", 1e6},
                                                                  {"k", 1e3},
                                                                  {"M", 1e6}}) {
    if (ends(suffix)) {
      scale = factor;
      break;
    }
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  PT_CHECK(error == std::errc() && end == text.data() + text.size() && std::isfinite(value * scale),
           kUsage, "{} takes a number, not \"{}\"", name, printable(text));
  return value * scale;
}

std::int64_t parse_integer(const std::string& name, const std::string& text, std::int64_t least) {
  const double value = parse_real(name, text);
  PT_CHECK(value == std::floor(value) && std::abs(value) < 9e15, kUsage,
           "{} takes a whole number, not \"{}\"", name, printable(text));
  PT_CHECK(value >= static_cast<double>(least), kUsage, "{} must be at least {}, not {}", name,
           least, text);
  return static_cast<std::int64_t>(value);
}

int parse_int(const std::string& name, const std::string& text, int least, int most) {
  const std::int64_t value = parse_integer(name, text, least);
  PT_CHECK(value <= most, kUsage, "{} must be at most {}, not {}", name, most, text);
  return static_cast<int>(value);
}

double parse_memory(const std::string& name, const std::string& text) {
  const double bytes = parse_real(name, text);
  PT_CHECK(bytes >= 0 && bytes < 1e18, kUsage, "{} must be from 0 to 1e18 bytes, not {}", name,
           printable(text));
  return bytes;
}

bool parse_flag(const std::string& name, const std::string& text) {
  if (text == "true" || text == "1" || text == "on" || text == "yes" || text.empty()) return true;
  if (text == "false" || text == "0" || text == "off" || text == "no") return false;
  PT_FAIL(kUsage, "{} takes true or false, not \"{}\"", name, printable(text));
}

std::pair<std::string, std::string> split_pair(const std::string& name, const std::string& text) {
  const std::size_t equal = text.find('=');
  PT_CHECK(equal != std::string::npos && equal > 0 && equal + 1 < text.size(), kUsage,
           "{} takes NAME=VALUE, not \"{}\"", name, printable(text));
  return {text.substr(0, equal), text.substr(equal + 1)};
}

std::vector<std::string> split_list_of(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    if (comma > begin) parts.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return parts;
}

std::vector<Assignment> split_parts(const std::string& name, const std::string& text) {
  std::vector<Assignment> parts;
  for (const std::string& item : split_list_of(text)) {
    const std::size_t equal = item.find('=');
    if (equal == std::string::npos) {
      PT_CHECK(!parts.empty(), kUsage, "{} takes settings as KEY=VALUE, not \"{}\"", name,
               printable(item));
      parts.back().second += "," + item;
      continue;
    }
    std::string key = item.substr(0, equal);
    std::ranges::replace(key, '_', '-');
    parts.emplace_back(std::move(key), item.substr(equal + 1));
  }
  return parts;
}

void check_choice(const std::string& name, const std::string& value,
                  const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  const std::string near = nearest(value, choices);
  PT_FAIL(kUsage, "{} cannot be \"{}\"{} (choices: {})", name, printable(value),
          near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near),
          fmt::join(choices, ", "));
}

OptionSpec& Table::add(std::string name, std::string value, std::string help,
                       std::string commands) {
  OptionSpec spec;
  spec.name = std::move(name);
  spec.value = std::move(value);
  spec.help = std::move(help);
  spec.commands = std::move(commands);
  spec.group = group;
  spec.effect = effect;
  specs.push_back(std::move(spec));
  return specs.back();
}

OptionSpec& Table::text(const std::string& name, std::string& field, std::string value,
                        std::string help, std::string commands) {
  OptionSpec& spec = add(name, std::move(value), std::move(help), std::move(commands));
  spec.set = [&field](const std::string& v) { field = v; };
  spec.get = [&field] { return field; };
  return spec;
}

OptionSpec& Table::path(const std::string& name, std::string& field, PathUse use, std::string value,
                        std::string help, std::string commands) {
  const bool prints = use == PathUse::kWrite && value.ends_with("|-");
  OptionSpec& spec = text(name, field, std::move(value), std::move(help), std::move(commands));
  spec.path = use;
  // A file that standard output leads to would be written twice, from its beginning.
  if (prints)
    spec.set = [&field](const std::string& v) { field = names_standard_output(v) ? "-" : v; };
  return spec;
}

OptionSpec& Table::choice(const std::string& name, std::string& field,
                          std::vector<std::string> choices, std::string help,
                          std::string commands) {
  OptionSpec& spec =
      add(name, fmt::format("{}", fmt::join(choices, "|")), std::move(help), std::move(commands));
  spec.set = [&field, name, choices](const std::string& v) {
    check_choice(name, v, choices);
    field = v;
  };
  spec.get = [&field] { return field; };
  return spec;
}

OptionSpec& Table::real(const std::string& name, double& field, std::string help,
                        std::string commands) {
  OptionSpec& spec = add(name, "X", std::move(help), std::move(commands));
  spec.set = [&field, name](const std::string& v) { field = parse_real(name, v); };
  spec.get = [&field] { return fmt::format("{}", field); };
  return spec;
}

OptionSpec& Table::late_real(const std::string& name, std::string& field, std::string help,
                             std::string commands) {
  OptionSpec& spec = add(name, "X", std::move(help), std::move(commands));
  spec.set = [&field, name](const std::string& v) {
    field = fmt::format("{}", parse_real(name, v));
  };
  spec.get = [&field] { return field; };
  return spec;
}

OptionSpec& Table::flag(const std::string& name, bool& field, std::string help,
                        std::string commands) {
  OptionSpec& spec = add(name, "", std::move(help), std::move(commands));
  spec.set = [&field, name](const std::string& v) { field = parse_flag(name, v); };
  spec.get = [&field] { return field ? "true" : "false"; };
  return spec;
}

OptionSpec& Table::list(const std::string& name, std::vector<std::string>& field, std::string value,
                        std::string help, std::string commands) {
  OptionSpec& spec = add(name, std::move(value), std::move(help), std::move(commands));
  spec.set = [&field](const std::string& v) {
    for (std::string& part : split_list_of(v)) field.push_back(std::move(part));
  };
  spec.get = [&field] { return fmt::format("{}", fmt::join(field, ",")); };
  spec.repeatable = true;
  return spec;
}

namespace {

using Parts = std::shared_ptr<std::vector<OptionSpec>>;

std::vector<std::string> keys_of(const std::vector<OptionSpec>& parts) {
  std::vector<std::string> keys;
  for (const OptionSpec& part : parts) keys.push_back(part.key);
  return keys;
}

/// Whether a text could be the key of a setting: one word.
bool may_be_key(std::string_view text) { return text.find_first_of("/.:,") == text.npos; }

/// Where the settings of a value begin: at the colon before "KEY=", or at its end. Paths may have
/// colons too, so in one the key has to be known, or nearly so and in the last part.
std::size_t settings_at(const std::string& value, const std::vector<OptionSpec>& parts,
                        PathUse path) {
  const std::vector<std::string> keys = keys_of(parts);
  const bool is_path = path != PathUse::kNone && value.find_first_of("/.") != std::string::npos;
  for (std::size_t colon = value.find(':'); colon != std::string::npos;
       colon = value.find(':', colon + 1)) {
    const std::size_t equal = value.find('=', colon);
    if (equal == std::string::npos) break;
    const std::string key = value.substr(colon + 1, equal - colon - 1);
    const bool is_known = std::ranges::count(keys, key) > 0;
    const bool is_last = value.find('/', colon) == std::string::npos;
    const bool is_meant = is_path ? is_last && !nearest(key, keys).empty() : may_be_key(key);
    if (is_known || is_meant) return colon;
  }
  return value.size();
}

void set_part(const std::string& outer, const std::vector<OptionSpec>& parts,
              const std::string& key, const std::string& value) {
  for (const OptionSpec& part : parts) {
    if (part.key == key) return part.set(value);
  }
  const std::vector<std::string> keys = keys_of(parts);
  const std::string near = nearest(key, keys);
  PT_FAIL(kUsage, "{} has no \"{}\"{}; it has: {}", outer, printable(key),
          near.empty() ? "" : fmt::format(", did you mean {}?", near), fmt::join(keys, ", "));
}

void set_parts(const std::string& outer, const std::vector<OptionSpec>& parts,
               const std::string& text) {
  for (const auto& [key, value] : split_parts(outer, text)) set_part(outer, parts, key, value);
}

}  // namespace

std::vector<std::string> OptionSpec::keywords() const {
  const std::string& notation = is_switch() ? optional_value : value;
  std::vector<std::string> keywords;
  if (notation.find('|') == std::string::npos) return keywords;
  for (std::size_t begin = 0; begin <= notation.size();) {
    const std::size_t end = std::min(notation.find('|', begin), notation.size());
    const std::string word = notation.substr(begin, end - begin);
    const bool fixed = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    });
    if (fixed && word != "-") keywords.push_back(word);
    begin = end + 1;
  }
  return keywords;
}

std::pair<std::string, std::string> OptionSpec::split_value(const std::string& text) const {
  const std::size_t at = parts.empty() ? text.size() : settings_at(text, parts, path);
  return {text.substr(0, at), text.substr(at)};
}

void Table::nest(OptionSpec& outer, Table inner) {
  for (OptionSpec& part : inner.specs) {
    if (part.key.empty()) part.key = part.name.substr(2);
  }
  const Parts parts = std::make_shared<std::vector<OptionSpec>>(std::move(inner.specs));
  std::vector<OptionSpec> alone = *parts;  // settings without a value before them
  if (!outer.key.empty()) alone.insert(alone.begin(), outer);
  outer.set = [name = outer.name, key = outer.key, path = outer.path, own = outer.set, parts,
               alone](const std::string& v) {
    if (!own) return set_parts(name, *parts, v.substr(v.starts_with(':') ? 1 : 0));
    // "rank=8,alpha=16" is "8:alpha=16".
    const std::size_t equal = v.find('=');
    if (!key.empty() && equal != v.npos && may_be_key(v.substr(0, equal))) {
      set_parts(name, alone, v);
      PT_CHECK(("," + v).find("," + key + "=") != v.npos, kUsage, "{} {} needs {}=…", name,
               printable(v), key);
      return;
    }
    const std::size_t at = settings_at(v, *parts, path);
    if (at > 0) own(v.substr(0, at));
    if (at < v.size()) set_parts(name, *parts, v.substr(at + 1));
  };
  outer.parts = *parts;
}

std::vector<Assignment> recorded_settings(const Options& options) {
  Options copy = options;
  std::vector<Assignment> all;
  const auto add = [&](const OptionSpec& spec) {
    if (spec.effect != ResultEffect::kRecorded || !spec.applies_to("train")) return;
    if (!spec.record) return all.emplace_back(spec.name.substr(2), spec.get()), void();
    for (Assignment& each : spec.record()) all.push_back(std::move(each));
  };
  for (const OptionSpec& spec : describe_options(copy)) {
    add(spec);
    for (const OptionSpec& part : spec.parts) add(part);
  }
  return all;
}

std::vector<OptionSpec> describe_options(Options& options) {
  Table table;
  describe_model(table, options);
  describe_loss(table, options);
  describe_data(table, options);
  describe_pipeline(table, options);
  describe_optimization(table, options);
  describe_checkpoints(table, options);
  describe_output(table, options);
  describe_planning(table, options);
  describe_launch(table, options);
  describe_new(table, options);
  describe_general(table, options);
  return std::move(table.specs);
}

}  // namespace pipetrain
