// The first value of a run that is NaN or infinite, and the search for it within a pass.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/stage/compiled_stage.h"
#include "pipeline/stage/stage_addresses.h"
#include "pipeline/stage/stage_executor.h"

namespace pipetrain {

/// A micro-batch of the run.
struct PassPlace {
  std::uint64_t step = 0;         // counts from 0
  std::int32_t micro_batch = -1;  // of the mini-batch; -1: not known which
  friend bool operator==(const PassPlace&, const PassPlace&) = default;
};

/// Where values stop being finite.
struct NonfiniteValue {
  std::string what;          // "node \"exp\" (Exp) made the first infinite value"
  std::int64_t sample = -1;  // of the mini-batch; -1: not of one alone
  std::int32_t stage = 0;
  std::optional<PassPlace> place;  // none: found between two steps
  bool backward = false;
};

/// In the order of the computation, as far as the places tell.
bool comes_before(const NonfiniteValue& a, const NonfiniteValue& b);
/// "node "exp" (Exp) made an infinite value in the forward pass of micro-batch 2 in step 7, for
/// sample 19 of the mini-batch, on stage 1". Steps count from 1, as in reports.
std::string to_text(const NonfiniteValue& value);

/// Runs the passes of a micro-batch once more, in memory of its own, and looks at the operands of
/// every node. Nothing of the stage changes. Host memory only.
class NonfiniteSearch {
 public:
  /// `real`: the addresses of the micro-batch's values. All arguments outlive this.
  NonfiniteSearch(const CompiledVariant& variant, const StageAddresses& real,
                  const StageExecutor& executor);

  /// Runs a list; `backward`: what its nodes belong to.
  void run(std::vector<StageStep>& steps, bool backward);
  /// The origin of the first of these values (roots) that is not finite: a node that was run, a
  /// weight or an input. None if all are finite, or if another stage sent values that were not.
  std::optional<NonfiniteValue> origin_of(const std::vector<ValueId>& values) const;

 private:
  /// A chain of values that are not finite.
  struct Origin {
    std::string begin;      // what made or held the first; empty: another stage did
    std::string nan;        // the node that made NaN of infinite ones; empty: none, or the first
    std::int64_t row = -1;  // of the micro-batch, where the last of these has a single one
    int order = 0;          // of discovery
    bool backward = false;
    bool is_nan = false;
  };
  void bind(StageStep& step);
  Origin next_origin(bool backward);
  const Origin* worst_input(const StageStep& step, bool backward);
  void look_at_outputs(const StageStep& step, const Origin* from, bool backward);
  std::string describe(const Node& node) const;
  std::int64_t row_of(const TensorType& type, std::int64_t element) const;
  const Buffer& contribution(int accumulation, const TensorType& type);

  const CompiledVariant& variant_;
  const StageExecutor& executor_;
  Buffer slot_, forward_out_, gradient_out_, temporary_;
  StageAddresses addresses_;
  std::map<int, Buffer> contributions_;  // by accumulation, of kernels that write into their sums
  std::map<ValueId, Origin> origins_;    // by root, of values that are not finite
  std::map<ValueId, bool> made_;         // roots that were computed here
  int found_ = 0;
};

}  // namespace pipetrain
