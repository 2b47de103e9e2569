#include "ops/conv/onednn_convolution_cpu.h"

#include <omp.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "ops/conv/conv.h"
#include "ops/conv/weight_blocks_cpu.h"
#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/onednn_cpu.h"
#include "ops/kernel/vector8_cpu.h"
#include "ops/kernel/workspace.h"

namespace pipetrain {
namespace {

using dnnl::algorithm;
using dnnl::prop_kind;

/// Position p of a sequence is row p / d and column p % d of a feature map of d columns. There, a
/// convolution with dilation d and stride 1 has a window without gaps, if d divides the length and
/// the padding: oneDNN is up to twice as fast at it. Returns d; 0 where it is not done.
std::int64_t columns_of_sequence(const Window& window) {
  constexpr std::int64_t kLeast = 8;  // with fewer columns oneDNN is slower than with gaps
  if (window.size() != 1) return 0;
  const WindowAxis& axis = window[0];
  const bool divides = axis.input % axis.dilation == 0 && axis.pad_begin % axis.dilation == 0 &&
                       axis.pad_end % axis.dilation == 0;
  return axis.stride == 1 && axis.dilation >= kLeast && divides ? axis.dilation : 0;
}

/// oneDNN wants four dimensions at least: a sequence is a feature map of height 1, or of `columns`
/// columns where that is not 0.
Shape feature_map(const Shape& shape, std::int64_t columns) {
  if (shape.rank() != 3) return shape;
  if (columns > 0) return {shape[0], shape[1], shape[2] / columns, columns};
  return {shape[0], shape[1], 1, shape[2]};
}

/// The weights of a convolution between such feature maps.
Shape window_of(const Shape& w, std::int64_t columns) {
  if (w.rank() != 3) return w;
  return columns > 0 ? Shape{w[0], w[1], w[2], 1} : Shape{w[0], w[1], 1, w[2]};
}

/// A convolution in oneDNN's terms: descriptors with the format left open, and what the node's own
/// memory looks like.
struct Problem {
  dnnl::memory::desc x, w, b, y;  // format any; b is empty without bias
  dnnl::memory::desc own_x, own_w, own_b, own_y;
  dnnl::memory::dims strides, dilations, pad_begin, pad_end;
  Window window;
};

Shape grouped_weight(const ConvGeometry& geometry, const Shape& w, std::int64_t columns) {
  const Shape flat = window_of(w, columns);
  if (geometry.group == 1) return flat;
  std::vector<std::int64_t> dims{geometry.group, geometry.outputs};
  dims.insert(dims.end(), flat.begin() + 1, flat.end());
  return Shape(std::move(dims));
}

Problem make_problem(const KernelRequest& request, const TensorType& x, const TensorType& w,
                     const TensorType& y, bool bias) {
  const ConvGeometry geometry = conv_geometry(request.node.attributes, x.shape, w.shape);
  Problem out;
  const std::int64_t columns = columns_of_sequence(geometry.window);
  const Shape weight = grouped_weight(geometry, w.shape, columns);
  const Shape x_map = feature_map(x.shape, columns), y_map = feature_map(y.shape, columns);
  out.x = onednn_any(x_map, x.dtype);
  out.w = onednn_any(weight, w.dtype);
  out.y = onednn_any(y_map, y.dtype);
  out.own_x = onednn_desc({x.dtype, x_map, x.layout});
  out.own_w = onednn_row_major(weight, w.dtype);
  out.own_y = onednn_desc({y.dtype, y_map, y.layout});
  if (bias) out.b = out.own_b = onednn_row_major(Shape{w.shape[0]});
  Window window = geometry.window;
  if (columns > 0) {
    window[0].pad_begin /= columns;
    window[0].pad_end /= columns;
    window[0].dilation = 1;
    window.push_back({});
  } else if (window.size() == 1) {
    window.insert(window.begin(), WindowAxis{});
  }
  for (const WindowAxis& axis : window) {
    out.strides.push_back(axis.stride);
    out.dilations.push_back(axis.dilation - 1);
    out.pad_begin.push_back(axis.pad_begin);
    out.pad_end.push_back(axis.pad_end);
  }
  out.window = std::move(window);
  return out;
}

Problem forward_problem(const KernelRequest& request) {
  const bool bias = request.inputs.size() > 2 && request.inputs[2].dtype != DType::kUndefined;
  return make_problem(request, request.inputs[0], request.inputs[1], request.outputs[0], bias);
}
Problem input_problem(const KernelRequest& request) {
  return make_problem(request, request.outputs[0], request.inputs[1], request.inputs[0],
                      /*bias=*/false);
}
Problem weight_problem(const KernelRequest& request) {
  return make_problem(request, request.inputs[0], request.outputs[0], request.inputs[1],
                      request.outputs.size() > 1);
}

/// Sizes of a weight gradient that oneDNN leaves in square blocks of channels.
std::optional<WeightBlocks> weight_blocks(const KernelRequest& request,
                                          const dnnl::memory::desc& gradient) {
  using Tag = dnnl::memory::format_tag;
  const Shape& w = request.outputs[0].shape;
  const ConvGeometry geometry = conv_geometry(request.node.attributes, request.inputs[0].shape, w);
  const Shape flat = window_of(w, columns_of_sequence(geometry.window));
  const bool whole = w[0] % 8 == 0 && w[1] % 8 == 0;
  if (!whole || geometry.group != 1) return {};
  for (const std::int64_t block : {16, 8}) {
    const bool wide = block == 16, plane = flat.rank() == 4;
    const Tag tag = plane  ? wide ? Tag::ABcd16b16a : Tag::ABcd8b8a
                    : wide ? Tag::ABcde16b16a
                           : Tag::ABcde8b8a;
    if (gradient == dnnl::memory::desc(flat.dims(), dnnl::memory::data_type::f32, tag))
      return WeightBlocks{w[0], w[1], w.count(2, w.rank()), block};
  }
  return {};
}

/// Whether some window lies in the input as a whole.
bool has_whole_window(const WindowAxis& axis) {
  const std::int64_t first = (axis.pad_begin + axis.stride - 1) / axis.stride;
  return first < axis.output && axis.start(first) + axis.extent() <= axis.input;
}

/// oneDNN 2.6 computes wrong numbers in bfloat16, and writes beyond its memory: with AMX at strides
/// beyond 2, strides beyond the window, and strided volumes; in weight gradients where an axis with
/// a stride has no window without padding.
bool is_wrong(std::string_view implementation, const Window& window, bool sums_weights) {
  const auto any = [&](const auto& what) { return std::ranges::any_of(window, what); };
  if (implementation.find("amx") != std::string_view::npos) {
    const bool is_volume = window.size() == 3;
    return any([&](const WindowAxis& axis) {
      return axis.stride > 2 || axis.stride > axis.kernel || (is_volume && axis.stride > 1);
    });
  }
  if (!sums_weights || implementation.find("bf16") == std::string_view::npos) return false;
  return any([](const WindowAxis& axis) { return axis.stride > 1 && !has_whole_window(axis); });
}

/// The first of oneDNN's implementations that is right.
template <class Desc>
Desc right_one(Desc desc, const Problem& p, bool sums_weights = false) {
  while (is_wrong(desc.impl_info_str(), p.window, sums_weights)) {
    if (!desc.next_impl()) throw dnnl::error(dnnl_unimplemented, "no implementation is right");
  }
  return desc;
}

dnnl::convolution_forward::primitive_desc forward_desc(const Problem& p) {
  return right_one<dnnl::convolution_forward::primitive_desc>(
      {{prop_kind::forward_training, algorithm::convolution_direct, p.x, p.w, p.b, p.y, p.strides,
        p.dilations, p.pad_begin, p.pad_end},
       onednn_user_scratchpad(),
       onednn_engine()},
      p);
}

/// The forward that the gradients of oneDNN ask for: one without bias, and of weights of x's type.
dnnl::convolution_forward::primitive_desc hinted_forward_desc(const Problem& p) {
  Problem forward = p;
  forward.b = {};
  forward.w.data.data_type = forward.x.data.data_type;
  return forward_desc(forward);
}

dnnl::convolution_backward_data::primitive_desc input_desc(const Problem& p) {
  return right_one<dnnl::convolution_backward_data::primitive_desc>(
      {{algorithm::convolution_direct, p.x, p.w, p.y, p.strides, p.dilations, p.pad_begin,
        p.pad_end},
       onednn_user_scratchpad(),
       onednn_engine(),
       hinted_forward_desc(p)},
      p);
}

dnnl::convolution_backward_weights::primitive_desc weight_desc(const Problem& p) {
  return right_one<dnnl::convolution_backward_weights::primitive_desc>(
      {{algorithm::convolution_direct, p.x, p.w, p.b, p.y, p.strides, p.dilations, p.pad_begin,
        p.pad_end},
       onednn_user_scratchpad(),
       onednn_engine(),
       hinted_forward_desc(p)},
      p, /*sums_weights=*/true);
}

/// The sums of oneDNN lie in the workspace, in blocks of channels where its code wants that; they
/// are written, or added to what is there, on the way to row-major order.
class WeightGradient final : public AddingKernel {
 public:
  explicit WeightGradient(const KernelRequest& request)
      : bias_(request.outputs.size() > 1), threads_(omp_get_max_threads()) {
    const Problem p = weight_problem(request);
    const auto desc = weight_desc(p);
    const auto x = sequence_.convert(sequence_.input(0, p.own_x), desc.src_desc());
    const auto dy = sequence_.convert(sequence_.input(1, p.own_y), desc.diff_dst_desc());
    const auto blocked = weight_blocks(request, desc.diff_weights_desc());
    is_blocked_ = blocked.has_value();
    if (blocked) shape_ = *blocked;
    const bool direct = is_blocked_ || p.own_w == desc.diff_weights_desc();
    const auto dw = direct ? sequence_.output(0, desc.diff_weights_desc())
                           : sequence_.temporary(desc.diff_weights_desc());
    const dnnl::convolution_backward_weights primitive(desc);
    if (bias_) {
      const auto db = sequence_.output(1, p.own_b);
      sequence_.add(primitive, desc,
                    {{DNNL_ARG_SRC, x},
                     {DNNL_ARG_DIFF_DST, dy},
                     {DNNL_ARG_DIFF_WEIGHTS, dw},
                     {DNNL_ARG_DIFF_BIAS, db}});
    } else {
      sequence_.add(primitive, desc,
                    {{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_WEIGHTS, dw}});
    }
    if (!direct) sequence_.reorder(dw, sequence_.output(0, p.own_w));
    for (const TensorType& type : request.outputs) {
      const bool is_weight = places_.empty();
      const std::size_t bytes =
          is_weight && is_blocked_ ? desc.diff_weights_desc().get_size() : type.bytes();
      places_.push_back(bytes_);
      bytes_ += aligned_part(bytes);
      written_.push_back({type});
    }
  }

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    run(in, out, context, /*add=*/false);
  }
  void run_adding(std::span<const Tensor> in, std::span<const Tensor> out,
                  const RunContext& context) override {
    run(in, out, context, /*add=*/true);
  }
  std::size_t workspace_bytes() const override { return bytes_ + sequence_.workspace_bytes(); }

