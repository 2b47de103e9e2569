// Parses options from their layers (configuration file, environment, command line) by precedence.
#include "cli/options/options.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "cli/options/config_file.h"
#include "cli/options/option_table.h"
#include "cli/options/option_values.h"
#include "cli/options/other_names.h"
#include "partition/plan_file.h"

namespace pipetrain {
namespace {

/// "--batch_size" → "--batch-size"; values are left alone.
std::string with_dashes(const std::string& argument) {
  if (argument.rfind("--", 0) != 0) return argument;
  const std::size_t end = std::min(argument.find('='), argument.size());
  std::string out = argument;
  std::replace(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return out;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row.back();
}

/// The letters and digits of a name, in lower case.
std::string letters_of(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

void set_options(const std::vector<std::pair<std::string, std::string>>& settings,
                 const std::vector<OptionSpec>& specs) {
  for (const auto& [name, value] : settings) {
    for (const OptionSpec& spec : specs) {
      if (spec.name == name) spec.set(value);
    }
  }
}

bool has_word(const std::string& words, const std::string& word) {
  return (" " + words + " ").find(" " + word + " ") != std::string::npos;
}

/// What an argument on the command line names.
struct Named {
  const OptionSpec* spec = nullptr;
  const OptionSpec* part = nullptr;  // an option that is a part of the value of `spec`
  bool negative = false;             // "--no-NAME"
  bool is_switch() const { return (part ? part : spec)->is_switch(); }
};

bool has_name(const OptionSpec& spec, const std::string& name) {
  return spec.name == name ||
         std::find(spec.aliases.begin(), spec.aliases.end(), name) != spec.aliases.end();
}

Named find_named(const std::vector<OptionSpec>& specs, const std::string& name,
                 const std::string& command) {
  const std::string positive = name.rfind("--no-", 0) == 0 ? "--" + name.substr(5) : "";
  const auto matches = [&](const OptionSpec& spec, bool& negative) {
    negative = spec.is_switch() && !positive.empty() && has_name(spec, positive);
    return has_name(spec, name) || negative;
  };
  Named named;
  for (const OptionSpec& spec : specs) {
    if (!spec.applies_to(command)) continue;
    if (matches(spec, named.negative)) return {&spec, nullptr, named.negative};
    for (const OptionSpec& part : spec.parts) {
      if (part.applies_to(command) && matches(part, named.negative))
        return {&spec, &part, named.negative};
    }
  }
  return {};
}

/// The commands that an option belongs to, empty when there is no such option.
std::string commands_of(const std::vector<OptionSpec>& specs, const std::string& name) {
  for (const OptionSpec& spec : specs) {
    if (has_name(spec, name)) return spec.commands;
    for (const OptionSpec& part : spec.parts) {
      if (has_name(part, name)) return part.commands;
    }
  }
  return {};
}

[[noreturn]] void fail_unknown(const std::vector<OptionSpec>& specs, const std::string& name,
                               const std::string& command) {
  const std::vector<std::string> known = names_of_options(specs, command);
  std::string near(option_meant_by(name));
  if (std::ranges::count(known, near.substr(0, near.find_first_of(" ="))) == 0) {
    const std::string whose = commands_of(specs, name);
    PT_CHECK(whose.empty(), kUsage, "{} is not an option of \"{}\"; it belongs to: {}", name,
             command, whose);
    near = nearest(name, known);
  }
  PT_FAIL(kUsage, "unknown option {}{}", printable(name),
          near.empty() ? fmt::format("; see: pipetrain {} --help", command)
                       : fmt::format("; did you mean {}?", near));
}

const OptionSpec& spec_named(const std::vector<OptionSpec>& specs, const std::string& name) {
  return *std::ranges::find(specs, name, &OptionSpec::name);
}

std::string key_of(const std::string& part) {
  std::string key = part.substr(0, part.find('='));
  std::ranges::replace(key, '_', '-');
  return key;
}

/// The keys of the settings in a value: "8:drop-last=true", "rank=8,alpha=16", ":momentum=0.9".
std::vector<std::string> keys_in(const OptionSpec& spec, const std::string& value) {
  const auto [own, rest] = spec.split_value(value);
  std::vector<std::string> keys;
  for (const std::string& part : split_list_of(rest.empty() ? own : rest.substr(1))) {
    if (part.find('=') != part.npos) keys.push_back(key_of(part));
  }
  return keys;
}

/// Error (kUsage) for a setting in a value that the option has with other commands only.
void check_parts(const std::vector<OptionSpec>& specs, const OptionSpec& spec,
                 const std::string& value, const std::string& command) {
  for (const std::string& key : keys_in(spec, value)) {
    const auto part = std::ranges::find(spec.parts, key, &OptionSpec::key);
    if (part != spec.parts.end() && !part->applies_to(command))
      fail_unknown(specs, part->name, command);
  }
}

/// What the settings of one layer set.
struct Layer {
  std::map<std::string, std::string> values;            // options' own, without their parts
  std::set<std::pair<std::string, std::string>> parts;  // options and keys

  void add(const std::vector<OptionSpec>& specs, const Assignment& setting) {
    const auto& [name, value] = setting;
    const OptionSpec& spec = spec_named(specs, name);
    if (sets_whole(value)) values[name] = spec.split_value(value).first;
    for (const std::string& key : keys_in(spec, value)) parts.emplace(name, key);
  }
};

/// The settings of a command line, by the options' own names.
std::vector<Assignment> read_arguments(const std::string& command,
                                       const std::vector<std::string>& arguments,
                                       const std::vector<OptionSpec>& specs,
                                       std::vector<std::string>& positional) {
  std::vector<Assignment> settings;
  bool only_positional = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string argument = only_positional ? arguments[i] : with_dashes(arguments[i]);
    if (only_positional || argument.size() < 2 || argument[0] != '-') {
      positional.push_back(argument);
      continue;
    }
    if (argument == "--") {
      only_positional = true;
      continue;
    }
    const std::size_t equal = std::min(argument.find('='), argument.size());
    const std::string name = argument.substr(0, equal);
    if (const auto now = current_spelling(
            name, equal < argument.size() ? argument.substr(equal + 1) : std::string("true"))) {
      settings.push_back(*now);
      continue;
    }
    const Named named = find_named(specs, name, command);
    if (!named.spec) fail_unknown(specs, name, command);
    const bool has_value = equal < argument.size();
    std::string value = has_value ? argument.substr(equal + 1) : "";
    // A switch takes a value only after "=", or a path: what follows it is the next argument.
    if (named.is_switch()) {
      PT_CHECK(!named.negative || !has_value, kUsage, "{} takes no value", name);
      if (!has_value) value = named.negative ? "false" : "true";
      if (!has_value && !named.part && i + 1 < arguments.size() &&
          takes_next(*named.spec, arguments[i + 1]))
        value = arguments[++i];
    } else if (!has_value) {
      PT_CHECK(i + 1 < arguments.size(), kUsage,
               "{} needs a value: {} {}; see: pipetrain {} --help", name, name,
               (named.part ? named.part : named.spec)->value, command);
      value = arguments[++i];
    }
    const Assignment setting =
        setting_of(*named.spec, named.part, value_under_own_name(name, value));
    check_parts(specs, *named.spec, setting.second, command);
    discard_replaced(specs, setting, settings);
    settings.push_back(setting);
  }
  return settings;
}

std::vector<Assignment> read_environment(const std::vector<OptionSpec>& specs,
                                         const std::string& command) {
  std::vector<Assignment> settings;
  for (const OptionSpec& spec : specs) {
    if (spec.environment.empty() || !spec.applies_to(command)) continue;
    const char* value = std::getenv(spec.environment.c_str());
    if (!value || !*value) continue;
    try {
      spec.set(value);
    } catch (const Error& error) {
      PT_FAIL(kUsage, "{}: {}", spec.environment, error.what());
    }
    settings.push_back({spec.name, value});
  }
  return settings;
}

/// Whether a part of an option that a layer sets by itself holds below another layer.
bool outlives(const std::vector<OptionSpec>& specs, const Assignment& setting, const Layer& lower,
              const Layer& upper) {
  const auto& [name, value] = setting;
  const std::string key = key_of(value.substr(1));
  if (upper.parts.contains({name, key})) return false;
  const auto now = upper.values.find(name), before = lower.values.find(name);
  if (now == upper.values.end() || before == lower.values.end() || now->second == before->second)
    return true;
  const std::vector<OptionSpec>& parts = spec_named(specs, name).parts;
  const auto part = std::ranges::find(parts, key, &OptionSpec::key);
  return part != parts.end() && !part->of_value;
}

/// Whether a plan's file says its schedule. One that cannot be read is refused later.
bool has_schedule(const std::string& plan) {
  try {
    return read_plan_outline(plan).schedule.has_value();
  } catch (const Error&) {
    return true;
  }
}

/// A value without the lists written in it that the layer above sets: their elements would add up.
std::string without_lists_of(const Layer& upper, const OptionSpec& spec, const std::string& value) {
  const auto [own, rest] = spec.split_value(value);
  const std::string written = rest.empty() ? own : rest.substr(1);  // "rank=8,alpha=16" is "8:…"
  if (!sets_whole(value) || spec.parts.empty() || written.find('=') >= written.find(','))
    return value;
  std::string kept;
  bool replaces = false;
  for (const auto& [key, text] : split_parts(spec.name, written)) {
    const auto part = std::ranges::find(spec.parts, key, &OptionSpec::key);
    if (part != spec.parts.end() && part->repeatable && upper.parts.contains({spec.name, key})) {
      replaces = true;
    } else {
      kept += (kept.empty() ? "" : ",") + key + "=" + text;
    }
  }
  if (!replaces) return value;
  return rest.empty() ? kept : kept.empty() ? own : own + ":" + kept;
}

}  // namespace

bool OptionSpec::applies_to(const std::string& command) const {
  if (commands == "*") return true;
  // tune takes the options of train, which end up in the configuration that it writes.
  if (command == "tune" && applies_to("train")) return true;
  return has_word(commands, command);
}

const std::string& OptionSpec::help_for(const std::string& command) const {
  for (const auto& [for_commands, text] : help_of_commands) {
    if (has_word(for_commands, command)) return text;
  }
  return help;
}

std::string option_that_sets(std::string_view setting) { return "--" + std::string(setting); }

std::string nearest(std::string_view name, const std::vector<std::string>& known) {
  // "zbv" is "zb-v", and "acc" the beginning of "accuracy".
  const std::string letters = letters_of(name);
  for (const std::string& candidate : known) {
    if (!letters.empty() && letters_of(candidate) == letters) return candidate;
  }
  const auto begins = [&](const std::string& candidate) {
    return letters.size() >= 3 && letters_of(candidate).starts_with(letters);
  };
  if (std::ranges::count_if(known, begins) == 1) return *std::ranges::find_if(known, begins);
  std::string best;
  std::size_t distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t d = edit_distance(name, candidate);
    if (d < distance) {
      distance = d;
      best = candidate;
    }
  }
  return best;
}

std::vector<std::string> names_of_options(const std::vector<OptionSpec>& specs,
                                          const std::string& command) {
  std::vector<std::string> names;
  const auto add = [&](const OptionSpec& spec) {
    names.push_back(spec.name);
    names.insert(names.end(), spec.aliases.begin(), spec.aliases.end());
    if (spec.is_switch()) names.push_back("--no-" + spec.name.substr(2));
  };
  for (const OptionSpec& spec : specs) {
    if (!spec.applies_to(command)) continue;
    add(spec);
    for (const OptionSpec& part : spec.parts) {
      if (part.applies_to(command)) add(part);
    }
  }
  return names;
}

Assignment setting_of(const OptionSpec& spec, const OptionSpec* part, const std::string& value) {
  return {spec.name, part ? ":" + part->key + "=" + value : value};
}

bool takes_next(const OptionSpec& spec, const std::string& word) {
  return spec.optional_value.find("PATH") != std::string::npos && !word.empty() && word[0] != '-' &&
         !word.ends_with(".onnx");
}

bool sets_whole(const std::string& value) { return !value.starts_with(':'); }

bool is_ruled_out(const std::string& name, const std::map<std::string, std::string>& values) {
  static const std::vector<std::pair<std::string, std::string>> pairs = {
      {"--max-steps", "--epochs"},   {"--micro-batches", "--micro-batch-size"},
      {"--val-split", "--val-data"}, {"--gpus", "--plan"},
      {"--gpus", "--split"},         {"--plan", "--split"},
      {"--plan", "--replicas"}};
  if (const auto device = values.find("--device"); name == "--gpu-ids" && device != values.end())
    return device->second == "cpu" || device->second == "reference";
  return std::ranges::any_of(pairs, [&](const auto& pair) {
    const auto& [one, other] = pair;
    if (name != one && name != other) return false;
    const auto rival = values.find(name == one ? other : one);
    if (rival == values.end()) return false;
    // No part of the training data for validation ("0", "0.0", "0%") leaves other data for it
    // alone.
    return rival->first != "--val-split" ||
           rival->second.find_first_not_of("0.%") != std::string::npos;
  });
}

void discard_replaced(const std::vector<OptionSpec>& specs, const Assignment& now,
                      std::vector<Assignment>& settings) {
  const OptionSpec& spec = spec_named(specs, now.first);
  if (!sets_whole(now.second) || spec.parts.empty()) return;
  Layer layer;
  layer.add(specs, now);
  std::erase_if(settings, [&](const Assignment& earlier) {
    if (earlier.first != now.first) return false;
    return sets_whole(earlier.second)
               ? !spec.repeatable
               : layer.parts.contains({now.first, key_of(earlier.second.substr(1))});
  });
}

std::vector<Assignment> without_replaced_lists(std::vector<Assignment> below,
                                               const std::vector<Assignment>& above) {
  Options unused;
  Layer upper;
  const std::vector<OptionSpec> specs = describe_options(unused);
  for (const Assignment& setting : above) upper.add(specs, setting);
  for (auto& [name, value] : below) value = without_lists_of(upper, spec_named(specs, name), value);
  return below;
}

std::vector<Assignment> overlay(const std::vector<Assignment>& below,
                                const std::vector<Assignment>& above) {
  Options unused;
  Layer lower, upper;
  const std::vector<OptionSpec> specs = describe_options(unused);
  for (const Assignment& setting : below) lower.add(specs, setting);
  for (const Assignment& setting : above) upper.add(specs, setting);
  const auto is_set = [&](const std::string& name) { return upper.values.contains(name); };
  const auto plan = upper.values.find("--plan");
  const bool has_plan = plan != upper.values.end() && !plan->second.empty();
  const bool brings_schedule = has_plan && !is_set("--schedule") &&
                               lower.values.contains("--schedule") && has_schedule(plan->second);
  std::vector<Assignment> out;
  for (const Assignment& setting : without_replaced_lists(below, above)) {
    const auto& [name, value] = setting;
    if (is_ruled_out(name, upper.values)) continue;
    if ((name == "--schedule" && brings_schedule) || (name == "--recompute" && has_plan)) continue;
    if (sets_whole(value) ? is_set(name) : !outlives(specs, setting, lower, upper)) continue;
    out.push_back(setting);
  }
  out.insert(out.end(), above.begin(), above.end());
  return out;
}

Options parse_options(const std::string& command, const std::vector<std::string>& arguments) {
  Options options;
  std::vector<Assignment> settings;
  {
    // The configuration file is named by the other two layers, so those are read first.
    Options draft;
    const std::vector<OptionSpec> specs = describe_options(draft);
    const std::vector<Assignment> line =
        read_arguments(command, arguments, specs, options.arguments);
    settings = overlay(read_environment(specs, command), line);
    draft.configs.clear();
    set_options(settings, specs);
    std::vector<Assignment> files;
    for (const std::string& path : draft.configs)
      files = overlay(files, read_config(path, command, specs));
    settings = overlay(files, settings);
  }
  const std::vector<OptionSpec> specs = describe_options(options);
  set_options(settings, specs);
  options.given = settings;
  options.settings = settings;
  if (options.resume.empty() || options.resume_weights_only) check_values(options);
  resolve_values(options);
  return options;
}

Options options_of(const std::string& command, const std::vector<Assignment>& settings) {
  Options options;
  std::vector<OptionSpec> specs = describe_options(options);
  std::erase_if(specs, [&](const OptionSpec& spec) { return !spec.applies_to(command); });
  set_options(settings, specs);
  options.settings = settings;
  check_values(options);
  resolve_values(options);
  return options;
}

}  // namespace pipetrain
