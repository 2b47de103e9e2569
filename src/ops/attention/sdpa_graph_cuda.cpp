#include "ops/attention/sdpa_graph_cuda.h"

#include "ops/cuda/library_graph_cuda.h"

namespace pipetrain {

struct SdpaGraph::Content {
  SdpaShapes shapes;
  LibraryGraph graph;
  GraphTensor q, k, v, y, lse, dy, dq, dk, dv;

  GraphTensor input(const char* name, std::int64_t heads, std::int64_t steps,
                    const SdpaShapes::Steps& at) {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(name)
                            .set_dim({shapes.batch, heads, steps, shapes.width})
                            .set_stride({at.batch, at.head, at.step, 1}));
  }
  void output(const GraphTensor& tensor, std::int64_t heads, std::int64_t steps,
              const SdpaShapes::Steps& at) const {
    tensor->set_output(true)
        .set_dim({shapes.batch, heads, steps, shapes.width})
        .set_stride({at.batch, at.head, at.step, 1});
  }
  std::vector<std::int64_t> lse_strides() const {
    return {shapes.heads * shapes.queries, shapes.queries, 1, 1};
  }

  template <class Attributes>
  Attributes attributes() const {
    Attributes out;
    out.set_name("attention").set_attn_scale(shapes.scale);
    if (shapes.mask == SdpaShapes::Mask::kCausal) out.set_causal_mask(true);
    if (shapes.mask == SdpaShapes::Mask::kCausalLast) out.set_causal_mask_bottom_right(true);
    return out;
  }

  void describe(bool gradient, bool keeps_lse) {
    graph.set_io_data_type(shapes.half ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    q = input("q", shapes.heads, shapes.queries, shapes.q);
    k = input("k", shapes.key_heads, shapes.keys, shapes.k);
    v = input("v", shapes.key_heads, shapes.keys, shapes.v);
    if (!gradient) {
      const auto results = graph.sdpa(
          q, k, v, attributes<fe::graph::SDPA_attributes>().set_generate_stats(keeps_lse));
      y = results[0];
      output(y, shapes.heads, shapes.queries, shapes.y);
      if (keeps_lse) {
        lse = results[1];
        lse->set_output(true).set_data_type(fe::DataType_t::FLOAT);
        lse->set_dim({shapes.batch, shapes.heads, shapes.queries, 1}).set_stride(lse_strides());
      }
      return;
    }
    y = input("y", shapes.heads, shapes.queries, shapes.y);
    dy = input("dy", shapes.heads, shapes.queries, shapes.y);
    lse = graph.tensor(fe::graph::Tensor_attributes()
                           .set_name("lse")
                           .set_dim({shapes.batch, shapes.heads, shapes.queries, 1})
                           .set_stride(lse_strides())
                           .set_data_type(fe::DataType_t::FLOAT));
    const auto results = graph.sdpa_backward(
        q, k, v, y, dy, lse,
        attributes<fe::graph::SDPA_backward_attributes>().set_deterministic_algorithm(true));
    dq = results[0];
    dk = results[1];
    dv = results[2];
    output(dq, shapes.heads, shapes.queries, shapes.q);
    output(dk, shapes.key_heads, shapes.keys, shapes.k);
    output(dv, shapes.key_heads, shapes.keys, shapes.v);
  }
};

SdpaGraph::SdpaGraph(const SdpaShapes& shapes, bool gradient, bool keeps_lse)
    : content_(std::make_unique<Content>()) {
  content_->shapes = shapes;
  content_->describe(gradient, keeps_lse);
}

SdpaGraph::~SdpaGraph() = default;

PlanCount SdpaGraph::plans_for(const std::string& properties, std::string* reason) {
  return content_->graph.plans_for(properties, reason);
}
bool SdpaGraph::build(cudnnHandle_t handle, std::string* reason) {
  return content_->graph.build_for(handle, reason);
}
std::size_t SdpaGraph::workspace_bytes() const { return content_->graph.needed_workspace(); }

void SdpaGraph::run(cudnnHandle_t handle, const SdpaTensors& tensors, void* workspace) const {
  std::unordered_map<GraphTensor, void*> pack = {{content_->q, tensors.q},
                                                 {content_->k, tensors.k},
                                                 {content_->v, tensors.v},
                                                 {content_->y, tensors.y}};
  if (content_->lse) pack[content_->lse] = tensors.lse;
  if (content_->dq) {
    pack[content_->dy] = tensors.dy;
    pack[content_->dq] = tensors.dq;
    pack[content_->dk] = tensors.dk;
    pack[content_->dv] = tensors.dv;
  }
  content_->graph.run_with(handle, pack, workspace, "attention");
}

}  // namespace pipetrain
