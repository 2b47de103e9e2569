// The family of operators without kernels: they are composed of other operators, from which
// gradients, types and costs follow.
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
