#include "onnx_io/writer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "base/atomic_file.h"
#include "base/error.h"
#include "onnx_io/data_files.h"
#include "onnx_io/encode.h"
#include "onnx_io/file_map.h"
#include "onnx_io/model_file.h"
#include "onnx_io/splice.h"
#include "tensor/finite.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;
using onnx_wire::Range;

HostTensor from_float32(const HostTensor& value, DType dtype) {
  if (dtype == DType::kFloat32) return value;
  HostTensor out(TensorType{dtype, value.shape()});
  const std::span<const float> from = value.span<float>();
  switch (dtype) {
    case DType::kFloat16:
      std::ranges::transform(from, out.view().as<std::uint16_t>(), float_to_half);
      break;
    case DType::kBFloat16:
      std::ranges::transform(from, out.view().as<std::uint16_t>(), float_to_bfloat16);
      break;
    case DType::kFloat64:
      std::ranges::copy(from, out.view().as<double>());
      break;
    default:
      PT_FAIL(kInternal, "parameters cannot be stored as {}", name_of(dtype));
  }
  return out;
}

/// The number of an external_data entry, which the reader has checked.
std::uint64_t number_of(const LocatedEntry* entry, std::uint64_t otherwise) {
  return entry ? std::stoull(entry->value) : otherwise;
}

class Export {
 public:
  Export(const OnnxModel& source, std::span<const std::byte> file, const WriteOptions& options)
      : source_(source), tensors_(source), options_(options), map_(file), splice_(file) {
    directory_ = source.path.has_parent_path() ? source.path.parent_path() : fs::path(".");
  }

  ExportReport run(const TrainedValues& values, const ExportEdits& edits, const fs::path& output) {
    find_data_files();
    for (const auto& [location, file] : files_) {
      std::error_code ignored;
      PT_CHECK(options_.overwrite_input || !fs::equivalent(directory_ / location, output, ignored),
               kUsage, "the output {} is a data file of the input model; choose another name",
               printable(output.string()));
    }
    for (const auto& [name, value] : values) replace(name, value);
    for (const ExportEdits::Added& added : edits.added) add(added);
    for (const ExportEdits::Rewritten& rewritten : edits.rewritten) rewrite(rewritten);
    for (const auto& [key, value] : edits.metadata) set_metadata(key, value);
    state_lengths();
    choose_names(files_, output, source_.path, options_.overwrite_input);
    refer_to_new_names();
    insert_added();
    write(output);
    return std::move(report_);
  }

 private:
  struct Place {
    std::string location;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    bool shared = false;  // its bytes are those of another tensor too
  };

  // Every tensor of the file that was read: initializers, and attributes of nodes.
  template <class Visit>
  void each_tensor(Visit&& visit) const {
    for (const auto& [name, tensor] : map_.initializers) visit(tensor);
    for (const LocatedNode& node : map_.nodes) std::ranges::for_each(node.tensors, visit);
    for (const auto& [label, nodes] : map_.functions) {
      for (const LocatedNode& node : nodes) std::ranges::for_each(node.tensors, visit);
    }
  }

  void find_data_files() {
    std::vector<std::pair<std::uint64_t, const LocatedTensor*>> order;
    each_tensor([&](const LocatedTensor& tensor) {
      if (!tensor.external) return;
      Place place;
      place.location = tensor.find_entry("location")->value;
      place.offset = number_of(tensor.find_entry("offset"), 0);
      if (!files_.contains(place.location)) {
        ExternalFile data = ExternalFile::open(directory_, place.location, place.location,
                                               {.allow_links = options_.allow_symlinked_data});
        check_unchanged(data, place.location);
        files_.emplace(place.location, DataFile(std::move(data), place.location));
      }
      const std::uint64_t rest = files_.at(place.location).source_bytes() - place.offset;
      const auto dtype = static_cast<DType>(tensor.data_type);
      place.bytes = is_known(dtype) ? TensorType{dtype, Shape(tensor.dims)}.bytes()
                                    : number_of(tensor.find_entry("length"), rest);
      places_.emplace(&tensor, place);
      order.emplace_back(place.offset, &tensor);
    });
    // A tensor that shares its bytes with another one cannot be changed in place.
    std::ranges::sort(order);
    std::map<std::string, const LocatedTensor*> furthest;
    for (const auto& [offset, tensor] : order) {
      Place& place = places_.at(tensor);
      if (place.bytes == 0) continue;
      const LocatedTensor*& before = furthest[place.location];
      if (before) {
        Place& other = places_.at(before);
        if (other.offset + other.bytes > offset) place.shared = other.shared = true;
        if (other.offset + other.bytes > offset + place.bytes) continue;
      }
      before = tensor;
    }
  }

