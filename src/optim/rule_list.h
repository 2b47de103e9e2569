// Compile-time lists of the rules of element_rules.h: properties of a rule, dispatch by index, and
// calls on elements of arrays (C++17: nvcc compiles this file).
#pragma once

#include <type_traits>

#include "base/host_device.h"

namespace pipetrain {

template <template <class> class... Rules>
struct RuleList {};

/// The index of a rule in a list; -1 if it is not there.
template <template <class> class Rule, template <class> class... Rules>
constexpr int place_in(RuleList<Rules...>) {
  int at = 0, found = -1;
  ((found = std::is_same<Rule<float>, Rules<float>>::value ? at : found, ++at), ...);
  return found;
}

/// A rule as a tag argument.
template <class Rule>
struct RuleType {
  using type = Rule;
};

/// Calls visit(RuleType<Rule<T>>()) for the rule with this index.
template <class T, class Visit, template <class> class... Rules>
PT_HOST_DEVICE void visit_rule(RuleList<Rules...>, int number, const Visit& visit) {
  int at = 0;
  ((at++ == number ? visit(RuleType<Rules<T>>()) : void()), ...);
}

template <class Call>
struct StatesOfCall;
template <class Rule, class T, class... States>
struct StatesOfCall<T (Rule::*)(T, T, States&...) const> {
  static_assert((std::is_same<States, T>::value && ...));
  static constexpr int kCount = sizeof...(States);
};
/// Number of states of a rule: the arguments of its call that are references.
template <class Rule>
constexpr int states_of() {
  return StatesOfCall<decltype(&Rule::operator())>::kCount;
}

template <class Rule, class = void>
struct LooksAtNorms : std::false_type {};
template <class Rule>
struct LooksAtNorms<Rule, std::void_t<decltype(&Rule::normalise)>> : std::true_type {};
/// Whether a rule needs norms of the whole tensor.
template <class Rule>
constexpr bool is_normalised() {
  return LooksAtNorms<Rule>::value;
}

/// Calls a rule for element `i` of the arrays that it uses; the others may be null.
template <class Rule, class T, class Index>
PT_HOST_DEVICE T call_at(const Rule& rule, T p, T g, T* state0, T* state1, Index i) {
  if constexpr (states_of<Rule>() == 0) {
    return rule(p, g);
  } else if constexpr (states_of<Rule>() == 1) {
    return rule(p, g, state0[i]);
  } else {
    return rule(p, g, state0[i], state1[i]);
  }
}
/// The same for measured().
template <class Rule, class T, class Index>
PT_HOST_DEVICE T measured_at(const Rule& rule, T p, T g, T* state0, T* state1, Index i) {
  if constexpr (states_of<Rule>() == 0) {
    return rule.measured(p, g);
  } else if constexpr (states_of<Rule>() == 1) {
    return rule.measured(p, g, state0[i]);
  } else {
    return rule.measured(p, g, state0[i], state1[i]);
  }
}

}  // namespace pipetrain
