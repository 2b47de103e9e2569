// MatMul, its gradient, and the imports that become it.
#include "ops/matmul/matmul.h"

#include <algorithm>

#include "base/error.h"
#include "ops/matmul/einsum.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

Shape batch_of(const Shape& shape) {
  return Shape(std::vector<std::int64_t>(shape.begin(), shape.end() - 2));
}

/// Offset of each matrix of a broadcast batch, in elements: row-major order over `batch`.
std::vector<std::int64_t> matrix_offsets(const Shape& operand, const Shape& batch) {
  const std::size_t missing = batch.rank() - (operand.rank() - 2);
  const std::vector<std::int64_t> operand_strides = operand.strides();
  std::vector<std::int64_t> strides(batch.rank(), 0);
  for (std::size_t axis = missing; axis < batch.rank(); ++axis) {
    if (operand[axis - missing] != 1) strides[axis] = operand_strides[axis - missing];
  }
  std::vector<std::int64_t> offsets = {0};
  for (std::size_t axis = 0; axis < batch.rank(); ++axis) {
    std::vector<std::int64_t> next;
    next.reserve(offsets.size() * static_cast<std::size_t>(batch[axis]));
    for (const std::int64_t offset : offsets) {
      for (std::int64_t i = 0; i < batch[axis]; ++i) next.push_back(offset + i * strides[axis]);
    }
    offsets = std::move(next);
  }
  return offsets;
}

/// Whether all products read one b and the rows of a are contiguous.
bool is_one_product(const MatMulPlan& plan) {
  if (plan.trans_a) return false;
  for (std::int64_t i = 0; i < plan.products(); ++i) {
    const auto index = static_cast<std::size_t>(i);
    if (plan.b_offsets[index] != 0) return false;
    if (plan.a_offsets[index] != i * plan.m * plan.k) return false;
  }
  return true;
}

}  // namespace

MatMulGeometry matmul_geometry(const Attributes& attributes, const Shape& a, const Shape& b) {
  PT_CHECK(a.rank() >= 2 && b.rank() >= 2, kModel,
           "MatMul operands must have at least 2 axes, got {} and {}", a.text(), b.text());
  MatMulGeometry out;
  out.trans_a = attributes.flag("trans_a");
  out.trans_b = attributes.flag("trans_b");
  const std::int64_t a_rows = a[a.rank() - 2];
  const std::int64_t a_columns = a[a.rank() - 1];
  const std::int64_t b_rows = b[b.rank() - 2];
  const std::int64_t b_columns = b[b.rank() - 1];
  out.m = out.trans_a ? a_columns : a_rows;
  out.k = out.trans_a ? a_rows : a_columns;
  out.n = out.trans_b ? b_rows : b_columns;
  const std::int64_t b_k = out.trans_b ? b_columns : b_rows;
  PT_CHECK(out.k == b_k, kModel,
           "MatMul operands {}{} and {}{} do not match: the inner dimensions are {} and {}",
           a.text(), out.trans_a ? " (transposed)" : "", b.text(),
           out.trans_b ? " (transposed)" : "", out.k, b_k);
  const Shape batch = broadcast(batch_of(a), batch_of(b));
  std::vector<std::int64_t> output = batch.dims();
  output.push_back(out.m);
  output.push_back(out.n);
  out.output = Shape(std::move(output));
  return out;
}

MatMulPlan matmul_plan(const KernelRequest& request) {
  const Shape& a = request.inputs[0].shape;
  const Shape& b = request.inputs[1].shape;
  const MatMulGeometry geometry = matmul_geometry(request.node.attributes, a, b);
  MatMulPlan out{geometry.trans_a, geometry.trans_b, geometry.m, geometry.n, geometry.k, {}, {}};
  if (geometry.output.count() == 0) return out;
  const Shape batch = batch_of(geometry.output);
  out.a_offsets = matrix_offsets(a, batch);
  out.b_offsets = matrix_offsets(b, batch);
  if (is_one_product(out)) {
    out.m *= out.products();
    out.a_offsets.resize(1);
    out.b_offsets.resize(1);
  }
  return out;
}

