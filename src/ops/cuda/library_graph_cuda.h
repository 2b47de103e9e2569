// A cuDNN graph with the plan that was chosen for it. Include it from *_graph_cuda.cpp files only:
// the headers of cudnn-frontend are slow to compile.
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
  /// Numerical notes that exclude a plan, in addition to non-determinism and sums in less than
  /// float32.
  std::vector<fe::NumericalNote_t> forbidden;
  /// Plans are excluded whose names contain one of these.
  std::vector<std::string> forbidden_names;
  /// Plans that need more workspace are excluded.
  std::int64_t most_workspace = std::numeric_limits<std::int64_t>::max();

  /// Queries plans for a GPU described in JSON, which need not be present. Zeros and the reason
  /// when no plan remains.
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

  /// Builds the first plan that works. False and the reason when there is none.
  bool build_for(cudnnHandle_t handle, std::string* reason) {
    fe::error_t status = choose_for(handle);
    if (status.is_good()) status = build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
    if (status.is_bad()) *reason = status.get_message();
    return status.is_good();
  }

  /// How many plans cuDNN offers, the excluded ones included; 0 and the reason when none is left.
  std::int64_t count_plans(cudnnHandle_t handle, std::string* reason) {
    fe::error_t status = choose_for(handle);
    if (status.is_bad()) *reason = status.get_message();
    return status.is_good() ? get_execution_plan_count() : 0;
  }

  /// Builds one of the plans that count_plans() counted. False if it is excluded or cannot be
  /// built.
  bool build_plan(std::int64_t index, std::string* name) {
    if (build_plan_at_index(index).is_bad() || get_plan_name_at_index(index, *name).is_bad())
      return false;
    plans.candidate = index;
    return true;
  }

  std::size_t needed_workspace() const {
    std::int64_t bytes = 0;
    fe::error_t status = get_workspace_size(bytes);
    PT_CHECK(status.is_good(), kDevice, "cuDNN did not report a workspace size: {}",
             status.get_message());
    return static_cast<std::size_t>(bytes);
  }

  void run_with(cudnnHandle_t handle, std::unordered_map<GraphTensor, void*>& tensors,
                void* workspace, const char* what) const {
    fe::error_t status = execute(handle, tensors, workspace);
    PT_CHECK(status.is_good(), kDevice, "cuDNN failed {}: {}", what, status.get_message());
  }

 private:
  fe::error_t choose_for(cudnnHandle_t handle) {
    fe::error_t status = validate();
    if (status.is_good()) status = build_operation_graph(handle);
    if (status.is_good()) status = choose();
    return status;
  }

  fe::error_t choose() {
    fe::error_t status = create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    if (status.is_bad()) return status;
    std::vector<fe::NumericalNote_t> notes = forbidden;
    notes.push_back(fe::NumericalNote_t::NONDETERMINISTIC);
    notes.push_back(fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION);
    deselect_numeric_notes(notes);
    if (!forbidden_names.empty()) deselect_engines(forbidden_names);
    deselect_workspace_greater_than(most_workspace);
    return check_support();
  }

  PlanCount count() {
    PlanCount out;
    out.offered = static_cast<int>(get_execution_plan_count());
    // Querying a plan excludes it if it needs too much workspace.
    for (int i = 0; i < out.offered; ++i) {
      if (plans.check_support_at_index(i).is_bad()) continue;
      std::string name;
      if (get_plan_name_at_index(i, name).is_good()) out.names.insert(name);
    }
    for (auto& config : plans.get_barred_engine_configs()) {  // those that remain
      ++out.kept;
      std::int64_t bytes = 0;
      if (fe::detail::get_workspace_size(config, bytes).is_good())
        out.workspace_bytes = std::max(out.workspace_bytes, bytes);
      out.notes.merge(notes_of(config->get_backend_descriptor()));
    }
    return out;
  }

  /// As cuDNN describes them.
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
    PT_CHECK(status == CUDNN_STATUS_SUCCESS, kDevice, "cuDNN did not describe its engines: {}",
             cudnnGetErrorString(status));
    return {notes.begin(), notes.begin() + found};
  }
};

}  // namespace pipetrain
