// pipetrain verify: compares a schedule with one device, bit for bit.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/output/output.h"
#include "train/verify.h"

namespace pipetrain {

int verify_command(Options& options) {
  resolve_verbosity(options);
  resolve_model(options, "verify");
  resolve_plan(options);
  resolve_device(options, "verify");
  OptimizationConfig& optimization = options.run.optimization;
  // As many steps as an asynchronous schedule needs to be full twice.
  if (optimization.max_steps < 0) optimization.max_steps = 4 * options.run.pipeline.devices;
  if (options.run.pipeline.schedule == "auto") {
    const FoundSchedules found = choose_schedule(options, {});
    log_choice(options, found.candidates[static_cast<std::size_t>(found.chosen)].step_seconds);
  }
  PlannedNetwork network = plan_network(options.run);
  PipelineRun run(network);
  const Verification result = verify(run);
  const std::string verdict = fmt::format(
      "{}: {} on {} device{} and {}: {} losses, {} gradients and {} parameters and "
      "statistics after {} step{}",
      result.equal() ? "bit-identical" : "DIFFERENT", options.run.pipeline.schedule,
      network.devices(), network.devices() == 1 ? "" : "s", result.reference, result.losses,
      result.gradients, result.parameters, result.steps, result.steps == 1 ? "" : "s");
  if (options.json) {
    const nlohmann::ordered_json json = {{"schema", "pipetrain.verification/1"},
                                         {"equal", result.equal()},
                                         {"schedule", options.run.pipeline.schedule},
                                         {"devices", network.devices()},
                                         {"stages", network.stages()},
                                         {"reference", result.reference},
                                         {"steps", result.steps},
                                         {"losses", result.losses},
                                         {"gradients", result.gradients},
                                         {"parameters", result.parameters},
                                         {"different", result.different}};
    print(json.dump(2) + "\n");
  } else {
    print(verdict + "\n");
    for (const std::string& name : result.different)
      print("  " + name + "\n");
  }
  return result.equal() ? 0 : static_cast<int>(ErrorKind::kAssertion);
}

}  // namespace pipetrain
