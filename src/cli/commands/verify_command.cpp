// pipetrain verify: compares a schedule with one device, or the journals of two runs, bit for bit.
#include <fmt/format.h>

#include <bit>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/document.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/commands/commands.h"
#include "cli/commands/replica_mode.h"
#include "cli/output/journal.h"
#include "cli/output/output.h"
#include "train/verify.h"

namespace pipetrain {

namespace {

/// Compares the journals of two runs.
int compare_runs(const Options& options) {
  PT_CHECK(options.arguments.size() == 1, kUsage,
           "--against compares two runs: pipetrain verify RUN --against OTHER-RUN");
  const JournalContent one = read_journal(options.arguments[0]);
  const JournalContent other = read_journal(options.against);
  const JournalDifference found = first_difference(one, other);
  PT_CHECK(found.compared > 0, kData, "{} and {} have no step in common",
           printable(options.arguments[0]), printable(options.against));
  const char* what = found.in_weights ? "weights" : "loss";
  if (options.json) {
    nlohmann::ordered_json json = {{"schema", "pipetrain.comparison/1"},
                                   {"equal", found.step == 0},
                                   {"steps", found.compared}};
    if (found.step > 0) json["first_different"] = {{"step", found.step}, {"what", what}};
    std::fputs((json.dump(2) + "\n").c_str(), stdout);
  } else if (found.step == 0) {
    fmt::print("bit-identical: {} steps\n", found.compared);
  } else {
    const auto loss = [&](const JournalContent& run) {
      return std::bit_cast<double>(run.steps.at(found.step).loss_bits);
    };
    fmt::print("DIFFERENT: first in the {} of step {}{}\n", what, found.step,
               found.in_weights ? "" : fmt::format(", {} and {}", loss(one), loss(other)));
  }
  for (const auto* run : {&one, &other}) {
    if (run->contradicted == 0) continue;
    log_warning("verify", "{} has computed step {} again with another result",
                printable(run == &one ? options.arguments[0] : options.against), run->contradicted);
  }
  return found.step == 0 ? 0 : static_cast<int>(ErrorKind::kAssertion);
}

}  // namespace

int verify_command(Options& options) {
  resolve_verbosity(options);
  if (!options.against.empty()) return compare_runs(options);
  if (!options.replay.empty()) return verify_replay(options);
  PT_CHECK(options.run.pipeline.replica_updates.waits(), kUsage,
           "--replica-mode other than sync has no step to compare; verify a run: pipetrain verify "
           "--replay RUN");
  resolve_model(options, "verify");
  resolve_device(options, "verify");
  OptimizationConfig& optimization = options.run.optimization;
  // As many steps as an asynchronous schedule needs to be full twice.
  if (optimization.max_steps < 0) optimization.max_steps = 4 * options.run.pipeline.devices;
  if (options.run.pipeline.schedule == "auto") {
    const FoundSchedules found = choose_schedule(options, {});
    log_choice(options, found);
  }
  PlannedNetwork network = plan_network(options.run);
  PipelineRun run(network);
  const Verification result = verify(run);
  const std::string verdict = fmt::format(
      "{}: {} on {} device{} and {}: {} losses, {} gradients and {} parameters and "
      "statistics after {} step{}{}",
      result.equal() ? "bit-identical" : "DIFFERENT", printable(options.run.pipeline.schedule),
      network.devices(), network.devices() == 1 ? "" : "s", result.reference, result.losses,
      result.gradients, result.parameters, result.steps, result.steps == 1 ? "" : "s",
      result.skipped ? ", which updated nothing: some gradients are not finite" : "");
  if (options.json) {
    const nlohmann::ordered_json json = {
        {"equal", result.equal()},         {"schedule", options.run.pipeline.schedule},
        {"devices", network.devices()},    {"stages", network.stages()},
        {"reference", result.reference},   {"steps", result.steps},
        {"losses", result.losses},         {"gradients", result.gradients},
        {"parameters", result.parameters}, {"skipped", result.skipped},
        {"different", result.different}};
    print(document_text("pipetrain.verification/1", json));
  } else {
    print(verdict + "\n");
    for (const std::string& name : result.different) print("  " + name + "\n");
  }
  return result.equal() ? 0 : static_cast<int>(ErrorKind::kAssertion);
}

}  // namespace pipetrain