  void check_unchanged(const ExternalFile& data, const std::string& location) const {
    const FileState& before = source_.data_files.at(location);
    const std::string name = printable((directory_ / location).string());
    PT_CHECK(data.bytes() >= before.bytes, kModel,
             "{} shrank from {} to {} bytes since it was read, so the trained values cannot be put "
             "into it",
             name, before.bytes, data.bytes());
    PT_CHECK(data.state() == before, kModel,
             "{} has changed since it was read, so the trained values cannot be put into it", name);
  }

  const LocatedTensor& locate(const std::string& name) const {
    if (const auto found = map_.initializers.find(name); found != map_.initializers.end()) {
      return found->second;
    }
    const OnnxNode* node = tensors_.constant(name);
    const auto function = map_.functions.find(node->function);
    const std::vector<LocatedNode>& nodes = node->function.empty() ? map_.nodes : function->second;
    return nodes.at(node->file_index).tensors.at(0);
  }

  void replace(const std::string& name, const TensorMaker& read) {
    const std::string reason = why_not_writable(source_, tensors_, name);
    PT_CHECK(reason.empty(), kModel, "{}: tensor '{}' cannot be written: {}",
             printable(source_.path.string()), printable(name), reason);
    const LocatedTensor& tensor = locate(name);
    const TensorMaker make = [this, name, read, dtype = static_cast<DType>(tensor.data_type)] {
      const HostTensor value = read();
      check_value(name, value);
      return converted(name, value, dtype);
    };
    if (const auto place = places_.find(&tensor); place != places_.end()) {
      replace_external(tensor, place->second, name, make);
    } else {
      replace_inline(tensor, name, std::make_shared<const TensorMaker>(make));
    }
  }

  void check_value(const std::string& name, const HostTensor& value) const {
    PT_CHECK(value.dtype() == DType::kFloat32, kInternal, "tensor '{}' is exported from {}",
             printable(name), name_of(value.dtype()));
    const OnnxInitializer* initializer = tensors_.initializer(name);
    PT_CHECK(!initializer || value.shape() == initializer->shape, kInternal,
             "tensor '{}' of shape {} is exported as {}", printable(name),
             initializer->shape.text(), value.shape().text());
    PT_CHECK(value.type().count() == count_of(name), kInternal,
             "tensor '{}' of {} elements is exported as {}", printable(name), count_of(name),
             value.shape().text());
  }

  HostTensor converted(const std::string& name, const HostTensor& value, DType dtype) {
    const HostTensor out = from_float32(value, dtype);
    if (dtype != DType::kFloat32 && !all_finite(out.view()) && all_finite(value.view()))
      report_.changes.push_back(
          fmt::format("tensor '{}' has values beyond the range of {}, which became infinite",
                      printable(name), name_of(dtype)));
    return out;
  }

  std::int64_t count_of(const std::string& name) const {
    if (const OnnxInitializer* initializer = tensors_.initializer(name))
      return initializer->shape.count();
    return constant_value(*tensors_.constant(name)).type().count();
  }

