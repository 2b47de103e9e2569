// Local functions of a model are inlined: a call is replaced by the nodes of the function's body,
// renamed, with its attributes bound. The expansion is bounded before it begins.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "onnx_io/model.h"

namespace pipetrain {

/// An attribute of a function's node that takes its value from an attribute of the call.
struct AttributeReference {
  std::string name;    // of the node's attribute
  std::string source;  // of the function's attribute
  OnnxAttribute::Kind kind;
};

/// A node as the file has it, before functions are inlined.
struct FileNode {
  OnnxNode node;
  std::string overload;
  std::vector<AttributeReference> references;
};

struct LocalFunction {
  std::string domain;
  std::string name;
  std::string overload;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::vector<OnnxAttribute> defaults;
  std::map<std::string, std::int64_t> opsets;
  std::vector<FileNode> nodes;

  /// "domain::name", with ":overload" if it has one.
  std::string label() const;
};

struct InlineLimits {
  std::size_t nodes = 1'000'000;
  std::size_t bytes = std::size_t{192} << 20;
  std::size_t depth = 16;
};

struct Inlined {
  std::vector<OnnxNode> nodes;
  std::map<std::string, std::size_t> calls;  // by LocalFunction::label()
};

/// Replaces every call of a function in `graph` by its body. `taken` are the names that the graph
/// uses already; `opsets` are the model's imports, which hold where a function has none.
/// Error (kModel) for functions that call themselves, are nested too deep, expand too far, or are
/// called with arguments they do not have.
Inlined inline_functions(std::vector<FileNode> graph, const std::vector<LocalFunction>& functions,
                         const std::map<std::string, std::int64_t>& opsets,
                         std::set<std::string> taken, const InlineLimits& limits = {});

}  // namespace pipetrain
