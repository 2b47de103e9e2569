#include "onnx_io/reader.h"

#include <google/protobuf/arena.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <unistd.h>

#include <limits>
#include <set>
#include <unordered_set>

#include "base/error.h"
#include "base/name_table.h"
#include "base/units.h"
#include "onnx_io/attribute_kind.h"
#include "onnx_io/graph_checks.h"
#include "onnx_io/lean_file.h"
#include "onnx_io/local_functions.h"
#include "onnx_io/model_file.h"
#include "onnx_io/subgraph.h"
#include "onnx_io/tensor_decode.h"
#include "onnx_io/wire_scan.h"
#include "pt_onnx.pb.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kOldestIr = 3;
constexpr std::int64_t kNewestIr = 14;
constexpr std::int64_t kOldestOpset = 7;
constexpr std::int64_t kNewestOpset = 28;
constexpr std::size_t kMaximumWarnings = 100;

using Kind = OnnxAttribute::Kind;

std::uint64_t default_byte_limit() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return std::numeric_limits<std::uint64_t>::max();
  return static_cast<std::uint64_t>(pages) / 5 * 4 * static_cast<std::uint64_t>(page);
}

std::string domain_of(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

OnnxMetadata metadata_of(const google::protobuf::RepeatedPtrField<onnx::StringPair>& entries) {
  OnnxMetadata out;
  for (const onnx::StringPair& entry : entries) out.emplace(entry.key(), entry.value());
  return out;
}

std::map<std::string, std::int64_t> opsets_of(
    const google::protobuf::RepeatedPtrField<onnx::OpsetId>& imports, const std::string& who) {
  std::map<std::string, std::int64_t> out;
  for (const onnx::OpsetId& import : imports) {
    const auto [found, inserted] = out.emplace(domain_of(import.domain()), import.version());
    PT_CHECK(inserted || found->second == import.version(), kModel,
             "{} imports domain '{}' in two versions, {} and {}", who, printable(found->first),
             found->second, import.version());
  }
  return out;
}

/// Turns protobuf messages into plain structs.
class ModelDecoder {
 public:
  ModelDecoder(const std::filesystem::path& directory, const ReadOptions& options)
      : tensors_(directory, {.allow_links = options.allow_symlinked_data},
                 options.max_model_bytes ? options.max_model_bytes : default_byte_limit()),
        maximum_nodes_(options.max_expanded_nodes) {}

  /// A sub-graph of `owner`, whose opset holds inside too.
  OnnxSubgraph decode(onnx::Graph& graph, const OnnxNode& owner) {
    OnnxSubgraph out;
    OnnxModel tensors;
    read_initializers(graph, {}, tensors);
    out.initializers = std::move(tensors.initializers);
    for (FileNode& node : read_node_list(*graph.mutable_node(), "")) {
      PT_CHECK(node.references.empty(), kModel,
               "{}: an attribute of its sub-graph refers to one of a function", owner.label());
      node.node.opset = node.node.domain.empty() ? owner.opset : 0;
      out.nodes.push_back(std::move(node.node));
    }
    for (const onnx::ValueInfo& info : graph.input()) out.inputs.push_back(info.name());
    for (const onnx::ValueInfo& info : graph.output()) out.outputs.push_back(info.name());
    return out;
  }

  /// `raw_data`: what was taken out of the graph's initializers.
  OnnxModel decode(onnx::Model& file, std::span<const std::span<const std::byte>> raw_data) {
    OnnxModel model;
    read_header(file, model);
    onnx::Graph& graph = *file.mutable_graph();
    model.graph_name = graph.name();
    PT_CHECK(graph.sparse_initializer().empty(), kModel,
             "the model has a sparse initializer, which is not supported");
    for (const onnx::ValueInfo& value : graph.value_info()) {
      if (value.metadata_props().empty()) continue;
      model.value_metadata.emplace(value.name(), metadata_of(value.metadata_props()));
    }
    read_modules(graph, model);
    for (const onnx::Tensor& tensor : graph.initializer()) tensors_.look_for_data(tensor);
    read_initializers(graph, raw_data, model);
    read_values(graph, model);
    read_nodes(file, model);
    model.warnings.insert(model.warnings.end(), tensors_.warnings.begin(), tensors_.warnings.end());
    model.data_files = std::move(tensors_.data_files);
    warn_of_unwritten(model);
    check_and_sort(model);
    if (model.warnings.size() > kMaximumWarnings) {
      const std::size_t more = model.warnings.size() - kMaximumWarnings;
      model.warnings.resize(kMaximumWarnings);
      model.warnings.push_back(fmt::format("and {} more warnings", more));
    }
    return model;
  }

 private:
  void read_header(const onnx::Model& file, OnnxModel& model) {
    PT_CHECK(file.has_graph(), kModel, "the file has no graph");
    model.ir_version = file.ir_version();
    PT_CHECK(model.ir_version >= kOldestIr, kModel,
             "its IR version is {}; {} is the oldest that is supported", model.ir_version,
             kOldestIr);
    PT_CHECK(
        model.ir_version <= kNewestIr, kModel,
        "its IR version is {}; {} is the newest that is supported, export it with an older one",
        model.ir_version, kNewestIr);
    model.opsets = opsets_of(file.opset_import(), "the model");
    const auto standard = model.opsets.find("");
    PT_CHECK(
        standard != model.opsets.end(), kModel,
        "the model does not say which opset it uses (no opset_import for the standard domain)");
    model.opset = standard->second;
    PT_CHECK(model.opset >= kOldestOpset, kModel,
             "its opset is {}; {} is the oldest that is supported, export it with a newer one",
             model.opset, kOldestOpset);
    PT_CHECK(model.opset <= kNewestOpset, kModel,
             "its opset is {}; {} is the newest that is supported, export it with an older one",
             model.opset, kNewestOpset);
    model.producer = file.producer_name();
    if (!file.producer_version().empty()) model.producer += " " + file.producer_version();
    model.metadata = metadata_of(file.metadata_props());
  }

  /// What PyTorch says of a node's module and of its own rewriting, kept with the node's first
  /// output.
  static void read_modules(const onnx::Graph& graph, OnnxModel& model) {
    constexpr std::string_view kKept[] = {
        "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.fx_node",
        "pkg.onnxscript.rewriter.rule_name"};
    for (const onnx::Node& node : graph.node()) {
      if (node.output().empty()) continue;
      for (const onnx::StringPair& entry : node.metadata_props()) {
        if (std::ranges::find(kKept, entry.key()) != std::end(kKept))
          model.value_metadata[node.output(0)][entry.key()] = entry.value();
      }
    }
  }

  void warn_of_unwritten(OnnxModel& model) const {
    if (tensors_.unwritten_bytes == 0) return;
    model.warnings.push_back(
        fmt::format("its data file is sparse: {} of weights have no values; the model can be "
                    "planned, but not trained",
                    bytes_text(tensors_.unwritten_bytes)));
  }

  void read_initializers(onnx::Graph& graph, std::span<const std::span<const std::byte>> raw_data,
                         OnnxModel& model) {
    model.initializers.reserve(static_cast<std::size_t>(graph.initializer_size()));
    for (onnx::Tensor& tensor : *graph.mutable_initializer()) {
      OnnxInitializer out;
      out.name = tensor.name();
      const std::size_t index = model.initializers.size();
      DecodedTensor decoded =
          tensors_.decode(tensor, out.name,
                          index < raw_data.size() ? raw_data[index] : std::span<const std::byte>());
      out.value = std::move(decoded.value);
      out.file_dtype = decoded.dtype;
      out.shape = std::move(decoded.shape);
      out.external = decoded.external;
      out.unusable = std::move(decoded.unusable);
      out.metadata = metadata_of(tensor.metadata_props());
      if (const auto found = model.value_metadata.find(out.name);
          found != model.value_metadata.end()) {
        out.metadata.insert(found->second.begin(), found->second.end());
      }
      model.initializers.push_back(std::move(out));
    }
  }

  static OnnxValue read_value(const onnx::ValueInfo& info, const std::string& who,
                              std::vector<std::string>& warnings) {
    OnnxValue out;
    out.name = info.name();
    const std::string what = fmt::format("graph {} '{}'", who, printable(out.name));
    PT_CHECK(!out.name.empty(), kModel, "a graph {} has no name", who);
    PT_CHECK(info.has_type(), kModel, "{} has no type", what);
    PT_CHECK(info.type().has_tensor_type(), kModel, "{} is not a tensor", what);
    const onnx::TensorKind& type = info.type().tensor_type();
    out.dtype = static_cast<DType>(type.elem_type());
    PT_CHECK(is_known(out.dtype), kModel, "{} has the unsupported element type {}", what,
             onnx_type_name(type.elem_type()));
    out.has_shape = type.has_shape();
    PT_CHECK(type.shape().dim_size() <= 8, kModel,
             "{} has rank {}; 8 is the most that is supported", what, type.shape().dim_size());
    for (const onnx::Dimension& dim : type.shape().dim()) {
      OnnxDim extent;
      extent.symbol = dim.dim_param();
      if (dim.has_dim_value() && extent.symbol.empty()) extent.value = dim.dim_value();
      PT_CHECK(extent.value >= -1, kModel, "{}: extent {} of axis {} is negative", what,
               extent.value, out.dims.size());
      if (dim.has_dim_value() && dim.dim_value() == -1) {
        warnings.push_back(
            fmt::format("{}: extent -1 of axis {} is treated as unknown", what, out.dims.size()));
      }
      out.dims.push_back(std::move(extent));
    }
    return out;
  }

  static void read_values(const onnx::Graph& graph, OnnxModel& model) {
    std::unordered_set<std::string> initializers;
    for (const OnnxInitializer& initializer : model.initializers) {
      initializers.insert(initializer.name);
    }
    for (const onnx::ValueInfo& info : graph.input()) {
      // Before IR 4 every initializer was listed as an input too; later ones may be, as defaults.
      if (initializers.contains(info.name())) continue;
      model.inputs.push_back(read_value(info, "input", model.warnings));
    }
    for (const onnx::ValueInfo& info : graph.output()) {
      model.outputs.push_back(read_output(info, model.warnings));
    }
  }

  // Outputs need no type: what the graph computes is inferred anyway.
  static OnnxValue read_output(const onnx::ValueInfo& info, std::vector<std::string>& warnings) {
    if (info.has_type() && info.type().has_tensor_type() &&
        is_known(static_cast<DType>(info.type().tensor_type().elem_type()))) {
      return read_value(info, "output", warnings);
    }
    PT_CHECK(!info.name().empty(), kModel, "a graph output has no name");
    OnnxValue out;
    out.name = info.name();
    return out;
  }

  static void refuse_references(const FileNode& node) {
    PT_CHECK(node.references.empty(), kModel,
             "{}: attribute '{}' refers to an attribute of a function, outside of one",
             node.node.label(), printable(node.references[0].name));
  }

  void read_nodes(onnx::Model& file, OnnxModel& model) {
    google::protobuf::RepeatedPtrField<onnx::Node>& in_file = *file.mutable_graph()->mutable_node();
    if (file.functions().empty()) {
      std::vector<OnnxNode>& out = model.nodes.edit();
      out.reserve(static_cast<std::size_t>(in_file.size()));
      for (onnx::Node& node : in_file) {
        FileNode read = read_node(node, out.size(), "");
        refuse_references(read);
        out.push_back(std::move(read.node));
      }
    } else {
      std::vector<FileNode> nodes = read_node_list(in_file, "");
      for (const FileNode& node : nodes) refuse_references(node);
      std::vector<LocalFunction> functions;
      for (onnx::Function& function : *file.mutable_functions())
        functions.push_back(read_function(function));
      std::set<std::string> taken;
      for (const OnnxValue& input : model.inputs) taken.insert(input.name);
      for (const OnnxInitializer& initializer : model.initializers) taken.insert(initializer.name);
      for (const FileNode& node : nodes) {
        taken.insert(node.node.inputs.begin(), node.node.inputs.end());
        taken.insert(node.node.outputs.begin(), node.node.outputs.end());
      }
      Inlined inlined = inline_functions(std::move(nodes), functions, model.opsets,
                                         std::move(taken), {.nodes = maximum_nodes_});
      model.nodes = std::move(inlined.nodes);
      model.inlined = std::move(inlined.calls);
    }
    for (OnnxNode& node : model.nodes.edit()) {
      if (!node.function.empty()) continue;
      const auto found = model.opsets.find(node.domain);
      node.opset = found == model.opsets.end() ? 0 : found->second;
    }
  }

  LocalFunction read_function(onnx::Function& function) {
    LocalFunction out;
    out.domain = domain_of(function.domain());
    out.name = function.name();
    out.overload = function.overload();
    const std::string who = fmt::format("local function {}", printable(out.label()));
    PT_CHECK(!out.name.empty(), kModel, "a local function has no name");
    out.inputs.assign(function.input().begin(), function.input().end());
    out.outputs.assign(function.output().begin(), function.output().end());
    out.opsets = opsets_of(function.opset_import(), who);
    out.nodes = read_node_list(*function.mutable_node(), out.label());
    for (onnx::Attribute& attribute : *function.mutable_attribute_proto()) {
      out.defaults.push_back(read_attribute(attribute, who, who));
    }
    return out;
  }

  std::vector<FileNode> read_node_list(google::protobuf::RepeatedPtrField<onnx::Node>& nodes,
                                       const std::string& function) {
    std::vector<FileNode> out;
    out.reserve(static_cast<std::size_t>(nodes.size()));
    for (onnx::Node& node : nodes) {
      FileNode decoded = read_node(node, out.size(), function);
      out.push_back(std::move(decoded));
    }
    return out;
  }

  FileNode read_node(onnx::Node& node, std::size_t index, const std::string& function) {
    FileNode out;
    OnnxNode& to = out.node;
    to.name = node.name();
    to.op_type = node.op_type();
    to.domain = domain_of(node.domain());
    to.file_index = index;
    to.function = function;
    to.inputs.assign(node.input().begin(), node.input().end());
    to.outputs.assign(node.output().begin(), node.output().end());
    out.overload = node.overload();
    NameSet names;
    for (onnx::Attribute& attribute : *node.mutable_attribute()) {
      PT_CHECK(!attribute.name().empty(), kModel, "{}: an attribute has no name", to.label());
      PT_CHECK(names.insert(attribute.name()), kModel, "{}: attribute '{}' appears twice",
               to.label(), printable(attribute.name()));
      if (!attribute.ref_attr_name().empty()) {
        PT_CHECK(!attribute.has_t() && !attribute.has_g(), kModel,
                 "{}: attribute '{}' has a value and refers to another attribute too", to.label(),
                 printable(attribute.name()));
        out.references.push_back(
            {attribute.name(), attribute.ref_attr_name(), kind_of_type(attribute.type())});
        continue;
      }
      const std::string tensor_name =
          to.op_type == "Constant" && !to.outputs.empty() ? to.outputs[0] : attribute.name();
      to.attributes.push_back(read_attribute(attribute, to.label(), tensor_name));
    }
    return out;
  }

  // `owner` names the node in errors, `tensor_name` a tensor value.
  OnnxAttribute read_attribute(onnx::Attribute& attribute, const std::string& owner,
                               const std::string& tensor_name) {
    OnnxAttribute out;
    out.name = attribute.name();
    out.kind = checked_kind(attribute, owner);
    switch (out.kind) {
      case Kind::kFloat:
        out.f = attribute.f();
        break;
      case Kind::kInt:
        out.i = attribute.i();
        break;
      case Kind::kString:
        out.s = attribute.s();
        break;
      case Kind::kFloats:
        out.floats.assign(attribute.floats().begin(), attribute.floats().end());
        break;
      case Kind::kInts:
        out.ints.assign(attribute.ints().begin(), attribute.ints().end());
        break;
      case Kind::kStrings:
        out.strings.assign(attribute.strings().begin(), attribute.strings().end());
        break;
      case Kind::kTensor: {
        DecodedTensor decoded =
            with_context([&] { return "reading " + owner; },
                         [&] { return tensors_.decode(attribute.t(), tensor_name); });
        out.tensor = std::move(decoded.value);
        out.s = std::move(decoded.unusable);
        if (!out.tensor && out.s.empty()) out.s = "its data file is sparse and has no values";
        attribute.clear_t();
        break;
      }
      case Kind::kGraph:
        out.s = attribute.g();  // decoded when it is needed: subgraph.h
        break;
      case Kind::kOther:
        break;
    }
    return out;
  }

  TensorDecoder tensors_;
  std::size_t maximum_nodes_;
};

/// Runs `body`; an Error leaving it begins with the file's name.
template <class Body>
OnnxModel naming(const std::string& name, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    Error named(error.kind(), fmt::format("{}: {}", printable(name), error.message()));
    for (const std::string& frame : error.frames()) named.add_frame(frame.substr(6));
    throw named;
  }
}