  void replace_inline(const LocatedTensor& tensor, const std::string& name,
                      const std::shared_ptr<const TensorMaker>& make) {
    std::size_t done = 0;
    for (const Range& part : tensor.payload) {
      splice_.replace(part, make, done, part.size(), tensor.chain);
      done += part.size();
    }
    const auto dtype = static_cast<DType>(tensor.data_type);
    const std::size_t bytes = TensorType{dtype, Shape{count_of(name)}}.bytes();
    if (done == bytes) return;
    PT_CHECK(done == 0 && !tensor.other_fields.empty(), kInternal,
             "the payload of tensor '{}' was not found", printable(name));
    // Numbers of varying length cannot be exchanged in place: they become raw_data.
    std::string head;
    onnx_wire::append_tag(head, 9, onnx_wire::Wire::kBytes);
    onnx_wire::append_varint(head, bytes);
    const Range first = tensor.other_fields[0];
    splice_.replace({first.begin, first.begin}, head, tensor.chain);
    splice_.replace(first, make, 0, bytes, tensor.chain);
    for (std::size_t i = 1; i < tensor.other_fields.size(); ++i) {
      splice_.replace(tensor.other_fields[i], "", tensor.chain);
    }
    report_.changes.push_back(
        fmt::format("tensor '{}' was stored as a list of numbers and is now stored as raw bytes",
                    printable(name)));
  }

  void replace_external(const LocatedTensor& tensor, const Place& place, const std::string& name,
                        const TensorMaker& make) {
    DataFile& file = files_.at(place.location);
    if (const LocatedEntry* checksum = tensor.find_entry("checksum")) {
      splice_.replace(checksum->record, "", tensor.chain);
      report_.changes.push_back(fmt::format(
          "the checksum of tensor '{}' was dropped: it was that of the old data", printable(name)));
    }
    if (!place.shared) {
      if (place.bytes > 0) file.replace(place.offset, make);
      return;
    }
    const std::uint64_t offset = file.append(place.bytes, make);
    set_entry(tensor, "offset", fmt::format("{}", offset));
    report_.changes.push_back(
        fmt::format("tensor '{}' shared its external data with another tensor and now has its own",
                    printable(name)));
  }

  void set_entry(const LocatedTensor& tensor, const std::string& key, const std::string& value) {
    const LocatedEntry* entry = tensor.find_entry(key);
    if (entry && entry->value_chain.size() == tensor.chain.size() + 2) {
      splice_.replace(entry->value_chain.back().content, value, entry->value_chain);
      return;
    }
    std::string field;
    onnx_wire::append_bytes(field, 13, encode_pair(key, value));
    const std::size_t end = tensor.chain.back().content.end;
    if (entry) splice_.replace(entry->record, "", tensor.chain);
    splice_.replace({end, end}, field, tensor.chain);
  }

  void add(const ExportEdits::Added& added) {
    const OnnxInitializer* like = tensors_.initializer(added.like);
    PT_CHECK(like && is_float(like->file_dtype), kInternal, "'{}' is not an initializer to copy",
             printable(added.like));
    PT_CHECK(!tensors_.initializer(added.name) && names_added_.insert(added.name).second, kInternal,
             "there is an initializer '{}' already", printable(added.name));
    const HostTensor value = converted(added.name, added.value, like->file_dtype);
    Added pending;
    pending.name = added.name;
    pending.value = value;
    if (like->external) {
      pending.location = places_.at(&map_.initializers.find(added.like)->second).location;
      pending.offset =
          files_.at(pending.location).append(value.type().bytes(), [value] { return value; });
    }
    added_.push_back(std::move(pending));
    report_.changes.push_back(fmt::format("initializer '{}' was added, stored like '{}'",
                                          printable(added.name), printable(added.like)));
  }

