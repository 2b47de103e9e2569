// The table of operator families, in alphabetical order.
#include "ops/registry/all_ops.h"

#include "ops/registry/registry.h"

namespace pipetrain {

std::span<const OpFamily* const> all_families() {
  static const std::vector<const OpFamily*> families = {
      &attention_family(),        &batch_norm_family(),
      &composed_family(),         &conv_family(),
      &cumulative_family(),       &dropout_family(),
      &elementwise_family(),      &fused_family(),
      &gather_family(),           &grid_sample_family(),
      &group_norm_family(),       &layer_norm_family(),
      &linear_attention_family(), &loss_family(),
      &matmul_epilogue_family(),  &matmul_family(),
      &movement_family(),         &pool_family(),
      &random_family(),           &recurrent_family(),
      &reduce_family(),           &reorder_family(),
      &resize_family(),           &rms_norm_family(),
      &rotary_family(),           &shape_family(),
      &softmax_family(),          &top_k_family(),
  };
  return families;
}

}  // namespace pipetrain
