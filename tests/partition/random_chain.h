// Random chains of small integers, whose sums are exact, so that ties are real and plans can be
// compared as they are.
#pragma once

#include <random>

#include "partition/plan.h"

namespace pipetrain {

inline ChainCosts random_chain(std::mt19937& random, int count) {
  const auto up_to = [&](int most) {
    return static_cast<std::size_t>(std::uniform_int_distribution<int>(0, most)(random));
  };
  ChainCosts chain;
  for (int i = 0; i < count; ++i) {
    ChainCost element;
    element.name = "node" + std::to_string(i);
    element.forward_seconds = static_cast<double>(up_to(6));
    element.input_gradient_seconds = static_cast<double>(up_to(6));
    element.weight_gradient_seconds = static_cast<double>(up_to(6));
    element.step_seconds = static_cast<double>(8 * up_to(1));
    element.parameter_bytes = up_to(9);
    element.fixed_bytes = up_to(3);
    element.saved_bytes = up_to(9);
    element.transient_bytes = up_to(5);
    if (i > 0 && up_to(3) == 0) {
      Reuse reuse;
      reuse.previous = static_cast<int>(up_to(i - 1));
      reuse.parameter_bytes = up_to(9);
      reuse.fixed_bytes = up_to(2);
      reuse.saved_bytes = up_to(9);
      element.reuses.push_back(reuse);
    }
    chain.elements.push_back(element);
  }
  for (int i = 0; i <= count; ++i) {
    chain.forward_bytes.push_back(up_to(8));
    chain.backward_bytes.push_back(up_to(8));
  }
  return chain;
}

}  // namespace pipetrain