  void rewrite(const ExportEdits::Rewritten& rewritten) {
    const OnnxNode& node = source_.nodes[rewritten.node];
    PT_CHECK(node.function.empty(), kModel,
             "{} is in a local function, so its inputs cannot be rewritten", node.label());
    const LocatedNode& located = map_.nodes.at(node.file_index);
    EnclosingChain chain = located.chain;
    if (rewritten.input == located.inputs.size()) {
      std::string field;
      onnx_wire::append_bytes(field, 1, rewritten.name);
      const std::size_t end = chain.back().content.end;
      splice_.replace({end, end}, field, chain);
      report_.changes.push_back(fmt::format("{} now reads '{}' as its last input", node.label(),
                                            printable(rewritten.name)));
      return;
    }
    const Enclosing& input = located.inputs.at(rewritten.input);
    chain.push_back(input);
    splice_.replace(input.content, rewritten.name, chain);
    report_.changes.push_back(fmt::format("{} now reads '{}' instead of '{}'", node.label(),
                                          printable(rewritten.name),
                                          printable(node.inputs.at(rewritten.input))));
  }

  void set_metadata(const std::string& key, const std::string& value) {
    const auto old = source_.metadata.find(key);
    if (old != source_.metadata.end() && old->second == value) return;
    report_.changes.push_back(
        fmt::format("metadata {}={} was set", printable(key), printable(value)));
    std::string field;
    onnx_wire::append_bytes(field, 14, encode_pair(key, value));
    if (const auto found = map_.metadata.find(key); found != map_.metadata.end()) {
      const EnclosingChain& chain = found->second;
      if (chain.size() == 2) return splice_.replace(chain[1].content, value, chain);
      // A pair without a value: it gets one.
      std::string text;
      onnx_wire::append_bytes(text, 2, value);
      const std::size_t end = chain[0].content.end;
      return splice_.replace({end, end}, text, chain);
    }
    const std::size_t end = source_.file_bytes;
    splice_.replace({end, end}, field, {});
  }

  /// A tensor without a length ends with its file, as other readers have it: it must not get what
  /// was appended.
  void state_lengths() {
    std::set<std::string> stated;
    for (const auto& [tensor, place] : places_) {
      if (!files_.at(place.location).grew() || tensor->find_entry("length")) continue;
      set_entry(*tensor, "length", fmt::format("{}", place.bytes));
      stated.insert(place.location);
    }
    for (const std::string& location : stated) {
      report_.changes.push_back(
          fmt::format("tensors in '{}' now say how long they are", printable(location)));
    }
  }

  void refer_to_new_names() {
    for (const auto& [tensor, place] : places_) {
      const DataFile& file = files_.at(place.location);
      if (file.new_name.empty() || file.new_name == place.location) continue;
      set_entry(*tensor, "location", file.new_name);
    }
    for (const auto& [location, file] : files_) {
      if (file.new_name.empty() || file.new_name == location) continue;
      report_.changes.push_back(fmt::format("the data of '{}' are now in '{}'", printable(location),
                                            printable(file.new_name)));
    }
  }

  void insert_added() {
    std::string fields;
    for (const Added& added : added_) {
      std::optional<ExternalPlace> place;
      if (!added.location.empty()) {
        const std::string& renamed = files_.at(added.location).new_name;
        place = {renamed.empty() ? added.location : renamed, added.offset,
                 added.value.type().bytes()};
      }
      onnx_wire::append_bytes(fields, 5,
                              encode_tensor(added.name, added.value, place ? &*place : nullptr));
      if (source_.ir_version >= 4) continue;
      OnnxValue input;  // before IR 4 an initializer had to be an input too
      input.name = added.name;
      input.dtype = added.value.dtype();
      input.has_shape = true;
      for (const std::int64_t extent : added.value.shape()) input.dims.push_back({"", extent});
      onnx_wire::append_bytes(fields, 11, encode_value(input));
    }
    if (fields.empty()) return;
    const std::size_t end = map_.graph.content.end;
    splice_.replace({end, end}, fields, {map_.graph});
  }

