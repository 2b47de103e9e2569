// What a runtime is made from, checked and worked out once: the networks cut into stages, how much
// of everything their programs need, between which stages values go, and which devices are here.
#pragma once

#include <memory>
#include <vector>

#include "pipeline/program/program.h"
#include "pipeline/runtime/runtime_options.h"
#include "pipeline/schedule/capacity.h"
#include "pipeline/stage/slice.h"
#include "pipeline/transport/link.h"

namespace pipetrain {

struct RuntimeSetup {
  RuntimeSetup(std::vector<RuntimeVariant> variants, std::vector<const Program*> programs,
               const RuntimeOptions& options);

  RuntimeOptions options;
  std::vector<RuntimeVariant> variants;
  std::vector<const Program*> programs;         // all place stages alike
  std::vector<std::unique_ptr<Slices>> slices;  // [variants]
  std::vector<StageCapacity> capacity;          // [stages]
  std::vector<LinkEdge> edges;  // every pair of stages between which some variant hands values
  std::vector<std::vector<const ValueEdge*>> values;  // [variants][edges]; null: hands over nothing

  int stages() const { return programs[0]->stages; }
  int devices() const { return programs[0]->devices; }
  const std::vector<int>& placement(int stage) const {
    return programs[0]->placement[static_cast<std::size_t>(stage)];
  }
  bool is_here(int device) const;
  int first_device_here() const;
  /// Whose process the first replica of a stage is.
  int process_of(int stage) const;
  /// Which of the machine's devices each is: equal numbers, the same one, whosever it is.
  std::vector<int> ranks() const;

 private:
  void find_edges();
  void check_processes() const;
};

}  // namespace pipetrain
