// Parsing: CLI11 under the option table. The only file that includes CLI11.
#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"

namespace pipetrain {
namespace {

bool applies(const OptionSpec& spec, const std::string& command) {
  if (spec.commands == "*") return true;
  const std::string list = " " + spec.commands + " ";
  return list.find(" " + command + " ") != std::string::npos;
}

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

/// "500", "30%" or "30ep": steps, a share of the run, or epochs, which also become a share.
Milestone parse_milestone(const std::string& text, const OptimizationConfig& optimization) {
  std::string digits = text;
  const bool percent = digits.ends_with('%');
  const bool epochs = digits.ends_with("ep");
  if (percent) digits.pop_back();
  if (epochs) digits.resize(digits.size() - 2);
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  PT_CHECK(!digits.empty() && *end == 0 && std::isfinite(value) && value > 0, kUsage,
           "--lr-milestones takes steps, percentages or epochs (500, 30%, 30ep), not \"{}\"",
           printable(text));
  PT_CHECK(percent || epochs || value == std::floor(value), kUsage,
           "--lr-milestones takes whole steps, not \"{}\"", printable(text));
  PT_CHECK(!epochs || (optimization.max_steps < 0 && optimization.epochs > 0), kUsage,
           "--lr-milestones in epochs need --epochs; give steps or percentages with --max-steps");
  if (percent) return {value / 100, /*is_share=*/true};
  if (epochs) return {value / static_cast<double>(optimization.epochs), /*is_share=*/true};
  return {value, /*is_share=*/false};
}

void set_milestones(Options& options) {
  OptimizationConfig& optimization = options.run.optimization;
  PT_CHECK(
      options.milestones.empty() || optimization.learning_rate.kind == LearningRateKind::kMultistep,
      kUsage, "--lr-milestones belong to --lr-schedule multistep, not {}",
      name_of(optimization.learning_rate.kind));
  for (const std::string& text : options.milestones) {
    optimization.learning_rate.milestones.push_back(parse_milestone(text, optimization));
  }
}

void apply_numbers(Options& options) {
  RunConfig& run = options.run;
  const OptimizerKind kind = optimizer_named(options.optimizer);
  const bool nesterov = run.optimization.optimizer.nesterov;
  const bool centered = run.optimization.optimizer.centered;
  run.optimization.optimizer = default_settings(kind);
  run.optimization.optimizer.nesterov = nesterov;
  run.optimization.optimizer.centered = centered;
  const auto number = [](const std::string& text, double& field) {
    if (!text.empty()) field = std::stod(text);
  };
  OptimizerSettings& settings = run.optimization.optimizer;
  run.optimization.learning_rate.peak = default_learning_rate(kind);
  number(options.lr, run.optimization.learning_rate.peak);
  number(options.momentum, settings.momentum);
  number(options.weight_decay, settings.weight_decay);
  number(options.beta1, settings.beta1);
  number(options.beta2, settings.beta2);
  number(options.epsilon, settings.epsilon);
  number(options.alpha, settings.alpha);
  PT_CHECK(kind == OptimizerKind::kRmsProp || (!centered && options.alpha.empty()), kUsage,
           "--alpha and --centered belong to --optimizer rmsprop, not {}", options.optimizer);
  validate(settings);
  set_milestones(options);
  std::string warmup = options.warmup;
  if (!warmup.empty()) {
    const bool percent = warmup.back() == '%';
    const bool epochs = warmup.size() > 2 && warmup.compare(warmup.size() - 2, 2, "ep") == 0;
    if (percent) warmup.pop_back();
    if (epochs) warmup.resize(warmup.size() - 2);
    char* end = nullptr;
    const double value = std::strtod(warmup.c_str(), &end);
    PT_CHECK(end && *end == 0 && std::isfinite(value) && value >= 0, kUsage,
             "--warmup takes steps, a percentage or epochs (500, 5%, 1ep), not \"{}\"",
             printable(options.warmup));
    run.optimization.warmup =
        percent  ? value / 100
        : epochs ? value / static_cast<double>(std::max<std::int64_t>(1, run.optimization.epochs))
                 : value;
    run.optimization.warmup_is_fraction = percent || epochs;
  }
}

}  // namespace

namespace {

void set_options(const std::vector<std::pair<std::string, std::string>>& settings,
                 const std::vector<OptionSpec>& specs) {
  for (const auto& [name, value] : settings) {
    for (const OptionSpec& spec : specs) {
      if (spec.name == name) spec.set(value);
    }
  }
}

}  // namespace

std::string nearest(std::string_view name, const std::vector<std::string>& known) {
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

Options parse_options(const std::string& command, const std::vector<std::string>& arguments) {
  Options options;
  const std::vector<OptionSpec> specs = describe_options(options);
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::vector<std::string> names;
  std::map<std::string, std::string> elsewhere;
  for (const OptionSpec& spec : specs) {
    if (!applies(spec, command)) {
      elsewhere[spec.name] = spec.commands;
      continue;
    }
    std::string all = spec.name;
    names.push_back(spec.name);
    for (const std::string& alias : spec.aliases) {
      all += "," + alias;
      names.push_back(alias);
    }
    const auto set = [&](const std::string& value) {
      options.given.emplace_back(spec.name, value);
    };
    if (spec.value.empty()) {
      const std::string negative = "--no-" + spec.name.substr(2);
      app.add_option_function<std::string>(all, set)->expected(0, 1)->type_size(0, 1);
      app.add_flag_callback(negative, [set] { set("false"); });
      names.push_back(negative);
      continue;
    }
    CLI::Option* option = app.add_option_function<std::vector<std::string>>(
        all, [set](const std::vector<std::string>& values) {
          for (const std::string& value : values) set(value);
        });
    option->type_size(1)->expected(1);
    option->multi_option_policy(spec.repeatable ? CLI::MultiOptionPolicy::TakeAll
                                                : CLI::MultiOptionPolicy::TakeLast);
    if (spec.repeatable) option->expected(1, 1)->take_all();
  }
  std::vector<std::string> reversed;
  bool only_positional = false;
  for (const std::string& argument : arguments) {
    only_positional = only_positional || argument == "--";
    reversed.push_back(only_positional ? argument : with_dashes(argument));
  }
  // A switch takes a value only after "=": what follows it is the next argument.
  for (std::string& argument : reversed) {
    for (const OptionSpec& spec : specs) {
      if (!spec.value.empty() || !applies(spec, command)) continue;
      const bool matches =
          argument == spec.name ||
          std::find(spec.aliases.begin(), spec.aliases.end(), argument) != spec.aliases.end();
      if (matches) argument = spec.name + "=true";
    }
  }
  std::reverse(reversed.begin(), reversed.end());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    PT_FAIL(kUsage, "{}; see: pipetrain {} --help", error.what(), command);
  }
  set_options(options.given, specs);
  options.settings = options.given;
  for (const std::string& extra : app.remaining()) {
    if (extra.size() < 2 || extra[0] != '-') {
      options.arguments.push_back(extra);
      continue;
    }
    const std::string name = extra.substr(0, extra.find('='));
    if (const auto found = elsewhere.find(name); found != elsewhere.end()) {
      PT_FAIL(kUsage, "{} does not belong to \"{}\"; it belongs to: {}", name, command,
              found->second);
    }
    const std::string near = nearest(name, names);
    PT_FAIL(kUsage, "unknown flag {}{}", printable(name),
            near.empty() ? fmt::format("; see: pipetrain {} --help", command)
                         : fmt::format("; did you mean {}?", near));
  }
  apply_numbers(options);
  return options;
}

Options options_of(const std::string& command,
                   const std::vector<std::pair<std::string, std::string>>& settings) {
  Options options;
  std::vector<OptionSpec> specs = describe_options(options);
  std::erase_if(specs, [&](const OptionSpec& spec) { return !applies(spec, command); });
  set_options(settings, specs);
  options.settings = settings;
  apply_numbers(options);
  return options;
}

namespace {

std::string columns(const std::vector<std::pair<std::string, std::string>>& rows,
                    std::size_t width) {
  std::string out;
  for (const auto& [left, right] : rows) {
    out += left.size() < width ? fmt::format("  {:<{}}{}\n", left, width, right)
                               : fmt::format("  {}\n  {:<{}}{}\n", left, "", width, right);
  }
  return out;
}

std::string usage_of(const OptionSpec& spec) {
  std::string names;
  for (const std::string& alias : spec.aliases) {
    if (alias.size() == 2) names = alias + ", ";
  }
  names += spec.name;
  if (!spec.optional_value.empty()) names += "[=" + spec.optional_value + "]";
  return spec.value.empty() ? names : names + " " + spec.value;
}

std::string help_of(const OptionSpec& spec) {
  const std::string value = spec.get ? spec.get() : "";
  const bool shows = !value.empty() && value != "false" && value != "-1" &&
                     !(value == "0" && spec.help.find("0:") == std::string::npos);
  return shows ? fmt::format("{} [{}]", spec.help, value) : spec.help;
}

}  // namespace

std::string short_help() {
  Options options;
  std::vector<std::pair<std::string, std::string>> rows;
  for (const OptionSpec& spec : describe_options(options)) {
    if (spec.in_short_help) rows.emplace_back(usage_of(spec), help_of(spec));
  }
  std::string names;
  for (const CommandSpec& command : commands()) names += " " + command.name;
  return "pipetrain: train an ONNX model through pipeline stages.\n\n"
         "  pipetrain --model net.onnx --data train.npz --gpus 4               train, 4 stages\n"
         "  pipetrain --model net.onnx --data train.npz --gpus 4 --device cpu  the same on CPU "
         "stages\n"
         "  pipetrain plan --model net.onnx --gpus 4                           where it would be "
         "cut, how fast\n"
         "  pipetrain inspect net.onnx                                         can it be trained, "
         "what is trained\n\n" +
         columns(rows, 34) + "\nCommands:" + names + " help\nAll options: pipetrain train --help\n";
}

std::string full_help(const std::string& command) {
  Options options;
  const auto found = std::find_if(commands().begin(), commands().end(),
                                  [&](const CommandSpec& c) { return c.name == command; });
  PT_CHECK(found != commands().end(), kUsage, "there is no command \"{}\"", printable(command));
  std::string out = fmt::format("pipetrain {}: {}\n", command, found->summary);
  std::string group;
  std::vector<std::pair<std::string, std::string>> rows;
  const auto flush = [&] {
    if (!rows.empty()) out += fmt::format("\n{}\n{}", group, columns(rows, 40));
    rows.clear();
  };
  for (const OptionSpec& spec : describe_options(options)) {
    if (!applies(spec, command)) continue;
    if (spec.group != group) flush();
    group = spec.group;
    rows.emplace_back(usage_of(spec), help_of(spec));
  }
  flush();
  out +=
      "\nExit codes: 0 done, 1 internal error, 2 usage, 3 model, 4 data, 5 resources, 6 diverged, "
      "7 device failure, "
      "8 --assert not met, 129, 130, 143 stopped by HUP, INT, TERM after saving.\n";
  return out;
}

}  // namespace pipetrain
