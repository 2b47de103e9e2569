#include "ops/norm/norm_graph_cuda.h"

#include "ops/cuda/library_graph_cuda.h"

namespace pipetrain {
namespace {

using Sizes = std::vector<std::int64_t>;

/// Row-major strides.
Sizes steps_of(const Sizes& sizes) {
  Sizes steps(sizes.size(), 1);
  for (std::size_t d = sizes.size(); d-- > 1;) steps[d - 1] = steps[d] * sizes[d];
  return steps;
}

}  // namespace

struct NormGraph::Content {
  NormShapes shapes;
  bool states_sizes = true;  // states the sizes of results; else cuDNN infers them
  LibraryGraph graph;
  GraphTensor x, scale, bias, y, mean, inverse, dy, dx, dscale, dbias;

  Sizes all() const { return {shapes.images, shapes.channels, shapes.positions, 1}; }
  Sizes by_channel() const { return {1, shapes.channels, 1, 1}; }

  GraphTensor input(const char* name, const Sizes& sizes) {
    return graph.tensor(
        fe::graph::Tensor_attributes().set_name(name).set_dim(sizes).set_stride(steps_of(sizes)));
  }
  GraphTensor parameter(const char* name, const Sizes& sizes) {
    GraphTensor tensor = input(name, sizes);
    tensor->set_data_type(fe::DataType_t::FLOAT);
    return tensor;
  }
  GraphTensor result(const GraphTensor& tensor, const Sizes& sizes, bool is_float) const {
    if (!tensor) return tensor;
    tensor->set_output(true);
    if (states_sizes) tensor->set_dim(sizes).set_stride(steps_of(sizes));
    if (is_float) tensor->set_data_type(fe::DataType_t::FLOAT);
    return tensor;
  }

  fe::DataType_t stored() const {
    return shapes.numbers == NormShapes::Precision::kBFloat16  ? fe::DataType_t::BFLOAT16
           : shapes.numbers == NormShapes::Precision::kFloat16 ? fe::DataType_t::HALF
                                                               : fe::DataType_t::FLOAT;
  }

  /// An intermediate tensor of the graph.
  GraphTensor between(const GraphTensor& tensor) const {
    if (states_sizes) tensor->set_dim(all()).set_stride(steps_of(all()));
    return tensor;
  }

  void describe() {
    graph.set_io_data_type(stored())
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (shapes.numbers == NormShapes::Precision::kFloat)
      graph.forbidden = {fe::NumericalNote_t::TENSOR_CORE,
                         fe::NumericalNote_t::DOWN_CONVERT_INPUTS};
    x = input("x", all());
    scale = parameter("scale", by_channel());
    if (shapes.gradient) {
      describe_gradient();
    } else {
      describe_forward();
    }
  }

  void describe_forward() {
    GraphTensor epsilon = graph.tensor(shapes.epsilon);
    bias = parameter("bias", by_channel());
    auto results =
        graph.batchnorm(x, scale, bias, fe::graph::Batchnorm_attributes().set_epsilon(epsilon));
    if (shapes.relu) {
      results[0] = graph.pointwise(between(results[0]), fe::graph::Pointwise_attributes().set_mode(
                                                            fe::PointwiseMode_t::RELU_FWD));
    }
    y = result(results[0], all(), false);
    mean = result(results[1], by_channel(), true);
    inverse = result(results[2], by_channel(), true);
  }

  void describe_gradient() {
    dy = input("dy", all());
    inverse = parameter("inverse", by_channel());
    mean = parameter("mean", by_channel());
    const auto results = graph.batchnorm_backward(
        dy, x, scale,
        fe::graph::Batchnorm_backward_attributes().set_saved_mean_and_inv_variance(mean, inverse));
    dx = result(results[0], all(), false);
    dscale = result(results[1], by_channel(), true);
    dbias = result(results[2], by_channel(), true);
  }
};

NormGraph::NormGraph(const NormShapes& shapes) : content_(std::make_unique<Content>()) {
  content_->shapes = shapes;
  content_->describe();
}

NormGraph::~NormGraph() = default;

PlanCount NormGraph::plans_for(const std::string& properties, std::string* reason) {
  return content_->graph.plans_for(properties, reason);
}
bool NormGraph::build(cudnnHandle_t handle, std::string* reason) {
  return content_->graph.build_for(handle, reason);
}
std::size_t NormGraph::workspace_bytes() const { return content_->graph.needed_workspace(); }

void NormGraph::run(cudnnHandle_t handle, const NormTensors& tensors, void* workspace) const {
  const Content& c = *content_;
  std::unordered_map<GraphTensor, void*> pack;
  const auto give = [&](const GraphTensor& tensor, void* data) {
    if (tensor) pack[tensor] = data;
  };
  give(c.x, tensors.x);
  give(c.scale, tensors.scale);
  give(c.bias, tensors.bias);
  give(c.y, tensors.y);
  give(c.mean, tensors.mean);
  give(c.inverse, tensors.inverse);
  give(c.dy, tensors.dy);
  give(c.dx, tensors.dx);
  give(c.dscale, tensors.dscale);
  give(c.dbias, tensors.dbias);
  c.graph.run_with(handle, pack, workspace, "a normalization");
}

bool NormGraph::infers_sizes(const NormShapes& shapes, std::string* reason) {
  Content content;
  content.shapes = shapes;
  content.states_sizes = false;
  content.describe();
  fe::error_t status = content.graph.validate();
  if (status.is_bad()) {
    *reason = status.get_message();
    return false;
  }
  const auto differs = [&](const char* name, const GraphTensor& tensor, const Sizes& sizes) {
    if (!tensor || tensor->get_dim() == sizes) return false;
    *reason = name;
    return true;
  };
  return !differs("y", content.y, content.all()) && !differs("dx", content.dx, content.all()) &&
         !differs("mean", content.mean, content.by_channel()) &&
         !differs("inverse", content.inverse, content.by_channel()) &&
         !differs("dscale", content.dscale, content.by_channel()) &&
         !differs("dbias", content.dbias, content.by_channel());
}

}  // namespace pipetrain
