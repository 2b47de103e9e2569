// What a Squeeze without axes removes: every axis of one element. With one sample these would be
// the axis of the samples as well, which larger micro-batches keep.
#pragma once

#include <map>
#include <string>

#include "graph/graph.h"
#include "onnx_io/model.h"
#include "tensor/tensor.h"

namespace pipetrain {

/// The shapes that Squeeze nodes without axes read, by the names of the nodes that they become.
using SqueezedShapes = std::map<std::string, Shape>;

bool squeezes_all(const OnnxNode& node);
/// Whether a model has such a node, in a sub-graph or not.
bool has_squeeze_of_all(const OnnxModel& model);

/// The shape of an output of a model that takes one sample at a time, with the axis of the sample:
/// a scalar lacks it, and so does what a Squeeze has made of one row.
Shape with_sample_axis(const Graph& graph, ValueId output);

/// The shape without the axes that have one element, here and in `larger`, the shape of more
/// samples; null, or of another rank: here.
Shape squeezed(const Shape& shape, const Shape* larger);

}  // namespace pipetrain
