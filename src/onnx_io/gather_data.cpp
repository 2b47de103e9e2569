#include "onnx_io/gather_data.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "base/atomic_file.h"
#include "base/error.h"
#include "onnx_io/external_data.h"
#include "onnx_io/tensor_decode.h"
#include "pt_onnx.pb.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

constexpr int kExternalLocation = 1;  // TensorProto.EXTERNAL
constexpr std::uint64_t kGatheredAlignment = 64;
constexpr std::size_t kGatheredPiece = std::size_t{1} << 20;

/// Moves all external tensors of a model into one file.
class DataGathering {
 public:
  DataGathering(const fs::path& from, fs::path to)
      : from_(from.empty() ? fs::path(".") : from), to_(std::move(to)) {}

  void gather(onnx::Model& model) {
    gather(*model.mutable_graph());
    for (onnx::Function& function : *model.mutable_functions()) {
      for (onnx::Node& node : *function.mutable_node()) gather(node);
    }
  }

  /// Null if there was nothing to move.
  std::unique_ptr<AtomicFile> file() { return std::move(out_); }

 private:
  bool gather(onnx::Graph& graph) {
    bool moved = false;
    for (onnx::Tensor& tensor : *graph.mutable_initializer()) moved |= move(tensor);
    for (onnx::Node& node : *graph.mutable_node()) moved |= gather(node);
    return moved;
  }

  bool gather(onnx::Node& node) {
    bool moved = false;
    for (onnx::Attribute& attribute : *node.mutable_attribute()) {
      if (attribute.has_t()) moved |= move(*attribute.mutable_t());
      if (attribute.has_g()) moved |= gather_encoded<onnx::Graph>(*attribute.mutable_g());
      for (std::string& graph : *attribute.mutable_graphs())
        moved |= gather_encoded<onnx::Graph>(graph);
      for (std::string& tensor : *attribute.mutable_tensors())
        moved |= gather_encoded<onnx::Tensor>(tensor);
    }
    return moved;
  }

  bool gather(onnx::Tensor& tensor) { return move(tensor); }

  /// What the schema leaves encoded is written anew only where something in it has moved.
  template <class Message>
  bool gather_encoded(std::string& bytes) {
    Message message;
    PT_CHECK(message.ParseFromString(bytes), kModel, "a sub-graph is damaged");
    const bool moved = gather(message);
    if (moved) bytes = message.SerializeAsString();
    return moved;
  }

  bool move(onnx::Tensor& tensor) {
    if (tensor.data_location() != kExternalLocation) return false;
    std::vector<std::string> ignored;  // warnings that reading the file gives again
    const ExternalRange range = external_range(tensor, tensor.name(), ignored);
    const ExternalFile& file = open(range.location, tensor.name());
    PT_CHECK(range.offset <= file.bytes(), kModel, "tensor '{}' begins after the end of '{}'",
             printable(tensor.name()), printable(range.location));
    std::uint64_t length = range.length.value_or(file.bytes() - range.offset);
    if (const auto dtype = static_cast<DType>(tensor.data_type()); is_known(dtype)) {
      const Shape shape = checked_shape({tensor.dims().begin(), tensor.dims().end()},
                                        "tensor '" + printable(tensor.name()) + "'");
      length = TensorType{dtype, shape}.bytes();
    }
    check_external_range(range, file.bytes(), length, tensor.name());
    // Tensors that share their bytes go on doing so.
    const auto [place, is_new] =
        places_.try_emplace({range.location, range.offset, length}, std::uint64_t{0});
    if (is_new) place->second = copy(file, range.offset, length);
    tensor.clear_external_data();
    put(tensor, "location", to_.filename().string());
    put(tensor, "offset", fmt::format("{}", place->second));
    put(tensor, "length", fmt::format("{}", length));
    return true;
  }

  const ExternalFile& open(const std::string& location, const std::string& tensor) {
    const auto found = files_.find(location);
    if (found != files_.end()) return found->second;
    return files_.emplace(location, ExternalFile::open(from_, location, tensor, {})).first->second;
  }

  /// Returns the offset in the new file.
  std::uint64_t copy(const ExternalFile& file, std::uint64_t offset, std::uint64_t length) {
    if (!out_) out_ = std::make_unique<AtomicFile>(to_);
    const std::uint64_t place =
        (out_->written() + kGatheredAlignment - 1) / kGatheredAlignment * kGatheredAlignment;
    out_->skip(place - out_->written());
    if (file.is_unwritten()) {
      out_->skip(length);
      return place;
    }
    std::vector<std::byte> piece(
        static_cast<std::size_t>(std::min<std::uint64_t>(kGatheredPiece, length)));
    for (std::uint64_t done = 0; done < length;) {
      const std::span<std::byte> part(piece.data(),
                                      std::min<std::uint64_t>(kGatheredPiece, length - done));
      file.read(offset + done, part);
      out_->write(part);
      done += part.size();
    }
    return place;
  }

  static void put(onnx::Tensor& tensor, const char* key, const std::string& value) {
    onnx::StringPair& entry = *tensor.add_external_data();
    entry.set_key(key);
    entry.set_value(value);
  }

  fs::path from_, to_;
  std::map<std::string, ExternalFile> files_;  // by location
  std::map<std::tuple<std::string, std::uint64_t, std::uint64_t>, std::uint64_t> places_;
  std::unique_ptr<AtomicFile> out_;
};

}  // namespace

std::vector<fs::path> write_with_data(onnx::Model& model, const fs::path& from,
                                      const fs::path& to) {
  fs::path data = to;
  data += ".data";
  DataGathering gathering(from, data);
  gathering.gather(model);
  PT_CHECK(model.ByteSizeLong() <= std::size_t{std::numeric_limits<std::int32_t>::max()}, kModel,
           "the model would have more than the 2 GiB that an ONNX file may have");
  std::string text;
  PT_CHECK(model.SerializeToString(&text), kModel, "the model is too large");
  std::vector<fs::path> files;
  const std::unique_ptr<AtomicFile> data_file = gathering.file();
  if (data_file) data_file->finish();
  AtomicFile model_file(to);
  model_file.write(text);
  model_file.finish();
  if (data_file) {
    data_file->commit();
    files.push_back(data_file->path());
  }
  model_file.commit();
  files.push_back(to);
  return files;
}

}  // namespace pipetrain
