#include "case_files.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "base/error.h"
#include "onnx_io/reader.h"
#include "onnx_io/subgraph.h"
#include "onnx_io/tensor_decode.h"
#include "onnx_io/wire.h"
#include "passes/sequences.h"
#include "pt_onnx.pb.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// pipetrain computes in float32, whatever floating-point type a file has.
void refuse_beyond_float32(const HostTensor& tensor) {
  if (tensor.dtype() != DType::kFloat64) return;
  constexpr double kMost = std::numeric_limits<float>::max();
  for (const double x : tensor.span<double>()) {
    if (std::isfinite(x) && std::abs(x) > kMost) {
      throw Skip{"type: float64 numbers beyond the range of float32"};
    }
  }
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

HostTensor read_tensor(const std::string& bytes, const fs::path& path) {
  onnx::Tensor message;
  PT_CHECK(message.ParseFromString(bytes), kData, "{} is no TensorProto", path.string());
  DecodedTensor decoded = TensorDecoder({}, {}, std::uint64_t{1} << 30).decode(message, "data");
  if (!decoded.unusable.empty()) throw Skip{"type: " + decoded.unusable};
  refuse_beyond_float32(decoded.value);
  return decoded.value;
}

/// The tensors of a SequenceProto, or of an OptionalProto that holds one.
std::vector<HostTensor> read_sequence(const std::string& bytes, const fs::path& path) {
  constexpr std::uint32_t kTensors = 3, kSequence = 5;
  const auto all = std::as_bytes(std::span(bytes));
  std::vector<HostTensor> out;
  onnx_wire::Reader reader(all, {0, bytes.size()});
  while (!reader.at_end()) {
    const onnx_wire::Field field = reader.next();
    if (field.number == kTensors)
      out.push_back(read_tensor(std::string(onnx_wire::text(all, field.content)), path));
    if (field.number == kSequence)
      return read_sequence(std::string(onnx_wire::text(all, field.content)), path);
  }
  return out;
}

OnnxNode node_of(std::string op, std::vector<std::string> inputs, std::string output,
                 std::int64_t opset) {
  OnnxNode node;
  node.op_type = std::move(op);
  node.inputs = std::move(inputs);
  node.outputs = {std::move(output)};
  node.opset = opset;
  return node;
}

/// Whether an output without an element type that is read here may be a sequence.
bool may_be_sequence(const OnnxModel& model, const std::string& output) {
  return std::any_of(model.nodes.begin(), model.nodes.end(), [&](const OnnxNode& node) {
    return std::count(node.outputs.begin(), node.outputs.end(), output) > 0 &&
           (is_sequence_operator(node) || has_subgraphs(node));
  });
}

}  // namespace

OnnxModel read_model(const fs::path& path) {
  try {
    return read_onnx(path);
  } catch (const Error& error) {
    const std::string& message = error.message();
    const std::size_t at = message.find(": ");
    const std::string reason = at == std::string::npos ? message : message.substr(at + 2);
    if (error.kind() != ErrorKind::kModel) throw;
    if (message.find("is not a tensor") != std::string::npos ||
        message.find("has the unsupported element type") != std::string::npos) {
      throw Skip{"type: " + reason};
    }
    if (message.find("its opset is") != std::string::npos) throw Skip{"opset: " + reason};
    // Such a model has operators of other domains only.
    if (message.find("which opset it uses") != std::string::npos) throw Skip{"operator: " + reason};
    throw;
  }
}

std::vector<HostTensor> read_tensors(const fs::path& folder, const std::string& prefix) {
  std::vector<HostTensor> out;
  for (;;) {
    const fs::path path = folder / fmt::format("{}_{}.pb", prefix, out.size());
    if (!fs::exists(path)) return out;
    out.push_back(read_tensor(bytes_of(path), path));
  }
}

std::vector<HostTensor> read_expected(OnnxModel& model, const fs::path& folder) {
  std::vector<HostTensor> out;
  std::vector<OnnxValue> outputs;
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    const fs::path path = folder / fmt::format("output_{}.pb", i);
    PT_CHECK(fs::exists(path), kData, "there is no {}", path.string());
    const OnnxValue& output = model.outputs[i];
    if (is_known(output.dtype) || !may_be_sequence(model, output.name)) {
      outputs.push_back(output);
      out.push_back(read_tensor(bytes_of(path), path));
      continue;
    }
    const auto add = [&](OnnxNode node, HostTensor expected) {
      OnnxValue value;
      value.name = node.outputs[0];
      outputs.push_back(std::move(value));
      model.nodes.edit().push_back(std::move(node));
      out.push_back(std::move(expected));
    };
    const std::vector<HostTensor> elements = read_sequence(bytes_of(path), path);
    add(node_of("SequenceLength", {output.name}, output.name + ".length", model.opset),
        HostTensor::scalar(static_cast<std::int64_t>(elements.size())));
    for (std::size_t k = 0; k < elements.size(); ++k) {
      const std::string name = fmt::format("{}.{}", output.name, k);
      OnnxNode place = node_of("Constant", {}, name + ".place", model.opset);
      place.attributes.push_back(
          OnnxAttribute::of_tensor("value", HostTensor::scalar(static_cast<std::int64_t>(k))));
      model.nodes.edit().push_back(std::move(place));
      add(node_of("SequenceAt", {output.name, name + ".place"}, name, model.opset), elements[k]);
    }
  }
  model.outputs = std::move(outputs);
  return out;
}

}  // namespace pipetrain