 private:
  void run(std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context,
           bool add) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool elsewhere = out[i].data && (add || (i == 0 && is_blocked_));
      written_[i].data = elsewhere ? context.workspace + places_[i] : out[i].data;
    }
    RunContext rest = context;
    rest.workspace += bytes_;
    sequence_.run(in, written_, rest);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!out[i].data || written_[i].data == out[i].data) continue;
      const auto* from = written_[i].as<float>();
      auto* to = out[i].as<float>();
      if (i == 0 && is_blocked_) {
        unblock_weights(shape_, from, add, to, threads_);
      } else {
        add_numbers(from, out[i].type.count(), to);
      }
    }
  }

  static void add_numbers(const float* __restrict from, std::int64_t count, float* __restrict to) {
    for (std::int64_t k = 0; k < count; ++k) to[k] += from[k];
  }

  bool bias_;
  int threads_;
  bool is_blocked_ = false;
  WeightBlocks shape_;
  PrimitiveSequence sequence_;
  std::vector<Tensor> written_;
  std::vector<std::size_t> places_;
  std::size_t bytes_ = 0;
};

/// What `ask` says; nothing (null, false) where oneDNN has no implementation.
template <class Ask>
auto where_implemented(Ask ask) -> decltype(ask()) {
  try {
    return ask();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return {};
    throw;
  }
}

