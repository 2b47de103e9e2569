// A cache of a library's plans, shared by the kernels of one stream. Choosing and compiling a plan
// takes longer than a step, and networks repeat shapes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "device/libraries_cuda.h"

namespace pipetrain {

/// Graphs with their plans, keyed by everything they depend on except the device.
template <class Graph, class Shapes>
class LibraryPlans final : public KeptPlans {
 public:
  struct Found {
    std::shared_ptr<const Graph> graph;  // null: no plan, and why
    std::string reason;
    bool is_new;  // built by this call
  };

  /// `build`: makes a graph with its plan, or gives null and the reason.
  template <class Build>
  Found find(const Shapes& shapes, const Build& build) {
    const auto [place, is_new] = plans_.try_emplace(shapes);
    Plan& plan = place->second;
    if (is_new) {
      try {
        plan.graph = build(shapes, &plan.reason);
      } catch (...) {
        plans_.erase(place);
        throw;
      }
    }
    plan.used = true;
    return {plan.graph, plan.reason, is_new};
  }

  void forget_unused() override {
    std::erase_if(plans_, [](const auto& entry) { return !entry.second.used; });
    for (auto& entry : plans_) entry.second.used = false;
  }

 private:
  struct Plan {
    std::shared_ptr<const Graph> graph;
    std::string reason;
    bool used = false;
  };
  std::map<Shapes, Plan> plans_;
};

}  // namespace pipetrain
