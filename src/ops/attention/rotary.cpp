// Rotary and the import of RotaryEmbedding.
#include "ops/attention/rotary.h"

#include "base/error.h"
#include "base/setting.h"
#include "ops/registry/all_ops.h"

namespace pipetrain::rotary {

Geometry geometry_of(const Attributes& attributes, const Shape& x, const Shape& cosine) {
  Geometry out;
  if (x.rank() == 4) {
    out.batch = x[0], out.heads = x[1], out.steps = x[2], out.width = x[3];
    out.step_stride = x[3];
    out.head_stride = x[2] * x[3];
  } else {
    const std::int64_t heads = attributes.integer("heads", 0);
    PT_CHECK(
        x.rank() == 3 && heads > 0 && x[2] % heads == 0, kModel,
        "RotaryEmbedding input must be (batch, heads, steps, width) or (batch, steps, {} heads "
        "x width), got {}",
        heads, x.text());
    out.batch = x[0], out.heads = heads, out.steps = x[1], out.width = x[2] / heads;
    out.step_stride = x[2];
    out.head_stride = out.width;
  }
  out.batch_stride = out.heads * out.steps * out.width;
  PT_CHECK(cosine.rank() == 3 && (cosine[0] == out.batch || cosine[0] == 1) &&
               cosine[1] == out.steps && 2 * cosine[2] <= out.width,
           kModel, "RotaryEmbedding of {} does not fit tables of shape {}", x.text(),
           cosine.text());
  out.pairs = cosine[2];
  out.table_batch_stride = cosine[0] == 1 ? 0 : cosine[1] * cosine[2];
  out.interleaved = attributes.flag("interleaved");
  out.inverse = attributes.flag("inverse");
  return out;
}

namespace {

void infer_rotary(InferContext& context) {
  const TensorType& x = context.inputs[0];
  PT_CHECK(is_float(x.dtype) && context.inputs[1].dtype == x.dtype &&
               context.inputs[1] == context.inputs[2],
           kModel, "RotaryEmbedding needs an input and two tables of one type, got {}, {} and {}",
           x.text(), context.inputs[1].text(), context.inputs[2].text());
  geometry_of(context.attributes, x.shape, context.inputs[1].shape);
  context.outputs = {x};
}

void differentiate_rotary(GradientContext& context) {
  PT_CHECK(
      !context.wants(1) && !context.wants(2), kModel,
      "training the cosine and sine tables of RotaryEmbedding is not supported; freeze them with "
      "{} NAME",
      setting("freeze"));
  Attributes attributes = context.attributes();
  attributes.set("inverse", std::int64_t{!attributes.flag("inverse")});
  context.set_input_gradient(
      0, context.builder().add("Rotary",
                               {context.output_gradient(), context.input(1), context.input(2)},
                               std::move(attributes)));
}

constexpr OpTraits kRotaryTraits = {KernelKind::kElementwise,
                                    {PrecisionRule::kFirst},
                                    LayoutRule::kRowMajor,
                                    {ChunkRule::kWhole},
                                    Fusion::kNever};

constexpr OpDef kRotaryOps[] = {
    {"Rotary", kPlain, kRotaryTraits, infer_rotary, differentiate_rotary, nullptr}};

void import_rotary(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  ValueId tables[2] = {context.input(1), context.input(2)};
  const std::int64_t dim = context.attributes().integer("rotary_embedding_dim", 0);
  for (ValueId& table : tables) {
    if (context.has_input(3)) {
      table = builder.add("Gather", {table, context.input(3)}, {{"axis", std::int64_t{0}}});
    }
    const Shape shape = builder.shape(table);
    PT_CHECK(shape.rank() == 3 && (dim == 0 || 2 * shape[2] == dim), kModel,
             "the tables of RotaryEmbedding must be (batch, steps, {}), got {}",
             dim == 0 ? std::string("width / 2") : fmt::format("{}", dim / 2), shape.text());
  }
  Attributes attributes = {{"interleaved", std::int64_t{context.attributes().flag("interleaved")}}};
  if (context.type(0).shape.rank() == 3) {
    attributes.set("heads", context.attributes().integer("num_heads", 0));
  }
  context.set_output(
      0, builder.add("Rotary", {context.input(0), tables[0], tables[1]}, std::move(attributes)));
}

constexpr ImportRule kRotaryImports[] = {{"RotaryEmbedding", import_rotary}};

}  // namespace
}  // namespace pipetrain::rotary

namespace pipetrain {

const OpFamily& rotary_family() {
  static const OpFamily family = {"rotary", rotary::kRotaryOps, rotary::kRotaryImports,
                                  rotary::reference_kernels(), rotary::cpu_kernels()};
  return family;
}

}  // namespace pipetrain