/// The name of the implementation that oneDNN has for a request.
std::string_view implementation_of(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  // The names are constants of the library.
  if (op == "Conv") return forward_desc(forward_problem(request)).impl_info_str();
  if (op == "ConvInputGrad") return input_desc(input_problem(request)).impl_info_str();
  return weight_desc(weight_problem(request)).impl_info_str();
}

}  // namespace

std::unique_ptr<Kernel> make_onednn_forward(const KernelRequest& request) {
  return make_sequence_kernel([&](PrimitiveSequence& sequence) {
    const Problem p = forward_problem(request);
    const auto desc = forward_desc(p);
    const auto x = sequence.convert(sequence.input(0, p.own_x), desc.src_desc());
    const auto w = sequence.convert(sequence.input(1, p.own_w), desc.weights_desc());
    const bool direct_output = p.own_y == desc.dst_desc();
    const auto y =
        direct_output ? sequence.output(0, p.own_y) : sequence.temporary(desc.dst_desc());
    const dnnl::convolution_forward primitive(desc);
    if (!p.own_b.is_zero()) {
      const auto b = sequence.convert(sequence.input(2, p.own_b), desc.bias_desc());
      sequence.add(
          primitive, desc,
          {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_BIAS, b}, {DNNL_ARG_DST, y}});
    } else {
      sequence.add(primitive, desc, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
    }
    if (!direct_output) sequence.reorder(y, sequence.output(0, p.own_y));
  });
}

