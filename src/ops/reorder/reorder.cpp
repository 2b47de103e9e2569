// Reorder{layout}(x) -> y: y is x in the layout numbered `layout`. Inserted at the edges of a
// channel-blocked region.
#include "ops/reorder/reorder.h"

#include <algorithm>

#include "base/error.h"
#include "ops/kernel/channel_block.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {

namespace {

void infer(InferContext& context) {
  const TensorType& x = context.inputs[0];
  const std::int64_t number = context.attributes.integer("layout");
  PT_CHECK(number >= 0 && number <= static_cast<std::int64_t>(Layout::kChannelsLast), kModel,
           "Reorder has no layout {}", number);
  const auto layout = static_cast<Layout>(number);
  const TensorType y{x.dtype, x.shape, layout};
  PT_CHECK(layout != Layout::kChannelsLast || x.shape.rank() == 4, kModel,
           "Reorder to channels last needs (N, C, H, W), got {}", x.text());
  PT_CHECK(layout == Layout::kRowMajor || layout == Layout::kChannelsLast ||
               fills_blocks(x.shape, channel_block(y)),
           kModel, "Reorder to blocks of {} channels needs (N, C, …) with whole blocks, got {}",
           channel_block(y), x.text());
  context.outputs = {y};
}

void differentiate_reorder(GradientContext& context) {
  const auto layout = static_cast<std::int64_t>(context.input_type(0).layout);
  context.set_input_gradient(
      0, context.builder().add("Reorder", {context.output_gradient()}, {{"layout", layout}}));
}

constexpr OpTraits kReorderTraits = {KernelKind::kReorder,
                                     {PrecisionRule::kFirst},
                                     LayoutRule::kRowMajor,
                                     {ChunkRule::kCopies},
                                     Fusion::kNever};

constexpr OpDef kReorderOps[] = {
    {"Reorder", kPlain, kReorderTraits, infer, differentiate_reorder, nullptr}};

}  // namespace

const OpFamily& reorder_family() {
  static const OpFamily family{
      "reorder", kReorderOps, {}, reorder_reference_kernels(), reorder_cpu_kernels()};
  return family;
}

}  // namespace pipetrain
