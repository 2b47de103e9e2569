// A graph of cuDNN's with the plan that was chosen for it. Seen by the *_graph_cuda.cpp alone: the
// headers of cudnn-frontend take long to compile.
#pragma once

#include <cudnn_frontend.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "ops/plan_count_cuda.h"

namespace pipetrain {

namespace fe = cudnn_frontend;
using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

class LibraryGraph : public fe::graph::Graph {
 public:
  /// What plans must not do, beside giving other bits every time.
  std::vector<fe::NumericalNote_t> forbidden;

  /// Asks for plans for a GPU that need not be here, described in JSON. Zeros and the reason when
  /// none is left.
  PlanCount plans_for(const std::string& properties, std::string* reason) {
    auto device = std::make_shared<fe::DeviceProperties>();
    fe::error_t status = device->deserialize({properties.begin(), properties.end()});
    if (status.is_good()) {
      set_device_properties(device);
      status = validate();
    }
    if (status.is_good()) status = build_operation_graph();
    if (status.is_good()) status = choose();
    if (status.is_good()) return {static_cast<int>(get_execution_plan_count()), kept_plans()};
    *reason = status.get_message();
    return {};
  }

  /// Takes the first plan that can be built. False and the reason when there is none.
  bool build_for(cudnnHandle_t handle, std::string* reason) {
    fe::error_t status = validate();
    if (status.is_good()) status = build_operation_graph(handle);
    if (status.is_good()) status = choose();
    if (status.is_good()) status = build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
    if (status.is_bad()) *reason = status.get_message();
    return status.is_good();
  }

  std::size_t needed_workspace() const {
    std::int64_t bytes = 0;
    fe::error_t status = get_workspace_size(bytes);
    PT_CHECK(status.is_good(), kDevice, "cuDNN tells no workspace: {}", status.get_message());
    return static_cast<std::size_t>(bytes);
  }

  void run_with(cudnnHandle_t handle, std::unordered_map<GraphTensor, void*>& tensors,
                void* workspace, const char* what) const {
    fe::error_t status = execute(handle, tensors, workspace);
    PT_CHECK(status.is_good(), kDevice, "cuDNN failed {}: {}", what, status.get_message());
  }

 private:
  fe::error_t choose() {
    fe::error_t status = create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    if (status.is_bad()) return status;
    std::vector<fe::NumericalNote_t> notes = forbidden;
    notes.push_back(fe::NumericalNote_t::NONDETERMINISTIC);
    deselect_numeric_notes(notes);
    return check_support();
  }
  int kept_plans() { return static_cast<int>(plans.get_barred_engine_configs().size()); }
};

}  // namespace pipetrain