std::unique_ptr<Kernel> make_onednn_input_gradient(const KernelRequest& request) {
  return make_sequence_kernel([&](PrimitiveSequence& sequence) {
    const Problem p = input_problem(request);
    const auto desc = input_desc(p);
    const auto dy = sequence.convert(sequence.input(0, p.own_y), desc.diff_dst_desc());
    const auto w = sequence.convert(sequence.input(1, p.own_w), desc.weights_desc());
    const bool direct_output = p.own_x == desc.diff_src_desc();
    const auto dx =
        direct_output ? sequence.output(0, p.own_x) : sequence.temporary(desc.diff_src_desc());
    sequence.add(dnnl::convolution_backward_data(desc), desc,
                 {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_SRC, dx}});
    if (!direct_output) sequence.reorder(dx, sequence.output(0, p.own_x));
  });
}

std::unique_ptr<Kernel> make_onednn_weight_gradient(const KernelRequest& request) {
  return where_implemented(
      [&]() -> std::unique_ptr<Kernel> { return std::make_unique<WeightGradient>(request); });
}

bool onednn_weight_gradient_adds(const KernelRequest& request) {
  return where_implemented([&] {
    const auto desc = weight_desc(weight_problem(request));
    return weight_blocks(request, desc.diff_weights_desc()).has_value();
  });
}

bool onednn_has_vector_code(const KernelRequest& request) {
  if (request.inputs[0].dtype == DType::kBFloat16 && !has_fast_bfloat16_products()) return false;
  return where_implemented([&] {
    const std::string_view name = implementation_of(request);
    const bool grouped = request.node.attributes.integer("group", 1) > 1;
    const bool product_of_group = grouped && name.find("gemm") != std::string_view::npos;
    return !name.starts_with("ref") && !product_of_group;
  });
}

}  // namespace pipetrain
