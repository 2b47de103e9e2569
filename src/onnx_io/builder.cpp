#include "onnx_io/builder.h"

#include "base/atomic_file.h"
#include "base/error.h"
#include "onnx_io/encode.h"
#include "onnx_io/wire.h"

namespace pipetrain {

using namespace onnx_wire;

namespace {

constexpr std::uint64_t kDataAlignment = 64;

std::span<const std::byte> bytes_of(const HostTensor& value) {
  return {static_cast<const std::byte*>(value.view().data), value.type().bytes()};
}

}  // namespace

OnnxBuilder::OnnxBuilder(std::string graph_name, BuiltModelOptions options)
    : graph_name_(std::move(graph_name)), options_(options) {}

void OnnxBuilder::input(std::string name, DType dtype, std::vector<OnnxDim> dims) {
  inputs_.push_back({std::move(name), dtype, /*has_shape=*/true, std::move(dims)});
}

void OnnxBuilder::output(std::string name, DType dtype, std::vector<OnnxDim> dims) {
  outputs_.push_back({std::move(name), dtype, /*has_shape=*/true, std::move(dims)});
}

void OnnxBuilder::initializer(std::string name, HostTensor value) {
  initializers_.emplace_back(std::move(name), std::move(value));
}

void OnnxBuilder::node(std::string op_type, std::vector<std::string> inputs,
                       std::vector<std::string> outputs, std::vector<OnnxAttribute> attributes,
                       std::string name, std::string domain) {
  OnnxNode node;
  node.name = std::move(name);
  node.op_type = std::move(op_type);
  node.domain = std::move(domain);
  node.inputs = std::move(inputs);
  node.outputs = std::move(outputs);
  node.attributes = std::move(attributes);
  nodes_.push_back(std::move(node));
}

void OnnxBuilder::metadata(std::string key, std::string value) {
  metadata_.emplace_back(std::move(key), std::move(value));
}

void OnnxBuilder::import(std::string domain, std::int64_t version) {
  imports_.emplace_back(std::move(domain), version);
}

std::string OnnxBuilder::bytes() const { return encode("", nullptr); }

// With `offsets`, tensors refer to the file `data_name` and their places in it are returned.
std::string OnnxBuilder::encode(const std::string& data_name,
                                std::vector<std::uint64_t>* offsets) const {
  std::string graph;
  for (const OnnxNode& node : nodes_) append_bytes(graph, 1, encode_node(node));
  append_bytes(graph, 2, graph_name_);
  std::uint64_t end = 0;
  for (const auto& [name, value] : initializers_) {
    if (!offsets) {
      append_bytes(graph, 5, encode_tensor(name, value));
      continue;
    }
    const ExternalPlace place{data_name, end, value.type().bytes()};
    append_bytes(graph, 5, encode_tensor(name, value, &place));
    offsets->push_back(end);
    end = (end + place.length + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  }
  for (const OnnxValue& value : inputs_) append_bytes(graph, 11, encode_value(value));
  for (const OnnxValue& value : outputs_) append_bytes(graph, 12, encode_value(value));

  std::string out;
  append_int(out, 1, static_cast<std::uint64_t>(options_.ir_version));
  append_bytes(out, 2, "pipetrain");
  append_bytes(out, 3, PIPETRAIN_VERSION);
  append_bytes(out, 7, graph);
  append_bytes(out, 8, encode_opset("", options_.opset));
  for (const auto& [domain, version] : imports_)
    append_bytes(out, 8, encode_opset(domain, version));
  for (const auto& [key, value] : metadata_) append_bytes(out, 14, encode_pair(key, value));
  return out;
}

void OnnxBuilder::write(const std::filesystem::path& path, std::uint64_t external_above) const {
  std::uint64_t total = 0;
  for (const auto& [name, value] : initializers_) total += value.type().bytes();
  if (total <= external_above) return write_file(path, bytes());
  const std::string data_name = path.filename().string() + ".data";
  std::vector<std::uint64_t> offsets;
  const std::string model = encode(data_name, &offsets);
  AtomicFile data(path.parent_path() / data_name);
  data.reserve(total);
  for (std::size_t i = 0; i < initializers_.size(); ++i) {
    data.write(std::string(offsets[i] - data.written(), '\0'));
    data.write(bytes_of(initializers_[i].second));
  }
  data.finish();
  AtomicFile file(path);
  file.write(model);
  file.finish();
  data.commit();
  file.commit();
}

}  // namespace pipetrain
