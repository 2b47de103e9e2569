#include "ops/conv/conv_graph_cuda.h"

#include "ops/cuda/library_graph_cuda.h"

namespace pipetrain {
namespace {

using Sizes = std::vector<std::int64_t>;

/// With one spatial axis a second of one position is put in front.
ConvShapes two_axes(ConvShapes s) {
  if (s.x.size() > 3) return s;
  for (auto* dims : {&s.x, &s.w, &s.y}) dims->insert(dims->begin() + 2, 1);
  for (auto* zeros : {&s.pad_begin, &s.pad_end}) zeros->insert(zeros->begin(), 0);
  for (auto* ones : {&s.stride, &s.dilation}) ones->insert(ones->begin(), 1);
  return s;
}

}  // namespace

std::vector<std::string> inaccurate_plans(ConvPass pass, ConvPrecision numbers) {
  switch (pass) {
    case ConvPass::kForward:
      return {};
    case ConvPass::kInputGradient:
      if (numbers == ConvPrecision::kBFloat16) return {"eng63_k25=1"};
      if (numbers == ConvPrecision::kFloat16) return {"eng2_"};
      return {};
    case ConvPass::kWeightGradient:
      if (numbers == ConvPrecision::kBFloat16) return {"eng47_"};
      if (numbers == ConvPrecision::kFloat16) return {"eng61_"};
      return {"eng17_"};
  }
  return {};
}

Sizes ConvShapes::strides_of(const Sizes& dims) const {
  Sizes strides(dims.size(), 1);
  std::int64_t inner = channels_last ? dims[1] : 1;
  for (std::size_t d = dims.size(); d-- > 0;) {
    if (channels_last && d == 1) continue;
    strides[d] = inner;
    inner *= dims[d];
  }
  return strides;
}

struct ConvGraph::Content {
  ConvPass pass;
  ConvShapes shapes;
  ConvPlanChoice choice;
  LibraryGraph graph;
  GraphTensor first, second, bias, out;

  Sizes strides(const Sizes& dims) const { return shapes.strides_of(dims); }

  GraphTensor input(const char* name, const Sizes& dims) {
    return graph.tensor(
        fe::graph::Tensor_attributes().set_name(name).set_dim(dims).set_stride(strides(dims)));
  }

  fe::DataType_t operand_type() const {
    return shapes.numbers == ConvPrecision::kBFloat16  ? fe::DataType_t::BFLOAT16
           : shapes.numbers == ConvPrecision::kFloat16 ? fe::DataType_t::HALF
                                                       : fe::DataType_t::FLOAT;
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
    graph.set_io_data_type(operand_type())
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
    out->set_dim(*result).set_stride(strides(*result));
    if (shapes.bias && pass == ConvPass::kForward) {
      std::vector<std::int64_t> dims(shapes.y.size(), 1);
      dims[1] = shapes.y[1];
      bias = input("bias", dims);
      if (shapes.float_bias) bias->set_data_type(fe::DataType_t::FLOAT);
      const auto add = fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD);
      out = graph.pointwise(out, bias, add);
      out->set_dim(*result).set_stride(strides(*result));
    }
    out->set_output(true);
    if (shapes.numbers == ConvPrecision::kFloat)
      graph.forbidden = {fe::NumericalNote_t::TENSOR_CORE, fe::NumericalNote_t::DOWN_CONVERT_INPUTS,
                         fe::NumericalNote_t::FFT};
    if (choice == ConvPlanChoice::kAccurate) {
      // The transforms of Winograd's algorithm magnify rounding; for narrow types they round, too.
      graph.forbidden.insert(
          graph.forbidden.end(),
          {fe::NumericalNote_t::WINOGRAD, fe::NumericalNote_t::WINOGRAD_TILE_4x4,
           fe::NumericalNote_t::WINOGRAD_TILE_6x6, fe::NumericalNote_t::WINOGRAD_TILE_13x13});
      graph.forbidden_names = inaccurate_plans(pass, shapes.numbers);
    }
    if (shapes.float_result) out->set_data_type(fe::DataType_t::FLOAT);
  }
};

ConvGraph::ConvGraph(ConvPass pass, const ConvShapes& shapes, std::int64_t most_workspace,
                     ConvPlanChoice choice)
    : content_(std::make_unique<Content>()) {
  content_->graph.most_workspace = most_workspace;
  content_->pass = pass;
  content_->choice = choice;
  content_->shapes = two_axes(shapes);
  content_->describe();
}

ConvGraph::~ConvGraph() = default;

PlanCount ConvGraph::plans_for(const std::string& properties, std::string* reason) {
  return content_->graph.plans_for(properties, reason);
}
bool ConvGraph::build(cudnnHandle_t handle, std::string* reason) {
  return content_->graph.build_for(handle, reason);
}
std::int64_t ConvGraph::count_plans(cudnnHandle_t handle, std::string* reason) {
  return content_->graph.count_plans(handle, reason);
}
bool ConvGraph::build_plan(std::int64_t index, std::string* name) {
  return content_->graph.build_plan(index, name);
}
std::size_t ConvGraph::workspace_bytes() const { return content_->graph.needed_workspace(); }

void ConvGraph::run(cudnnHandle_t handle, void* first, void* second, void* bias, void* out,
                    void* workspace) const {
  std::unordered_map<GraphTensor, void*> pack = {
      {content_->first, first}, {content_->second, second}, {content_->out, out}};
  if (content_->bias) pack[content_->bias] = bias;
  content_->graph.run_with(handle, pack, workspace, "a convolution");
}

}  // namespace pipetrain
