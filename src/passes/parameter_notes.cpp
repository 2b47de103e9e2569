// Sentences on tensors that are not trained.
#include "base/error.h"
#include "base/setting.h"
#include "onnx_io/subgraph.h"
#include "passes/parameters.h"

namespace pipetrain {

std::string note_on_uncertain_parameters(const std::map<std::string, TensorRule>& rules) {
  constexpr std::size_t kNamed = 4;
  std::size_t count = 0;
  std::string names;
  for (const auto& [name, rule] : rules) {
    if (!rule.doubtful) continue;
    if (++count <= kNamed) names += (count > 1 ? ", " : "") + printable(name);
  }
  if (count == 0) return {};
  const bool one = count == 1;
  return fmt::format(
      "{} tensor{} that may be {} and not trained: {}{}; to train {}, name all that is to be "
      "trained "
      "with {} GLOB",
      count, one ? "" : "s",
      one ? "a parameter is taken for a constant" : "parameters are taken for constants", names,
      count > kNamed ? ", …" : "", one ? "it" : "them", setting("train-only"));
}

std::string note_on_tensors_in_subgraphs(const OnnxModel& model) {
  std::size_t count = 0;
  std::string first;
  for (const OnnxNode& node : model.nodes) {
    const std::vector<std::string> names = float_tensors_inside(node);
    if (first.empty() && !names.empty()) first = names[0];
    count += names.size();
  }
  if (count == 0) return {};
  return fmt::format(
      "{} inside an If, Loop or Scan ({}{}) {} not trained, as only those of the main graph are",
      count == 1 ? "a tensor" : fmt::format("{} tensors", count), printable(first),
      count == 1 ? "" : ", …", count == 1 ? "is" : "are");
}

}  // namespace pipetrain
