// A graph of cuDNN's with the plan that was chosen for it. Seen by the *_graph_cuda.cpp alone: the
// headers of cudnn-frontend take long to compile.
#pragma once

#include <cudnn_frontend.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "ops/cuda/plan_count_cuda.h"

namespace pipetrain {

namespace fe = cudnn_frontend;
using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

class LibraryGraph : public fe::graph::Graph {
 public:
  /// What plans must not do, beside giving other bits every time and summing in less than float32.
  std::vector<fe::NumericalNote_t> forbidden;
  /// Plans that need more workspace are left out.
  std::int64_t most_workspace = std::numeric_limits<std::int64_t>::max();

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
    if (status.is_good()) return count();
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
    notes.push_back(fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION);
    deselect_numeric_notes(notes);
    deselect_workspace_greater_than(most_workspace);
    return check_support();
  }

  PlanCount count() {
    PlanCount out;
    out.offered = static_cast<int>(get_execution_plan_count());
    // Asking after a plan strikes it out if it needs too much.
    for (int i = 0; i < out.offered; ++i) {
      const fe::error_t status = plans.check_support_at_index(i);
      if (status.is_bad()) continue;
    }
    for (auto& config : plans.get_barred_engine_configs()) {  // those that are left
      ++out.kept;
      std::int64_t bytes = 0;
      if (fe::detail::get_workspace_size(config, bytes).is_good())
        out.workspace_bytes = std::max(out.workspace_bytes, bytes);
      out.notes.merge(notes_of(config->get_backend_descriptor()));
    }
    return out;
  }

  /// As the library itself has them.
  static std::set<int> notes_of(cudnnBackendDescriptor_t config) {
    fe::ManagedOpaqueDescriptor engine =
        fe::make_shared_backend_pointer(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendDescriptor_t raw = engine->get_backend_descriptor();
    std::int64_t found = 0;
    std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
    cudnnStatus_t status = cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &found, &raw);
    if (status == CUDNN_STATUS_SUCCESS)
      status =
          cudnnBackendGetAttribute(raw, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   notes.size(), &found, notes.data());
    PT_CHECK(status == CUDNN_STATUS_SUCCESS, kDevice, "cuDNN does not describe its engines: {}",
             cudnnGetErrorString(status));
    return {notes.begin(), notes.begin() + found};
  }
};

}  // namespace pipetrain