  void write(const fs::path& output) {
    const std::uint64_t size = splice_.size();
    PT_CHECK(size <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()), kModel,
             "the exported model would have {} bytes, more than the 2 GiB an ONNX file may have",
             size);
    const fs::path directory = output.has_parent_path() ? output.parent_path() : fs::path(".");
    std::vector<std::unique_ptr<AtomicFile>> files;
    for (const auto& [location, file] : files_) {
      if (file.new_name.empty()) continue;
      files.push_back(std::make_unique<AtomicFile>(directory / file.new_name));
      file.write(*files.back());
      files.back()->finish();
    }
    files.push_back(std::make_unique<AtomicFile>(output));
    files.back()->reserve(size);
    splice_.write([&](std::span<const std::byte> bytes) { files.back()->write(bytes); });
    files.back()->finish();
    for (const std::unique_ptr<AtomicFile>& file : files) {
      file->commit();
      report_.files.push_back(file->path());
    }
  }

  struct Added {
    std::string name;
    HostTensor value;
    std::string location;  // empty: inline
    std::uint64_t offset = 0;
  };

  const OnnxModel& source_;
  TensorsByName tensors_;
  WriteOptions options_;
  FileMap map_;
  Splice splice_;
  fs::path directory_;                            // of the source
  std::map<std::string, DataFile> files_;         // by location
  std::map<const LocatedTensor*, Place> places_;  // of external tensors
  std::vector<Added> added_;
  std::set<std::string> names_added_;
  ExportReport report_;
};

}  // namespace

std::string why_not_writable(const OnnxModel& source, const TensorsByName& tensors,
                             std::string_view name) {
  if (const OnnxInitializer* initializer = tensors.initializer(name)) {
    if (!initializer->unusable.empty()) return initializer->unusable;
    if (is_float(initializer->file_dtype)) return "";
    return fmt::format("its type is {}", name_of(initializer->file_dtype));
  }
  const OnnxNode* node = tensors.constant(name);
  if (!node) return "the file has no tensor of that name";
  if (node->attributes.size() != 1) return "its node has no single value";
  const OnnxAttribute& attribute = node->attributes[0];
  const bool floats =
      attribute.name == "value_float" || attribute.name == "value_floats" ||
      (attribute.name == "value" && attribute.kind == OnnxAttribute::Kind::kTensor &&
       attribute.tensor && is_float(attribute.tensor.dtype()));
  if (!floats) return "it is not a floating-point constant";
  if (attribute.bound) return "it is given by the call of a local function";
  if (node->function.empty()) return "";
  const auto calls = source.inlined.find(node->function);
  if (calls == source.inlined.end() || calls->second != 1) {
    return fmt::format("it is in local function {}, which is called {} times",
                       printable(node->function),
                       calls == source.inlined.end() ? 0 : calls->second);
  }
  return "";
}

ExportReport write_trained(const OnnxModel& source, const TrainedValues& values,
                           const ExportEdits& edits, const fs::path& output,
                           const WriteOptions& options) {
  PT_CHECK(!source.path.empty(), kInternal, "a model that was read from memory cannot be exported");
  std::error_code ignored;
  PT_CHECK(options.overwrite_input || !fs::equivalent(source.path, output, ignored), kUsage,
           "the output {} is the input model; choose another name", printable(output.string()));
  const fs::path directory = output.has_parent_path() ? output.parent_path() : fs::path(".");
  PT_CHECK(fs::is_directory(directory, ignored), kResource, "the directory {} does not exist",
           printable(directory.string()));
  const Buffer buffer = read_model_file(source.path);
  const std::span<const std::byte> file(buffer.data(), buffer.bytes());
  PT_CHECK(file.size() >= source.file_bytes, kModel,
           "{} shrank from {} to {} bytes since it was read, so the trained values cannot be put "
           "into it",
           printable(source.path.string()), source.file_bytes, file.size());
  PT_CHECK(file.size() == source.file_bytes && hash_bytes(file) == source.file_hash, kModel,
           "{} has changed since it was read, so the trained values cannot be put into it",
           printable(source.path.string()));
  return with_context([&] { return "writing " + printable(output.string()); },
                      [&] { return Export(source, file, options).run(values, edits, output); });
}

}  // namespace pipetrain