OnnxModel parse(std::span<const std::byte> bytes, const std::string& name,
                const std::filesystem::path& directory, const ReadOptions& options) {
  PT_CHECK(bytes.size() <= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()),
           kModel, "{} is larger than the 2 GiB an ONNX file may have", printable(name));
  refuse_other_formats(bytes, name);
  scan_wire(bytes, name);
  LeanFile lean = without_weights(bytes);
  // Few blocks of memory, of which none of the parts is freed by itself, and large enough for the
  // allocator to give them back to the system: the graph that follows needs as much.
  google::protobuf::ArenaOptions blocks;
  blocks.start_block_size = blocks.max_block_size = std::size_t{4} << 20;
  google::protobuf::Arena arena(blocks);
  auto& file = *google::protobuf::Arena::CreateMessage<onnx::Model>(&arena);
  {
    google::protobuf::io::ArrayInputStream stream(lean.bytes.data(),
                                                  static_cast<int>(lean.bytes.size()));
    google::protobuf::io::CodedInputStream input(&stream);
    input.SetRecursionLimit(100);
    input.SetTotalBytesLimit(std::numeric_limits<std::int32_t>::max());
    PT_CHECK(file.ParseFromCodedStream(&input) && input.ConsumedEntireMessage(), kModel,
             "{} is not an ONNX file: its protobuf does not parse", printable(name));
  }
  lean.bytes = {};
  OnnxModel model =
      naming(name, [&] { return ModelDecoder(directory, options).decode(file, lean.raw_data); });
  model.file_bytes = bytes.size();
  model.file_hash = hash_bytes(bytes);
  return model;
}

}  // namespace

