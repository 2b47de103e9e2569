// The parameters of a stage in all copies of its weights, with optimizer state, and which prepared
// weights are current.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/kernel/adding_kernel.h"
#include "optim/optimizer.h"
#include "pipeline/stage/stage_content.h"
#include "pipeline/stage/stage_memory.h"

namespace pipetrain {

struct ParameterState {
  std::string name;
  TensorType type;
  std::size_t offset = 0;  // in one copy of the weights
  float* state0 = nullptr;
  float* state1 = nullptr;
  float* average = nullptr;  // moving average; null: none is kept
  SettingsOfParameter optimizer = {};
  /// Of an embedding in host memory: the rows whose states may be non-zero. Null: not by rows.
  std::unique_ptr<TouchedRows> rows = {};
};

class StageParameters {
 public:
  /// All of these outlive this.
  StageParameters(const CompiledStage& compiled, const StageMemory& memory,
                  const StageExecutor& executor, const OptimizerSettings& optimizer, int copies);

  /// Those of a variant, as StageSlice::parameters.
  const std::vector<const ParameterState*>& of(int variant) const { return of_[at(variant)]; }

  /// Reads or writes (all copies of) a parameter; false when there is none of this name.
  bool read(const std::string& name, int copy, HostTensor& out) const;
  bool write(const std::string& name, const HostTensor& value);
  /// One copy of all parameters by name, and back. Error (kUsage) when one is missing or of another
  /// type.
  std::map<std::string, HostTensor> all(int copy) const;
  void set_all(int copy, const std::map<std::string, HostTensor>& values);
  /// The rows of a parameter that an update may change, given those of its gradient that may be
  /// non-zero; null: any. Remembers that their states are non-zero from now on.
  static const std::vector<std::int64_t>* rows_to_update(const ParameterState& parameter,
                                                         const TouchedRows* touched,
                                                         double learning_rate,
                                                         double gradient_scale);
  /// Saves a copy of the weights, optimizer state and averages in a content; and restores all but
  /// the weights.
  void add_to(StageContent& content, int copy) const;
  void take_states(const StageContent& content);
  /// Puts the moving averages where the weights are, and these where those were.
  void exchange_averages(int copy);
  /// Name of the first parameter that is not finite; empty when all are.
  std::string first_nonfinite(int copy) const;

  /// Marks the weights of a copy as changed.
  void note_change(int copy) { generation_[at(copy)] = ++latest_generation_; }
  /// The generation of a copy's weights, which each change increases.
  std::uint64_t generation(int copy) const { return generation_[at(copy)]; }
  /// Whether a variant's prepared weights match the weights of the copy.
  bool is_prepared(int variant, int copy) const {
    return prepared_[at(variant)][at(copy)] == generation_[at(copy)];
  }
  void note_prepared(int variant, int copy, std::uint64_t generation) {
    prepared_[at(variant)][at(copy)] = generation;
  }
  /// Notes that a variant's prepared weights have been overwritten.
  void forget_prepared(int variant) {
    for (std::uint64_t& generation : prepared_[at(variant)]) generation = kNoGeneration;
  }

 private:
  void take_states_of_rows(const ParameterState& parameter, const StageContent& content) const;
  std::byte* address(const ParameterState& parameter, int copy) const {
    return memory_.weights(copy) + parameter.offset;
  }
  HostTensor download(const TensorType& type, const void* data) const;

  static constexpr std::uint64_t kNoGeneration = ~std::uint64_t{0};
  const StageMemory& memory_;
  const StageExecutor& executor_;
  std::vector<ParameterState> parameters_;
  std::vector<std::vector<const ParameterState*>> of_;  // [variant]
  std::uint64_t latest_generation_ = 1;
  std::vector<std::uint64_t> generation_;             // [copy]
  std::vector<std::vector<std::uint64_t>> prepared_;  // [variant][copy]: from which generation
};

/// The tensor of this name, for memory of `type`; null when there is none. Error (kUsage) when it
/// is of another type.
const void* content_for(const TensorType& type, const std::map<std::string, HostTensor>& from,
                        const std::string& name);

}  // namespace pipetrain
