#include "cli/commands/option_documents.h"

#include <algorithm>

#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/options/option_table.h"
#include "cli/output/output.h"
#include "cli/output/progress_line.h"
#include "cli/output/terminal.h"

namespace pipetrain {
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

/// A text from column `at` on, in lines that end before the edge of the terminal.
std::string wrapped(std::string_view text, std::size_t at) {
  const std::size_t width = std::max(at + 30, terminal_width(STDOUT_FILENO));
  return wrapped_at_words(text, at, at, width);
}

/// How an option is written: alternatives that do not fit beside it come below.
std::string wrapped_usage(std::string_view usage) {
  constexpr std::size_t kBelow = 6;
  std::string out = "  ";
  std::size_t room = terminal_width(STDOUT_FILENO) - out.size();
  while (columns_of(usage) > room) {
    const std::size_t end = usage.rfind('|', room - 1);
    if (end == std::string_view::npos) break;
    out += fmt::format("{}\n{:<{}}", usage.substr(0, end + 1), "", kBelow);
    usage.remove_prefix(end + 1);
    room = terminal_width(STDOUT_FILENO) - kBelow;
  }
  return out + std::string(usage);
}

std::string two_columns(const Rows& rows, std::size_t width) {
  std::string out;
  for (const auto& [left, right] : rows) {
    const std::string text = wrapped(right, width + 2);
    out += columns_of(left) < width
               ? fmt::format("  {:<{}}{}\n", left, width, text)
               : fmt::format("{}\n  {:<{}}{}\n", wrapped_usage(left), "", width, text);
  }
  return out;
}

/// A help text up to the first semicolon that is not within parentheses.
std::string_view first_part(std::string_view help) {
  int depth = 0;
  for (std::size_t i = 0; i < help.size(); ++i) {
    if (help[i] == ';' && depth == 0) return help.substr(0, i);
    depth += (help[i] == '(') - (help[i] == ')');
  }
  return help;
}

std::string usage_of(const OptionSpec& spec) {
  std::string names;
  for (const std::string& alias : spec.aliases) {
    if (alias.size() == 2) names = alias + ", ";
  }
  names += spec.name;
  if (!spec.optional_value.empty()) names += "[=" + spec.optional_value + "]";
  return spec.is_switch() ? names : names + " " + spec.value;
}

std::string default_of(const OptionSpec& spec) {
  const std::string value = spec.get ? spec.get() : "";
  const bool shows = !value.empty() && value != "false" && value != "-1" &&
                     !(value == "0" && spec.help.find("0:") == std::string::npos);
  return shows ? value : "";
}

std::string with_default(const OptionSpec& spec, std::string_view help) {
  const std::string value = default_of(spec);
  return value.empty() ? std::string(help) : fmt::format("{} [{}]", help, value);
}

/// What an option means to a command, which may have another default.
std::string help_of_one(const OptionSpec& spec, const std::string& command) {
  const std::string& help = spec.help_for(command);
  return help.find("default: ") == std::string::npos ? with_default(spec, help) : help;
}

/// What an option means to every command that has it.
std::string help_of_all(const OptionSpec& spec) {
  std::string out = spec.help;
  for (const auto& [commands, text] : spec.help_of_commands)
    out += fmt::format("; {}: {}", commands, text);
  return out;
}

std::vector<const OptionSpec*> parts_of(const OptionSpec& spec, const std::string& command) {
  std::vector<const OptionSpec*> parts;
  for (const OptionSpec& part : spec.parts) {
    if (part.applies_to(command)) parts.push_back(&part);
  }
  return parts;
}

/// How a setting is written: after a colon, unless the option has no other value.
std::string part_usage(const OptionSpec& spec, const OptionSpec& part) {
  return fmt::format("{}{}={}", spec.value.starts_with("KEY=") ? "" : ":", part.key,
                     part.is_switch() ? "true|false" : part.value);
}

const CommandSpec& command_named(const std::string& name) {
  std::vector<std::string> names;
  for (const CommandSpec& command : commands()) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  const std::string near = nearest(name, names);
  PT_FAIL(kUsage, "unknown command \"{}\"{}", printable(name),
          near.empty() ? "; see: pipetrain --help" : fmt::format("; did you mean {}?", near));
}

constexpr std::string_view kExamples[][2] = {
    {"pipetrain net.onnx --data train.npz --gpus 4", "train, 4 stages"},
    {"pipetrain net.onnx --data train.npz --gpus 4 --device cpu", "the same on CPU cores"},
    {"pipetrain plan net.onnx --gpus 4", "predict the speed of stages"},
    {"pipetrain inspect net.onnx", "see what can be trained"},
};

constexpr std::string_view kExitCodes[][2] = {
    {"0", "success, early stopping, or --max-time reached"},
    {"1", "internal error"},
    {"2", "usage: wrong option, value or configuration"},
    {"3", "the model cannot be read or trained"},
    {"4", "data missing, damaged or out of range"},
    {"5", "not enough devices, memory or disk space"},
    {"6",
     "diverged: the loss is not finite, or with --on-error nan=skip more than half of the steps "
     "were skipped (with the automatic loss scale of fp16, only once that is 1)"},
    {"7", "a device failed or stalled during the run, or --verify-every found a difference"},
    {"8", "eval --assert failed, or verify found a difference"},
    {"129, 130, 143", "stopped by HUP, INT, TERM after saving"},
};

constexpr std::string_view kEnvironment[][2] = {
    {"PIPETRAIN_DEVICE", "default of --device"},
    {"PIPETRAIN_CONFIG", "a configuration file, like --config"},
    {"PIPETRAIN_CUDA_LIBRARIES",
     "folder that is searched first for the CUDA libraries, before the system's loader, a CUDA "
     "toolkit, and the nvidia-* wheels of VIRTUAL_ENV and of the Python on PATH"},
    {"PIPETRAIN_RUNS_DIR", "folder for runs; default: runs"},
    {"PIPETRAIN_CACHE_DIR",
     "cache of kernel timings and compiled GPU kernels; default: $XDG_CACHE_HOME/pipetrain, else "
     "~/.cache/pipetrain"},
    {"PIPETRAIN_NCCL", "NCCL library, for communication between GPUs; default: libnccl.so.2"},
    {"PIPETRAIN_NVRTC",
     "NVRTC library that compiles fused GPU kernels, instead of the one that the GPU plugin is "
     "linked with; default: libnvrtc.so.13"},
    {"PIPETRAIN_CUDA_GRAPHS",
     "off: launch the kernels of GPU stages one by one, not as CUDA graphs"},
    {"PIPETRAIN_VECTORS",
     "AVX2: use the kernels for CPUs without AVX-512, with the same results as on such a CPU; "
     "AVX-512-BF16: use no AMX; AVX-512-BF16-AS-FLOATS: multiply bfloat16 as floats, as on Intel "
     "CPUs without AMX; none: behave as on an unsupported CPU"},
    {"PIPETRAIN_NO_COLOR, NO_COLOR", "no colored output"},
};

constexpr std::string_view kSignals[][2] = {
    {"INT, TERM, HUP", "finish the step, save and exit; a second signal exits at once"},
    {"USR1", "save a checkpoint and continue"},
    {"USR2",
     "print a line of progress, and write the last instructions of each device to "
     "RUN/instructions.txt; processes other than 0 write RUN/instructions-N.txt"},
};

constexpr std::string_view kSyntax =
    "Options may come before or after the command. --batch_size and --batch-size mean the same, "
    "and so do --name value and --name=value. A switch also takes --no-name, =true or =false. -- "
    "ends the options. Numbers may end in k, M, MB, GB, KiB, MiB or GiB. An option that is "
    "indented below "
    "another one is a setting of it: give it after the value and a colon, as in --optimizer "
    "sgd:momentum=0.9,nesterov=true, or as an option by itself; --lora and --on-error take "
    "settings alone, as in --lora rank=8,alpha=16. Precedence, highest first: command line, "
    "environment, configuration files (a later file wins; in a file, what follows [COMMAND] wins "
    "for that command), a resumed checkpoint, defaults. Where a value replaces another one "
    "(--optimizer adam over a file's sgd:momentum=0.8), what stood after the colon is dropped. A "
    "setting given as an option by itself (momentum = 0.8) stays if the new value has it, too.";

// --- roff ---

std::string roff(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '\'') {
      out += "\\(aq";
    } else if (c < 0x80) {
      out += text[i];
    } else {
      // UTF-8: the first byte tells how many follow.
      const int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
      unsigned code = c & (0x3fu >> more);
      for (int k = 0; k < more && i + 1 < text.size(); ++k)
        code = code << 6 | (static_cast<unsigned char>(text[++i]) & 0x3fu);
      out += fmt::format("\\[u{:04X}]", code);
    }
  }
  if (!out.empty() && out[0] == '.') out = "\\&" + out;
  return out;
}

