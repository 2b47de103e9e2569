// The sub-graphs of If, Loop and Scan. They stay encoded in the node's attribute (`s` of an
// attribute of kind kGraph) until one is requested.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "onnx_io/model.h"

namespace pipetrain {

/// Names of values that are not made inside belong to the graph around it.
struct OnnxSubgraph {
  std::vector<OnnxNode> nodes;
  std::vector<OnnxInitializer> initializers;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
};

/// Whether the node is an If, Loop or Scan with sub-graphs that can be read.
bool has_subgraphs(const OnnxNode& node);

/// Decodes one: "then_branch", "else_branch" or "body". Error (kModel) naming the node.
OnnxSubgraph read_subgraph(const OnnxNode& node, std::string_view attribute);

/// Names that the sub-graphs of a node take from the graph around it.
std::set<std::string> captured_names(const OnnxNode& node);

/// Names of the floating-point initializers of sub-graphs of a node, to any depth, and of Constant
/// nodes of two axes or more; those of one element are left out.
std::vector<std::string> float_tensors_inside(const OnnxNode& node);

/// The node, and the nodes of its sub-graphs to any depth.
std::vector<OnnxNode> with_inner_nodes(const OnnxNode& node);

}  // namespace pipetrain
