// Error → message and exit code. libgomp reads its environment before main, so the program sets it
// and starts itself once more: idle OpenMP threads must not spin for long on cores that other
// stages need.
#include <malloc.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file_errors.h"
#include "base/log.h"
#include "base/safe_text.h"
#include "base/setting.h"
#include "base/vectors.h"
#include "cli/commands/option_documents.h"
#include "cli/commands/run_together.h"
#include "cli/options/config_file.h"
#include "cli/options/options.h"
#include "cli/options/other_names.h"
#include "cli/output/terminal.h"
#include "out_of_memory.h"
#include "processes/processes.h"

namespace {

void restart_with_passive_wait_policy(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("PIPETRAIN_RESTARTED")) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  // About ten microseconds, which bridges the gap between two kernels (a small network takes half
  // as long again without it). A thread that spins for longer keeps the core from the one it waits
  // for when other programs compute: ten times as much made steps a third longer there.
  setenv("GOMP_SPINCOUNT", "2000", 0);
  setenv("PIPETRAIN_RESTARTED", "1", 1);
  execv("/proc/self/exe", argv);  // on failure: go on, only slower
}

/// Returns freed blocks of a megabyte and more to the system: by default the allocator raises this
/// threshold, and a run would hold the memory of reading and profiling to its end.
void give_back_large_blocks() {
#ifdef M_MMAP_THRESHOLD
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
#endif
}

/// A model may keep each tensor in a file of its own, and export has them all open: more than the
/// 1024 files that shells allow a program at first.
void allow_more_open_files() {
  constexpr rlim_t kEnough = 1 << 16;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return;
  limit.rlim_cur = std::min(limit.rlim_max, kEnough);
  ::setrlimit(RLIMIT_NOFILE, &limit);  // on failure: go on with fewer
}

bool is_command(const std::string& word) {
  return std::ranges::count(pipetrain::commands(), word, &pipetrain::CommandSpec::name) > 0;
}

/// Whether an argument that is no command is a model.
bool is_model(const std::string& word) {
  std::error_code unknown;
  return word.ends_with(".onnx") || std::filesystem::is_regular_file(word, unknown);
}

/// The position of the command among the arguments: the first one that is neither an option nor the
/// value of one. Their number when there is none.
std::size_t place_of_command(const std::vector<std::string>& arguments) {
  using namespace pipetrain;
  Options options;
  const std::vector<OptionSpec> specs = describe_options(options);
  const auto has_value = [&](std::string name, const std::string& next) {
    std::replace(name.begin(), name.end(), '_', '-');
    const auto takes = [&](const OptionSpec& spec) {
      const bool named = spec.name == name || std::find(spec.aliases.begin(), spec.aliases.end(),
                                                        name) != spec.aliases.end();
      return named && (!spec.is_switch() || (takes_next(spec, next) && !is_command(next)));
    };
    return std::any_of(specs.begin(), specs.end(), [&](const OptionSpec& spec) {
      return takes(spec) || std::any_of(spec.parts.begin(), spec.parts.end(), takes);
    });
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--") break;
    if (arguments[i].empty() || arguments[i][0] != '-' || arguments[i] == "-") return i;
    if (has_value(arguments[i], i + 1 < arguments.size() ? arguments[i + 1] : "")) ++i;
  }
  return arguments.size();
}

/// The options as a configuration file, where a model that was given as an argument has its key.
std::string given_configuration(pipetrain::Options options, const std::string& command) {
  using namespace pipetrain;
  const bool takes_model =
      std::ranges::find(commands(), command, &CommandSpec::name)->ending == "onnx" &&
      options.against.empty();  // which compares two runs
  if (takes_model && options.run.model.path.empty() && !options.arguments.empty())
    options.settings.emplace_back("--model", options.arguments[0]);
  return config_text(options, command, options.print_config == "all");
}

int run(std::vector<std::string> arguments) {
  using namespace pipetrain;
  if (arguments.empty() || arguments[0] == "-h" ||
      (arguments[0] == "--help" && arguments.size() == 1)) {
    std::fputs(short_help().c_str(), stdout);
    return 0;
  }
  std::string command = "train";
  const std::size_t at = place_of_command(arguments);
  // A model without a command is trained.
  if (at < arguments.size() &&
      (is_command(arguments[at]) || (at == 0 && !is_model(arguments[0])))) {
    command = arguments[at];
    arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(at));
  }
  if (!is_command(command)) {
    std::vector<std::string> names;
    for (const CommandSpec& spec : commands()) names.push_back(spec.name);
    const std::string near = nearest(command, names);
    PT_FAIL(kUsage, "unknown command \"{}\"{}", printable(command),
            near.empty() ? "; see: pipetrain --help" : fmt::format("; did you mean {}?", near));
  }
  if (command == "train") take_work_folder(arguments);
  Options options = parse_options(command, arguments);
  if (options.version) {
    std::puts("pipetrain " PIPETRAIN_VERSION);
    return 0;
  }
  if (options.help) {
    std::fputs(full_help(command).c_str(), stdout);
    return 0;
  }
  if (!options.print_config.empty()) {
    std::fputs(given_configuration(options, command).c_str(), stdout);
    return 0;
  }
  check_vectors_wanted();
  const bool together =
      command == "train" || command == "plan" || command == "tune" || command == "doctor";
  const int started = together ? 1 : launch_of_environment().size;
  PT_CHECK(started == 1, kUsage,
           "{} processes were started, but only training supports several: pipetrain train, with "
           "plan, tune and doctor",
           started);
  for (const CommandSpec& spec : commands()) {
    if (spec.name != command) continue;
    check_outputs(command, options);
    if (spec.computes) check_processor();
    return spec.run(options);
  }
  return 1;
}

}  // namespace

/// Error if the output could not be written; a closed pipe is accepted.
void flush_output() {
  errno = 0;
  const bool failed = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !failed) return;
  // Earlier failures have been reported; a closed pipe is not a failure.
  pollfd pipe{STDOUT_FILENO, 0, 0};
  const bool gone = errno == EPIPE || (::poll(&pipe, 1, 0) == 1 && (pipe.revents & POLLERR) != 0);
  PT_CHECK(gone, kResource, "cannot write to standard output: {}",
           errno ? std::strerror(errno) : "it is full or closed");
}

int main(int argc, char** argv) {
  restart_with_passive_wait_policy(argv);
  pipetrain::write_settings_as(pipetrain::option_that_sets);
  give_back_large_blocks();
  allow_more_open_files();
  pipetrain::report_terminations();
  const bool on_terminal = isatty(STDERR_FILENO) != 0;
  if (on_terminal) pipetrain::lay_out_log(pipetrain::message_for_terminal);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that must not grow is an error that has a message
  try {
    const int result = pipetrain::with_file_errors([&] { return run({argv + 1, argv + argc}); });
    flush_output();
    return result;
  } catch (const pipetrain::Error& error) {
    pipetrain::report_first_error_only();
    const std::string text = "error: " + pipetrain::safe_text(error.what());
    std::fprintf(stderr, "%s\n",
                 (on_terminal ? pipetrain::message_for_terminal(text) : text).c_str());
    if (error.kind() == pipetrain::ErrorKind::kInternal)
      std::fputs("this is a bug in pipetrain; please report it\n", stderr);
    return static_cast<int>(error.kind());
  } catch (const std::bad_alloc&) {
    return pipetrain::report_out_of_memory();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\nthis is a bug in pipetrain; please report it\n", error.what());
    return static_cast<int>(pipetrain::ErrorKind::kInternal);
  }
}
