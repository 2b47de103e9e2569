// One declaration per operator family; ops/DIRECTORY/FAMILY.cpp defines it.
#pragma once

namespace pipetrain {

struct OpFamily;

const OpFamily& attention_family();
const OpFamily& batch_norm_family();
const OpFamily& composed_family();
const OpFamily& conv_family();
const OpFamily& cumulative_family();
const OpFamily& dropout_family();
const OpFamily& elementwise_family();
const OpFamily& fused_family();
const OpFamily& gather_family();
const OpFamily& grid_sample_family();
const OpFamily& group_norm_family();
const OpFamily& layer_norm_family();
const OpFamily& linear_attention_family();
const OpFamily& loss_family();
const OpFamily& matmul_epilogue_family();
const OpFamily& matmul_family();
const OpFamily& movement_family();
const OpFamily& pool_family();
const OpFamily& random_family();
const OpFamily& recurrent_family();
const OpFamily& reduce_family();
const OpFamily& reorder_family();
const OpFamily& resize_family();
const OpFamily& rms_norm_family();
const OpFamily& rotary_family();
const OpFamily& shape_family();
const OpFamily& softmax_family();
const OpFamily& top_k_family();

}  // namespace pipetrain
