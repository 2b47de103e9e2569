// An ONNX model as plain structs, as read from a file: checked, functions inlined, sorted. It is
// not the training graph; lowering makes that from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onnx_io/external_data.h"
#include "tensor/tensor.h"

namespace pipetrain {

/// A named constant argument of a node. Only the member that `kind` names is meaningful.
struct OnnxAttribute {
  enum class Kind { kFloat, kInt, kString, kTensor, kFloats, kInts, kStrings, kGraph, kOther };

  Kind kind = Kind::kOther;
  std::string name;
  float f = 0;
  std::int64_t i = 0;
  /// A string attribute; for a tensor without a value, the reason why it has none.
  std::string s;
  HostTensor tensor;
  std::vector<float> floats;
  std::vector<std::int64_t> ints;
  std::vector<std::string> strings;
  /// In a local function: the value came from the call, so it is not in the node itself.
  bool bound = false;

  static OnnxAttribute of_float(std::string name, float value);
  static OnnxAttribute of_int(std::string name, std::int64_t value);
  static OnnxAttribute of_string(std::string name, std::string value);
  static OnnxAttribute of_tensor(std::string name, HostTensor value);
  static OnnxAttribute of_floats(std::string name, std::vector<float> values);
  static OnnxAttribute of_ints(std::string name, std::vector<std::int64_t> values);
  static OnnxAttribute of_strings(std::string name, std::vector<std::string> values);
};

/// "an int", "a list of floats", …
std::string_view name_of(OnnxAttribute::Kind kind);

/// One operator call. The empty string as an input or output is an absent optional one.
struct OnnxNode {
  std::string name;
  std::string op_type;
  std::string domain;  // "" is the standard's own, also where the file says "ai.onnx"
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::vector<OnnxAttribute> attributes;
  /// The imported version of the node's domain (0: not imported).
  std::int64_t opset = 0;
  /// Position among the nodes of the file's graph, or inside the local function `function`.
  std::size_t file_index = 0;
  /// It is not in the file: pipetrain inserted it.
  bool is_added = false;
  /// The local function the node was inlined from ("domain::name"); empty for the graph's own.
  std::string function;

  /// "node 'fc1' (Gemm, #17)", escaped: what every error about the node begins with.
  std::string label() const;

  const OnnxAttribute* find_attribute(std::string_view name) const;
  bool has_attribute(std::string_view name) const { return find_attribute(name) != nullptr; }
  bool has_input(std::size_t index) const {
    return index < inputs.size() && !inputs[index].empty();
  }
  bool has_output(std::size_t index) const {
    return index < outputs.size() && !outputs[index].empty();
  }

  // Typed access. An attribute of another type is an Error (kModel) that names node and attribute;
  // without a default, so is an absent one.
  float float_attribute(std::string_view name, std::optional<float> otherwise = {}) const;
  std::int64_t int_attribute(std::string_view name,
                             std::optional<std::int64_t> otherwise = {}) const;
  std::string string_attribute(std::string_view name,
                               std::optional<std::string> otherwise = {}) const;
  std::vector<float> floats_attribute(std::string_view name,
                                      std::optional<std::vector<float>> otherwise = {}) const;
  std::vector<std::int64_t> ints_attribute(
      std::string_view name, std::optional<std::vector<std::int64_t>> otherwise = {}) const;
  std::vector<std::string> strings_attribute(
      std::string_view name, std::optional<std::vector<std::string>> otherwise = {}) const;
  HostTensor tensor_attribute(std::string_view name) const;

 private:
  const OnnxAttribute* find_attribute(std::string_view name, OnnxAttribute::Kind kind,
                                      bool required) const;
};

/// The value of a Constant node, whichever attribute holds it (value, value_float, value_ints, …).
/// Error (kModel) for strings, sparse values and types that cannot be represented.
HostTensor constant_value(const OnnxNode& node);

/// One extent of a graph input or output: a number, a symbol ("batch") or neither.
struct OnnxDim {
  std::string symbol;
  std::int64_t value = -1;  // -1: unknown
  friend bool operator==(const OnnxDim&, const OnnxDim&) = default;
};

/// A graph input or output.
struct OnnxValue {
  std::string name;
  DType dtype = DType::kUndefined;
  bool has_shape = false;
  std::vector<OnnxDim> dims;
};

/// Usual names of the output of a classifier, the most telling one first.
inline constexpr std::string_view kUsualOutputs[] = {"logits", "output", "out", "scores"};

using OnnxMetadata = std::map<std::string, std::string>;

/// A tensor stored in the file.
struct OnnxInitializer {
  std::string name;
  HostTensor value;  // in the file's own type; empty if `unusable` says why, or never written
  DType file_dtype = DType::kUndefined;
  Shape shape;
  bool external = false;
  /// Of the tensor and of the graph's value_info entry with its name (PyTorch's exporter writes
  /// there whether it was a parameter).
  OnnxMetadata metadata;
  /// Why there is no value, for example "its type is int4"; empty if there is one.
  std::string unusable;

  /// The value as float32, converted if the file holds another floating-point type.
  HostTensor to_float32() const;
};

/// The nodes of a model. Copies of it share them until one of them is edited, as the model that is
/// trained is mostly that of the file.
class OnnxNodes {
 public:
  OnnxNodes() : nodes_(std::make_shared<std::vector<OnnxNode>>()) {}
  OnnxNodes(std::vector<OnnxNode> nodes)  // NOLINT: a list of nodes is one
      : nodes_(std::make_shared<std::vector<OnnxNode>>(std::move(nodes))) {}

  std::size_t size() const { return nodes_->size(); }
  bool empty() const { return nodes_->empty(); }
  const OnnxNode& operator[](std::size_t index) const { return (*nodes_)[index]; }
  auto begin() const { return nodes_->cbegin(); }
  auto end() const { return nodes_->cend(); }
  /// The nodes to change, which no copy shares.
  std::vector<OnnxNode>& edit() {
    if (nodes_.use_count() > 1) nodes_ = std::make_shared<std::vector<OnnxNode>>(*nodes_);
    return *nodes_;
  }

 private:
  std::shared_ptr<std::vector<OnnxNode>> nodes_;
};

struct OnnxModel {
  std::filesystem::path path;  // empty if read from memory
  std::int64_t ir_version = 0;
  std::int64_t opset = 0;                      // of the standard's own domain
  std::map<std::string, std::int64_t> opsets;  // every imported domain
  std::string graph_name;
  std::string producer;           // "pytorch 2.6.0"
  OnnxNodes nodes;                // topologically sorted, functions inlined
  std::vector<OnnxValue> inputs;  // without those that are initializers
  std::vector<OnnxValue> outputs;
  std::vector<OnnxInitializer> initializers;
  OnnxMetadata metadata;                               // model-level metadata_props
  std::map<std::string, OnnxMetadata> value_metadata;  // value_info[...].metadata_props
  std::vector<std::string> warnings;                   // sentences for the user, names escaped
  /// How often each local function was inlined, by "domain::name".
  std::map<std::string, std::size_t> inlined;
  /// Size and hash of the file, so that export can see that it is still the same.
  std::uint64_t file_bytes = 0;
  std::uint64_t file_hash = 0;
  /// The files that hold external data, by location.
  std::map<std::string, FileState> data_files;

  const OnnxInitializer* find_initializer(std::string_view name) const;
};

/// The value as float32 of a tensor of any floating-point type; others are an Error (kModel).
HostTensor to_float32(const HostTensor& value);

}  // namespace pipetrain
