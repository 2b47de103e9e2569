// One step of an optimizer whose rule uses no norms, for many tensors in one kernel (C++17: nvcc
// compiles this file).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/host_device.h"
#include "device/queue_cuda.h"

namespace pipetrain {

/// A rule of element_rules.h for float (tagged union).
class AnyRule {
 public:
  AnyRule() = default;
  /// `number` is the rule's index in ElementRules.
  template <class Rule>
  AnyRule(int number, const Rule& rule) : number_(number) {
    static_assert(std::is_trivially_copyable<Rule>::value && sizeof(Rule) <= sizeof bytes_);
    std::memcpy(bytes_, &rule, sizeof rule);
  }
  PT_HOST_DEVICE int number() const { return number_; }
  template <class Rule>
  PT_HOST_DEVICE Rule as() const {
    Rule rule;
    std::memcpy(&rule, bytes_, sizeof rule);
    return rule;
  }

 private:
  int number_ = -1;
  alignas(float) unsigned char bytes_[12 * sizeof(float)];
};

struct UpdatedTensor {
  float* parameter;
  const float* gradient;
  float* state0;
  float* state1;
  float* average;  // null: none
  std::int64_t count;
  AnyRule rule;
};

/// Elements per chunk.
constexpr std::int64_t kUpdateChunk = 4096;
/// As many as fit into kernel parameters (32,764 bytes).
constexpr int kMostUpdated = 250;

/// The tensors that one kernel updates; chunk p belongs to the first tensor t with p <
/// chunks_until[t].
struct UpdateList {
  int count = 0;
  bool first_step = false;  // averages start as copies
  float average_enter = 0;  // average += average_enter (parameter - average)
  std::int64_t chunks_until[kMostUpdated];
  UpdatedTensor tensors[kMostUpdated];
};
static_assert(sizeof(UpdateList) <= 32764);

void launch_update(const UpdateList& list, const CudaQueue& queue);

}  // namespace pipetrain
