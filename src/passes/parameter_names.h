// Heuristics that tell parameters from constants by the name and values of a tensor, based on the
// habits of exporters.
#pragma once

#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace pipetrain {

/// Whether a name has a word that only parameters have, such as "weight" or "embedding".
bool has_parameter_name(const std::string& name);

/// A PyTorch module's own scalar that multiplies its result, such as NFNet's skipinit_gain.
bool is_gain(const std::string& name);

/// Whether it is named like a constant that a module keeps: a mask, statistics, positions, a
/// filter, a table of angles, the singular vectors of spectral normalization.
bool has_buffer_name(const std::string& name, const Shape& shape);

/// Whether it is named by its place in a tree of modules, as PyTorch names parameters and buffers:
/// "layers.0.g".
bool belongs_to_module(const std::string& name);

/// Of a name that is both a buffer's and a parameter's: whether only its module is named like a
/// parameter ("pos_encoder.pe"), or it is a loss's weight of positive labels.
bool is_buffer_of_module(const std::string& name);

/// The sources of a tensor that an exporter folded, from its list "['g.weight', 'val_1']".
struct FoldedSources {
  std::vector<std::string> parameters;  // named like one, or a module's and not like a buffer
  bool unknown = false;  // some other name is neither a buffer's nor that of an operator's result
  bool is_normalized = false;  // a norm of weights went in
};
FoldedSources folded_sources(const std::string& list);

/// Whether all elements are equal, as those of fresh biases and gains are. False without a value.
bool is_uniform(const HostTensor& value);

/// Whether the elements look like neither trained nor random: sorted, or, apart from zeros, of few
/// magnitudes. True for masks, windows, filters and tables of cosines. False for uniform tensors,
/// and without a value.
bool has_pattern(const HostTensor& value);

}  // namespace pipetrain