OnnxSubgraph read_subgraph(const OnnxNode& node, std::string_view attribute) {
  const OnnxAttribute* found = node.find_attribute(attribute);
  PT_CHECK(found && found->kind == Kind::kGraph, kModel, "{}: it has no sub-graph \"{}\"",
           node.label(), attribute);
  return with_context([&] { return fmt::format("reading \"{}\" of {}", attribute, node.label()); },
                      [&] {
                        onnx::Graph graph;
                        PT_CHECK(graph.ParseFromString(found->s), kModel,
                                 "the sub-graph does not parse");
                        for (const onnx::Tensor& tensor : graph.initializer()) {
                          PT_CHECK(tensor.data_location() == 0, kModel,
                                   "tensor '{}' is stored in another file, which is only read for "
                                   "tensors outside sub-graphs; save the model without external "
                                   "data",
                                   printable(tensor.name()));
                        }
                        return ModelDecoder("", {}).decode(graph, node);
                      });
}

OnnxModel read_onnx(const std::filesystem::path& path, const ReadOptions& options) {
  const Buffer buffer = read_model_file(path);
  const std::filesystem::path directory = path.has_parent_path() ? path.parent_path() : ".";
  OnnxModel model = parse({buffer.data(), buffer.bytes()}, path.string(), directory, options);
  model.path = path;
  return model;
}

OnnxModel read_onnx_bytes(std::span<const std::byte> bytes, const std::filesystem::path& directory,
                          const ReadOptions& options) {
  return parse(bytes, "the model", directory, options);
}

}  // namespace pipetrain