std::string roff_item(std::string_view term, std::string_view text) {
  return fmt::format(".TP\n.B \"{}\"\n{}\n", roff(term), roff(text));
}

// --- Markdown ---

std::string markdown(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '*') out += '\\';
    out += c;
  }
  return out;
}

std::string markdown_code(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return "`" + out + "`";
}

}  // namespace

std::string short_help() {
  Options options;
  Rows rows;
  for (const OptionSpec& spec : describe_options(options)) {
    if (spec.in_short_help)
      rows.emplace_back(usage_of(spec), with_default(spec, first_part(spec.help)));
  }
  std::string names;
  for (const CommandSpec& command : commands()) names += " " + command.name;
  std::string out = "pipetrain: train ONNX models in pipeline stages.\n\n";
  Rows examples;
  for (const auto& [command, meaning] : kExamples) examples.emplace_back(command, meaning);
  return out + two_columns(examples, 50) + "\n" + two_columns(rows, 34) + "\n" +
         wrapped("Commands:" + names, 0) +
         "\nHelp of a command: pipetrain help COMMAND · manual: man pipetrain\n";
}

std::string full_help(const std::string& name) {
  Options options;
  const CommandSpec& command = command_named(name);
  std::string out = wrapped(fmt::format("pipetrain {}: {}", name, command.summary), 0) +
                    fmt::format("\n\n  pipetrain {}{}{} [OPTIONS]\n", name,
                                command.arguments.empty() ? "" : " ", command.arguments);
  std::string group;
  Rows rows;
  const auto flush = [&] {
    if (!rows.empty()) out += fmt::format("\n{}\n{}", group, two_columns(rows, 40));
    rows.clear();
  };
  for (const OptionSpec& spec : describe_options(options)) {
    if (!spec.applies_to(name)) continue;
    if (spec.group != group) flush();
    group = spec.group;
    rows.emplace_back(usage_of(spec), help_of_one(spec, name));
    for (const OptionSpec* part : parts_of(spec, name))
      rows.emplace_back("    " + part_usage(spec, *part),
                        fmt::format("{} ({})", with_default(*part, part->help), part->name));
  }
  flush();
  for (const auto& [code, meaning] : kExitCodes) rows.emplace_back(code, meaning);
  return out + "\nExit codes\n" + two_columns(rows, 15);
}