bool takes_padded_rows(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  if (op != "MatMul" && op != "MatMulSums") return false;
  const auto lies_in_rows = [](const TensorType& type) {
    return type.layout == Layout::kRowMajor || type.layout == Layout::kPaddedRows;
  };
  return std::all_of(request.inputs.begin(), request.inputs.end(), lies_in_rows) &&
         std::all_of(request.outputs.begin(), request.outputs.end(), lies_in_rows) &&
         request.inputs[0].shape.rank() >= 2 && request.inputs[1].shape.rank() >= 2 &&
         matmul_plan(request).products() == 1;
}

namespace {

void infer_matmul(InferContext& context) {
  const TensorType& a = context.inputs[0];
  const TensorType& b = context.inputs[1];
  PT_CHECK(a.dtype == b.dtype, kModel, "MatMul operands must have one type, got {} and {}",
           a.text(), b.text());
  const MatMulGeometry geometry = matmul_geometry(context.attributes, a.shape, b.shape);
  if (context.inputs.size() > 2 && context.inputs[2].dtype != DType::kUndefined) {
    PT_CHECK(context.inputs[2] == (TensorType{a.dtype, Shape{geometry.n}}), kModel,
             "MatMul bias must be {} ({}), got {}", name_of(a.dtype), geometry.n,
             context.inputs[2].text());
  }
  context.outputs = {{a.dtype, geometry.output}};
}

Attributes transposes(bool trans_a, bool trans_b) {
  return {{"trans_a", std::int64_t{trans_a}}, {"trans_b", std::int64_t{trans_b}}};
}

/// (batch…, R, C) as (batch × R, C).
ValueId as_rows(GraphBuilder& builder, ValueId x) {
  const Shape shape = builder.shape(x);
  const std::size_t last = shape.rank() - 1;
  return builder.reshape(x, Shape{shape.count(0, last), shape[last]});
}

void differentiate_matmul(GradientContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId dy = context.output_gradient();
  const ValueId a = context.input(0);
  const ValueId b = context.input(1);
  const bool trans_a = context.attributes().flag("trans_a");
  const bool trans_b = context.attributes().flag("trans_b");
  const Shape a_shape = builder.shape(a);
  const Shape b_shape = builder.shape(b);
  const auto product = [&](ValueId x, ValueId y, bool trans_x, bool trans_y) {
    Attributes attributes = transposes(trans_x, trans_y);
    if (context.attributes().flag("keep_float")) attributes.set("keep_float", std::int64_t{1});
    return builder.add("MatMul", {x, y}, std::move(attributes));
  };
  if (context.wants(0)) {
    const ValueId da = trans_a ? product(b, dy, trans_b, true) : product(dy, b, false, !trans_b);
    context.set_input_gradient(0, builder.sum_to(da, a_shape));
  }
  if (context.wants(1)) {
    // If all rows share one b, its gradient is one product that also sums over the batch.
    const bool one_b = b_shape.rank() == 2 && !trans_a && a_shape.rank() > 2;
    const ValueId x = one_b ? as_rows(builder, a) : a;
    const ValueId d = one_b ? as_rows(builder, dy) : dy;
    const ValueId db = trans_b ? product(d, x, true, trans_a) : product(x, d, !trans_a, false);
    context.set_input_gradient(1, builder.sum_to(db, b_shape));
  }
  if (context.input_count() > 2 && context.input(2) && context.wants(2)) {
    context.set_input_gradient(2, builder.add("ReduceSum", {as_rows(builder, dy)},
                                              {{"axes", Ints{0}}, {"keepdims", std::int64_t{0}}}));
  }
}

Cost matmul_cost(const Attributes& attributes, std::span<const TensorType> inputs,
                 std::span<const TensorType>) {
  const MatMulGeometry geometry = matmul_geometry(attributes, inputs[0].shape, inputs[1].shape);
  return {2.0 * static_cast<double>(geometry.output.count()) * static_cast<double>(geometry.k)};
}

bool is_packed(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16; }

void infer_pack(InferContext& context) {
  const TensorType& b = context.inputs[0];
  const auto to = static_cast<DType>(
      context.attributes.integer("to", static_cast<std::int64_t>(DType::kFloat32)));
  PT_CHECK(b.shape.rank() == 2 && is_packed(to) && (b.dtype == DType::kFloat32 || b.dtype == to),
           kModel, "PackMatrix cannot make {} of {}", name_of(to), b.text());
  const bool trans_b = context.attributes.flag("trans_b");
  context.outputs = {
      {to, Shape{packed_matrix_elements(to, b.shape[trans_b ? 0 : 1], b.shape[trans_b ? 1 : 0])}}};
}

void infer_packed(InferContext& context) {
  const TensorType& a = context.inputs[0];
  const std::int64_t n = context.attributes.integer("n");
  PT_CHECK(is_packed(a.dtype) && a.shape.rank() >= 2, kModel,
           "MatMulPacked needs rows of floats or bfloat16, got {}", a.text());
  std::vector<std::int64_t> dims = a.shape.dims();
  const bool transposed = context.attributes.flag("transposed");
  const std::int64_t k = dims.back();
  const TensorType packed{
      a.dtype, Shape{packed_matrix_elements(a.dtype, transposed ? k : n, transposed ? n : k)}};
  PT_CHECK(context.inputs[1] == packed, kModel,
           "MatMulPacked of {} and {} columns does not fit a packed {}", a.text(), n,
           context.inputs[1].text());
  dims.back() = n;
  context.outputs = {{a.dtype, Shape(std::move(dims))}};
}

Cost packed_cost(const Attributes& attributes, std::span<const TensorType> inputs,
                 std::span<const TensorType>) {
  return {2.0 * static_cast<double>(inputs[0].shape.count()) *
          static_cast<double>(attributes.integer("n"))};
}

// --- import ---

/// An operand of MatMul: a Transpose of its last two axes becomes a flag.
struct Factor {
  ValueId value;
  bool transposed = false;
};

Factor without_transpose(GraphBuilder& builder, ValueId value) {
  const Graph& graph = builder.graph();
  const NodeId producer = graph[value].producer;
  if (!producer || graph[producer].op->name != "Transpose") return {value, false};
  const Ints perm = graph[producer].attributes.ints("perm");
  if (perm.size() < 2) return {value, false};
  for (std::size_t axis = 0; axis < perm.size(); ++axis) {
    const std::size_t swapped = axis + 2 < perm.size() ? axis : 2 * perm.size() - 3 - axis;
    if (perm[axis] != static_cast<std::int64_t>(swapped)) return {value, false};
  }
  return {graph[producer].inputs[0], true};
}

void import_matmul(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Shape a_shape = context.type(0).shape;
  const Shape b_shape = context.type(1).shape;
  PT_CHECK(a_shape.rank() >= 1 && b_shape.rank() >= 1, kModel,
           "MatMul operands must not be scalars, got {} and {}", a_shape.text(), b_shape.text());
  // A vector becomes a row on the left and a column on the right; the added axis is removed
  // afterwards.
  Factor a{context.input(0)};
  Factor b{context.input(1)};
  if (a_shape.rank() == 1) {
    a.value = builder.reshape(a.value, Shape{1, a_shape[0]});
  } else {
    a = without_transpose(builder, a.value);
  }
  if (b_shape.rank() == 1) {
    b.value = builder.reshape(b.value, Shape{b_shape[0], 1});
  } else {
    b = without_transpose(builder, b.value);
  }
  ValueId y = builder.add("MatMul", {a.value, b.value}, transposes(a.transposed, b.transposed));
  std::vector<std::int64_t> dims = builder.shape(y).dims();
  if (b_shape.rank() == 1) dims.pop_back();
  if (a_shape.rank() == 1) dims.erase(dims.end() - (b_shape.rank() == 1 ? 1 : 2));
  y = builder.reshape(y, Shape(std::move(dims)));
  context.set_output(0, y);
}

/// c as the bias of a product with n columns: shape (n) or (1, n).
bool is_row(const Shape& c, std::int64_t n) { return c == Shape{n} || c == Shape{1, n}; }

ValueId scaled(GraphBuilder& builder, ValueId x, double factor) {
  if (factor == 1.0) return x;
  return builder.add("Mul", {x, builder.scalar(factor, builder.type(x).dtype)});
}

void import_gemm(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const double alpha = context.attributes().real("alpha", 1.0);
  const double beta = context.attributes().real("beta", 1.0);
  PT_CHECK(context.type(0).shape.rank() == 2 && context.type(1).shape.rank() == 2, kModel,
           "Gemm operands must be matrices, got {} and {}", context.type(0).shape.text(),
           context.type(1).shape.text());
  const Factor a = without_transpose(builder, context.input(0));
  const Factor b = without_transpose(builder, context.input(1));
  const bool trans_a = context.attributes().flag("transA") != a.transposed;
  const bool trans_b = context.attributes().flag("transB") != b.transposed;
  const Shape b_shape = builder.shape(b.value);
  const std::int64_t n = b_shape[trans_b ? 0 : 1];
  const bool has_c = context.has_input(2) && beta != 0.0;
  if (has_c && alpha == 1.0 && beta == 1.0 && is_row(context.type(2).shape, n)) {
    const ValueId bias = builder.reshape(context.input(2), Shape{n});
    context.set_output(
        0, builder.add("MatMul", {a.value, b.value, bias}, transposes(trans_a, trans_b)));
    return;
  }
  ValueId y = builder.add("MatMul", {a.value, b.value}, transposes(trans_a, trans_b));
  y = scaled(builder, y, alpha);
  if (has_c) y = builder.add("Add", {y, scaled(builder, context.input(2), beta)});
  context.set_output(0, y);
}

constexpr OpTraits kMatMulTraits = {KernelKind::kProduct,
                                    {PrecisionRule::kProduct, {0, 1}, {0}},
                                    LayoutRule::kRowMajor,
                                    {ChunkRule::kWhole},
                                    Fusion::kNever};
constexpr OpTraits kMatMulPackedTraits = {KernelKind::kProduct,
                                          {PrecisionRule::kFloat},
                                          LayoutRule::kRowMajor,
                                          {ChunkRule::kWhole},
                                          Fusion::kNever};
constexpr OpTraits kPackMatrixTraits = {KernelKind::kReorder,
                                        {PrecisionRule::kFloat},
                                        LayoutRule::kRowMajor,
                                        {ChunkRule::kWhole},
                                        Fusion::kNever};

constexpr OpDef kMatmulOps[] = {
    {"MatMul", kPlain, kMatMulTraits, infer_matmul, differentiate_matmul, matmul_cost},
    {"MatMulPacked", kPlain, kMatMulPackedTraits, infer_packed, nullptr, packed_cost},
    {"PackMatrix", kPlain, kPackMatrixTraits, infer_pack, nullptr, nullptr},
};
constexpr ImportRule kMatmulImports[] = {
    {"Einsum", import_einsum},
    {"Gemm", import_gemm},
    {"MatMul", import_matmul},
};

}  // namespace

const OpFamily& matmul_family() {
  static const OpFamily family = {"matmul",
                                  kMatmulOps,
                                  kMatmulImports,
                                  matmul_reference_kernels(),
                                  matmul_cpu_kernels(),
                                  [](Backend backend, const KernelRequest& request) {
                                    return backend == Backend::kCpu && multiplies_bfloat16(request);
                                  }};
  return family;
}

}  // namespace pipetrain
