// Fuses chains of primitive operators, as older opsets write them, into one operator. Each function
// rewrites a forward graph and returns the number of matches; dead nodes remain until
// remove_dead_nodes().
#pragma once

#include <span>

#include "graph/graph.h"

namespace pipetrain {

/// x/2 (1 + erf(x / √2)), its approximation by tanh, and x sigmoid(x), in every order of factors.
int fuse_activations(Graph& graph);
/// x - mean over the root of variance + ε, with scale and shift; x over the root of mean square +
/// ε.
int fuse_norms(Graph& graph);
/// Reshape to (N, groups, …), an instance normalization, Reshape back, a scale and a shift per
/// channel: one GroupNorm.
int fuse_group_norms(Graph& graph);
/// x cos + rotate_half(x) sin with constant tables.
int fuse_rotary(Graph& graph);
/// softmax(scale q k' + mask) v without dropout, keys repeated for groups of heads or not, with the
/// transposes that split and merge the heads; `outputs` stay computed.
int fuse_attention(Graph& graph, std::span<const ValueId> outputs);

/// All slices of a weight along one axis, joined in another order, become one Gather: a copy and a
/// gradient of the weight's size instead of one for every slice.
int fuse_permuted_weights(Graph& graph);

/// Slices of an activation that together read at least half of an axis, no element twice, become
/// one Split, whose gradient is one Concat. The gradient of each slice alone would be a tensor as
/// large as the activation, of zeros but for the slice, and all of these would be added up.
int join_slices(Graph& graph);

/// The opposite of a pattern, for devices without kernels for GroupNorm: a LayerNorm of rows that
/// are groups, and a scale and a shift per channel.
int expand_group_norms(Graph& graph);
/// Convolutions of up to 4 channels, as of images, whose windows lie side by side and cover their
/// input, as products over patches: cuDNN's weight gradients of so few channels are slow.
int expand_patches(Graph& graph);

/// All patterns, in an order in which each enables the next. `outputs` stay computed.
void fuse_patterns(Graph& graph, std::span<const ValueId> outputs);

}  // namespace pipetrain
