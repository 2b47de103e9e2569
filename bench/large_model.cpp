// Time and memory of each phase of planning before the search for cuts:
//   large_model_bench MODEL.onnx [MICRO_BATCH]
// prints seconds and the peak resident memory after each phase.
#include <fmt/core.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"
#include "onnx_io/reader.h"
#include "onnx_io/writer.h"
#include "passes/build.h"
#include "passes/linearise.h"
#include "passes/parameters.h"
#include "profile/estimate.h"

namespace pipetrain {
namespace {

// An H100 with 16-bit matmul: rates from its data sheet, with typical efficiency.
constexpr double kFlops = 5e14;
constexpr double kBytes = 3e12;

class Phases {
 public:
  void done(const char* name) {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const double now = steady_seconds();
    fmt::print("{:<22}{:>8.3f} s   peak {:>8}\n", name, now - last_,
               bytes_text(static_cast<std::size_t>(usage.ru_maxrss) * 1024));
    last_ = steady_seconds();
  }

 private:
  double last_ = steady_seconds();
};

void run(const char* path, std::int64_t micro_batch) {
  Phases phases;
  OnnxModel model = read_onnx(path);
  phases.done("read");
  for (const std::string& warning : model.warnings) fmt::print("  {}\n", warning);
  auto rules = classify_tensors(model, {});
  for (const auto& [name, rule] : rules) {
    if (rule.use == TensorUse::kTrained) why_not_writable(model, name);
  }
  phases.done("classify");
  untie_copies(model, rules);
  phases.done("untie");
  BuildOptions options;
  options.lower.micro_batch = micro_batch;
  const TrainingGraph training = build_training_graph(model, rules, options);
  phases.done("training graph");
  const Chain chain = linearise(training);
  phases.done("chain");
  const Profile profile = estimate_profile(training, {"H100", kFlops, kBytes});
  phases.done("estimate");
  const ChainCosts costs = chain_costs(training, chain, profile);
  phases.done("costs");
  double parameters = 0;
  for (const ChainCost& element : costs.elements) {
    parameters += static_cast<double>(element.parameter_bytes);
  }
  fmt::print("{}: {} nodes, {} elements, {:.4g} parameters, {} a micro-batch\n", training.loss.task,
             training.graph.nodes.size(), costs.elements.size(), parameters / 4,
             seconds_text(profile.total_seconds(training)));
}

}  // namespace
}  // namespace pipetrain

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: large_model_bench MODEL.onnx [MICRO_BATCH]\n", stderr);
    return 2;
  }
  try {
    pipetrain::run(argv[1], argc > 2 ? std::atoll(argv[2]) : 1);
  } catch (const pipetrain::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
