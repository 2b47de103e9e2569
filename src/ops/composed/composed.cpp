// The family of operators that have no kernel of their own: their gradients, types and costs are
// those of the operators they consist of.
#include "ops/composed/composed.h"

#include "ops/registry/all_ops.h"

namespace pipetrain {

const OpFamily& composed_family() {
  static const std::vector<ImportRule> imports = [] {
    std::vector<ImportRule> out;
    for (const auto& rules : {composed::arithmetic_imports(), composed::movement_imports(),
                              composed::spectrum_imports()}) {
      out.insert(out.end(), rules.begin(), rules.end());
    }
    return out;
  }();
  static const OpFamily family{"composed", {}, imports, {}, {}};
  return family;
}

}  // namespace pipetrain
