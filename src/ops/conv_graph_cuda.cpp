#include "ops/conv_graph_cuda.h"

#include <cudnn_frontend.h>

#include <unordered_map>

#include "base/error.h"

namespace pipetrain {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& dims) {
  std::vector<std::int64_t> strides(dims.size(), 1);
  for (std::size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];
  return strides;
}

/// With one spatial axis a second of one position is put in front.
ConvShapes two_axes(ConvShapes s) {
  if (s.x.size() > 3) return s;
  for (auto* dims : {&s.x, &s.w, &s.y}) dims->insert(dims->begin() + 2, 1);
  for (auto* zeros : {&s.pad_begin, &s.pad_end}) zeros->insert(zeros->begin(), 0);
  for (auto* ones : {&s.stride, &s.dilation}) ones->insert(ones->begin(), 1);
  return s;
}

}  // namespace

struct ConvGraph::Content {
  ConvPass pass;
  ConvShapes shapes;
  fe::graph::Graph graph;
  Tensor first, second, bias, out;

  Tensor input(const char* name, const std::vector<std::int64_t>& dims) {
    return graph.tensor(
        fe::graph::Tensor_attributes().set_name(name).set_dim(dims).set_stride(strides_of(dims)));
  }

  template <class Attributes>
  Attributes windows() const {
    return Attributes()
        .set_pre_padding(shapes.pad_begin)
        .set_post_padding(shapes.pad_end)
        .set_stride(shapes.stride)
        .set_dilation(shapes.dilation);
  }

  void describe() {
    graph.set_io_data_type(fe::DataType_t::FLOAT)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const std::vector<std::int64_t>* result = nullptr;
    switch (pass) {
      case ConvPass::kForward:
        first = input("x", shapes.x);
        second = input("w", shapes.w);
        out = graph.conv_fprop(first, second, windows<fe::graph::Conv_fprop_attributes>());
        result = &shapes.y;
        break;
      case ConvPass::kInputGradient:
        first = input("dy", shapes.y);
        second = input("w", shapes.w);
        out = graph.conv_dgrad(first, second, windows<fe::graph::Conv_dgrad_attributes>());
        result = &shapes.x;
        break;
      case ConvPass::kWeightGradient:
        first = input("dy", shapes.y);
        second = input("x", shapes.x);
        out = graph.conv_wgrad(first, second, windows<fe::graph::Conv_wgrad_attributes>());
        result = &shapes.w;
        break;
    }
    out->set_dim(*result).set_stride(strides_of(*result));
    if (shapes.bias && pass == ConvPass::kForward) {
      std::vector<std::int64_t> dims(shapes.y.size(), 1);
      dims[1] = shapes.y[1];
      bias = input("bias", dims);
      const auto add = fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD);
      out = graph.pointwise(out, bias, add);
      out->set_dim(*result).set_stride(strides_of(*result));
    }
    out->set_output(true);
  }

  /// Up to the plans that the library offers for the device.
  fe::error_t plan() {
    fe::error_t status = graph.validate();
    if (status.is_good()) status = graph.build_operation_graph();
    if (status.is_good())
      status = graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    if (status.is_bad()) return status;
    restrict();
    return graph.check_support();
  }

  /// Strict float32, and the same bits every time.
  void restrict() {
    graph.deselect_numeric_notes({fe::NumericalNote_t::TENSOR_CORE,
                                  fe::NumericalNote_t::DOWN_CONVERT_INPUTS,
                                  fe::NumericalNote_t::NONDETERMINISTIC});
  }
};

ConvGraph::ConvGraph(ConvPass pass, const ConvShapes& shapes)
    : content_(std::make_unique<Content>()) {
  content_->pass = pass;
  content_->shapes = two_axes(shapes);
  content_->describe();
}

ConvGraph::~ConvGraph() = default;

int ConvGraph::plans_for(const std::string& properties, std::string* reason) {
  auto device = std::make_shared<fe::DeviceProperties>();
  fe::error_t status = device->deserialize({properties.begin(), properties.end()});
  if (status.is_good()) {
    content_->graph.set_device_properties(device);
    status = content_->plan();
  }
  if (status.is_good()) return static_cast<int>(content_->graph.get_execution_plan_count());
  *reason = status.get_message();
  return 0;
}

bool ConvGraph::build(cudnnHandle_t handle, std::string* reason) {
  fe::graph::Graph& graph = content_->graph;
  fe::error_t status = graph.validate();
  if (status.is_good()) status = graph.build_operation_graph(handle);
  if (status.is_good())
    status = graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
  if (status.is_good()) {
    content_->restrict();
    status = graph.check_support();
  }
  if (status.is_good()) status = graph.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
  if (status.is_bad()) *reason = status.get_message();
  return status.is_good();
}

std::size_t ConvGraph::workspace_bytes() const {
  std::int64_t bytes = 0;
  fe::error_t status = content_->graph.get_workspace_size(bytes);
  PT_CHECK(status.is_good(), kDevice, "cuDNN tells no workspace: {}", status.get_message());
  return static_cast<std::size_t>(bytes);
}

void ConvGraph::run(cudnnHandle_t handle, void* first, void* second, void* bias, void* out,
                    void* workspace) const {
  std::unordered_map<Tensor, void*> pack = {
      {content_->first, first}, {content_->second, second}, {content_->out, out}};
  if (content_->bias) pack[content_->bias] = bias;
  fe::error_t status = content_->graph.execute(handle, pack, workspace);
  PT_CHECK(status.is_good(), kDevice, "cuDNN failed a convolution: {}", status.get_message());
}

}  // namespace pipetrain
