#include "onnx_io/builder.h"

#include "base/atomic_file.h"
#include "onnx_io/data_files.h"
#include "onnx_io/wire.h"

namespace pipetrain {

using namespace onnx_wire;

namespace {

constexpr std::uint64_t kDataAlignment = 64;

std::string data_name_of(const std::filesystem::path& path) {
  return path.filename().string() + ".data";
}

// Both files, the data first: no model ever refers to data that are not there.
void commit(AtomicFile& data, const std::filesystem::path& path, const std::string& model) {
  data.finish();
  AtomicFile file(path);
  file.write(model);
  file.finish();
  data.commit();
  file.commit();
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
  TensorType type = value.type();
  initializers_.push_back({std::move(name), std::move(type), std::move(value), {}});
}

void OnnxBuilder::initializer(std::string name, TensorType type, std::function<HostTensor()> make) {
  initializers_.push_back({std::move(name), std::move(type), {}, std::move(make)});
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

std::string OnnxBuilder::bytes() const { return encode(Places(initializers_.size())); }

std::uint64_t OnnxBuilder::tensor_bytes() const {
  std::uint64_t total = 0;
  for (const Initializer& initializer : initializers_) total += initializer.type.bytes();
  return total;
}

OnnxBuilder::Places OnnxBuilder::places_outside(
    const std::string& data_name, const std::function<bool(const Initializer&)>& is_outside) const {
  Places places(initializers_.size());
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!is_outside(initializers_[i])) continue;
    const std::uint64_t offset = (end + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
    end = offset + initializers_[i].type.bytes();
    places[i] = {data_name, offset, initializers_[i].type.bytes()};
  }
  return places;
}

std::string OnnxBuilder::encode(const Places& places) const {
  std::string graph;
  for (const OnnxNode& node : nodes_) append_bytes(graph, 1, encode_node(node));
  append_bytes(graph, 2, graph_name_);
  for (std::size_t i = 0; i < initializers_.size(); ++i) {
    const Initializer& initializer = initializers_[i];
    append_bytes(graph, 5,
                 places[i] ? encode_external_tensor(initializer.name, initializer.type, *places[i])
                           : encode_tensor(initializer.name, initializer.content()));
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
  const std::uint64_t total = tensor_bytes();
  if (total <= external_above) return write_file(path, bytes());
  const std::string data_name = data_name_of(path);
  const Places places = places_outside(
      data_name, [](const Initializer& initializer) { return is_float(initializer.type.dtype); });
  AtomicFile data(path.parent_path() / data_name);
  data.reserve(total);
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!places[i]) continue;
    data.skip(places[i]->offset - data.written());
    data.write(bytes_of(initializers_[i].content()));
  }
  commit(data, path, encode(places));
}

std::uint64_t OnnxBuilder::write_hollow(const std::filesystem::path& path) const {
  const std::string data_name = data_name_of(path);
  const Places places = places_outside(data_name, [](const Initializer& initializer) {
    return static_cast<bool>(initializer.make);
  });
  AtomicFile data(path.parent_path() / data_name);
  for (const auto& place : places) {
    if (place) data.skip(place->offset + place->length - data.written());
  }
  const std::uint64_t hole = data.written();
  commit(data, path, encode(places));
  return hole;
}

}  // namespace pipetrain