std::string manual_page() {
  Options options;
  const std::vector<OptionSpec> specs = describe_options(options);
  std::string out = fmt::format(
      ".TH PIPETRAIN 1 \"\" \"pipetrain {}\" \"User Commands\"\n.SH NAME\npipetrain \\- train ONNX "
      "models in pipeline stages\n.SH SYNOPSIS\n.B pipetrain\n.RI [ COMMAND ]\n"
      ".RI [ ARGUMENTS ]\n.RI [ OPTIONS ]\n.SH DESCRIPTION\n{}\n.SH COMMANDS\n",
      roff(PIPETRAIN_VERSION), roff(kSyntax));
  for (const CommandSpec& command : commands())
    out += roff_item(command.name + (command.arguments.empty() ? "" : " ") + command.arguments,
                     command.summary);
  out += ".SH OPTIONS\n";
  std::string group;
  for (const OptionSpec& spec : specs) {
    if (spec.group != group) out += fmt::format(".SS {}\n", roff(group = spec.group));
    out += roff_item(usage_of(spec), with_default(spec, help_of_all(spec)));
    if (spec.commands != "*") out += fmt::format(".br\nCommands: {}\n", roff(spec.commands));
    for (const OptionSpec& part : spec.parts) {
      out += fmt::format(".RS\n{}.RE\n",
                         roff_item(part_usage(spec, part),
                                   with_default(part, part.help) + " (" + part.name + ")"));
    }
  }
  const auto list = [&](const char* title, const auto& items) {
    out += fmt::format(".SH {}\n", title);
    for (const auto& [term, text] : items) out += roff_item(term, text);
  };
  list("EXIT STATUS", kExitCodes);
  list("ENVIRONMENT", kEnvironment);
  list("SIGNALS", kSignals);
  out += ".SH EXAMPLES\n";
  for (const auto& [command, meaning] : kExamples) out += roff_item(command, meaning);
  return out;
}

std::string reference_markdown() {
  Options options;
  const std::vector<OptionSpec> specs = describe_options(options);
  std::string out = fmt::format(
      "# Commands and options\n\nGenerated from the option table by `pipetrain help --markdown`; a "
      "test compares them.\n\n{}\n\n| command | |\n|---|---|\n",
      markdown(kSyntax));
  for (const CommandSpec& command : commands()) {
    out += fmt::format("| {} | {} |\n",
                       markdown_code("pipetrain " + command.name +
                                     (command.arguments.empty() ? "" : " ") + command.arguments),
                       markdown(command.summary));
  }
  std::string group;
  for (const OptionSpec& spec : specs) {
    if (spec.group != group) {
      group = spec.group;
      out +=
          fmt::format("\n## {}\n\n| option | | default | commands |\n|---|---|---|---|\n", group);
    }
    out += fmt::format("| {} | {} | {} | {} |\n", markdown_code(usage_of(spec)),
                       markdown(help_of_all(spec)), markdown(default_of(spec)),
                       spec.commands == "*" ? "all" : spec.commands);
    for (const OptionSpec& part : spec.parts) {
      out +=
          fmt::format("| &nbsp;&nbsp;{} {} | {} | {} | |\n", markdown_code(part_usage(spec, part)),
                      markdown_code(part.name), markdown(part.help), markdown(default_of(part)));
    }
  }
  const auto list = [&](const char* title, const auto& items) {
    out += fmt::format("\n## {}\n\n| | |\n|---|---|\n", title);
    for (const auto& [term, text] : items)
      out += fmt::format("| {} | {} |\n", markdown(term), markdown(text));
  };
  list("Exit codes", kExitCodes);
  list("Environment", kEnvironment);
  list("Signals", kSignals);
  return out;
}

int help_command(Options& options) {
  PT_CHECK(options.arguments.size() <= 1, kUsage, "help takes one command: pipetrain help train");
  if (options.man)
    print(manual_page());
  else if (options.markdown)
    print(reference_markdown());
  else
    print(options.arguments.empty() ? short_help() : full_help(options.arguments[0]));
  return 0;
}

}  // namespace pipetrain
