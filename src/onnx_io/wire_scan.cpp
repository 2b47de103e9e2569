#include "onnx_io/wire_scan.h"

#include <array>
#include <vector>

#include "base/error.h"
#include "base/safe_text.h"
#include "onnx_io/wire.h"

namespace pipetrain {

using onnx_wire::Damage;
using onnx_wire::Field;
using onnx_wire::Range;
using onnx_wire::Reader;
using onnx_wire::Wire;

namespace {

enum Message : std::uint8_t {
  kNone,
  kModel,
  kGraph,
  kNode,
  kAttribute,
  kTensor,
  kSparse,
  kValueInfo,
  kType,
  kTensorKind,
  kElementType,
  kMapType,
  kShape,
  kDimension,
  kPair,
  kOpset,
  kFunction,
};

enum Form : std::uint8_t {
  kInt,      // varint
  kFloat,    // 4 bytes
  kText,     // any bytes
  kName,     // bytes that must be UTF-8 and short
  kNested,   // a message
  kInts,     // varints, packed or not
  kFloats,   // 4 bytes each, packed or not
  kDoubles,  // 8 bytes each, packed or not
};

struct Rule {
  Message message;
  std::uint32_t number;
  const char* name;
  Form form;
  bool repeated;
  Message nested = kNone;
};

constexpr bool kOnce = false;
constexpr bool kMany = true;

// The fields of the format that are looked into. Others are skipped by their length.
constexpr Rule kRules[] = {
    {kModel, 1, "ir_version", kInt, kOnce},
    {kModel, 2, "producer_name", kText, kOnce},
    {kModel, 3, "producer_version", kText, kOnce},
    {kModel, 7, "graph", kNested, kOnce, kGraph},
    {kModel, 8, "opset_import", kNested, kMany, kOpset},
    {kModel, 14, "metadata_props", kNested, kMany, kPair},
    {kModel, 25, "functions", kNested, kMany, kFunction},
    {kGraph, 1, "node", kNested, kMany, kNode},
    {kGraph, 2, "name", kText, kOnce},
    {kGraph, 5, "initializer", kNested, kMany, kTensor},
    {kGraph, 11, "input", kNested, kMany, kValueInfo},
    {kGraph, 12, "output", kNested, kMany, kValueInfo},
    {kGraph, 13, "value_info", kNested, kMany, kValueInfo},
    {kGraph, 15, "sparse_initializer", kNested, kMany, kSparse},
    {kNode, 1, "input", kName, kMany},
    {kNode, 2, "output", kName, kMany},
    {kNode, 3, "name", kName, kOnce},
    {kNode, 4, "op_type", kName, kOnce},
    {kNode, 5, "attribute", kNested, kMany, kAttribute},
    {kNode, 7, "domain", kName, kOnce},
    {kNode, 8, "overload", kName, kOnce},
    {kNode, 9, "metadata_props", kNested, kMany, kPair},
    {kAttribute, 1, "name", kName, kOnce},
    {kAttribute, 2, "f", kFloat, kOnce},
    {kAttribute, 3, "i", kInt, kOnce},
    {kAttribute, 4, "s", kText, kOnce},
    {kAttribute, 5, "t", kNested, kOnce, kTensor},
    {kAttribute, 6, "g", kNested, kOnce, kGraph},
    {kAttribute, 7, "floats", kFloats, kMany},
    {kAttribute, 8, "ints", kInts, kMany},
    {kAttribute, 9, "strings", kText, kMany},
    {kAttribute, 10, "tensors", kNested, kMany, kTensor},
    {kAttribute, 11, "graphs", kNested, kMany, kGraph},
    {kAttribute, 14, "tp", kNested, kOnce, kType},
    {kAttribute, 15, "type_protos", kNested, kMany, kType},
    {kAttribute, 20, "type", kInt, kOnce},
    {kAttribute, 21, "ref_attr_name", kName, kOnce},
    {kAttribute, 22, "sparse_tensor", kNested, kOnce, kSparse},
    {kAttribute, 23, "sparse_tensors", kNested, kMany, kSparse},
    {kTensor, 1, "dims", kInts, kMany},
    {kTensor, 2, "data_type", kInt, kOnce},
    {kTensor, 4, "float_data", kFloats, kMany},
    {kTensor, 5, "int32_data", kInts, kMany},
    {kTensor, 6, "string_data", kText, kMany},
    {kTensor, 7, "int64_data", kInts, kMany},
    {kTensor, 8, "name", kName, kOnce},
    {kTensor, 9, "raw_data", kText, kOnce},
    {kTensor, 10, "double_data", kDoubles, kMany},
    {kTensor, 11, "uint64_data", kInts, kMany},
    {kTensor, 13, "external_data", kNested, kMany, kPair},
    {kTensor, 14, "data_location", kInt, kOnce},
    {kTensor, 16, "metadata_props", kNested, kMany, kPair},
    {kSparse, 1, "values", kNested, kOnce, kTensor},
    {kSparse, 2, "indices", kNested, kOnce, kTensor},
    {kSparse, 3, "dims", kInts, kMany},
    {kValueInfo, 1, "name", kName, kOnce},
    {kValueInfo, 2, "type", kNested, kOnce, kType},
    {kValueInfo, 4, "metadata_props", kNested, kMany, kPair},
    {kType, 1, "tensor_type", kNested, kOnce, kTensorKind},
    {kType, 4, "sequence_type", kNested, kOnce, kElementType},
    {kType, 5, "map_type", kNested, kOnce, kMapType},
    {kType, 8, "sparse_tensor_type", kNested, kOnce, kTensorKind},
    {kType, 9, "optional_type", kNested, kOnce, kElementType},
    {kTensorKind, 1, "elem_type", kInt, kOnce},
    {kTensorKind, 2, "shape", kNested, kOnce, kShape},
    {kElementType, 1, "elem_type", kNested, kOnce, kType},
    {kMapType, 1, "key_type", kInt, kOnce},
    {kMapType, 2, "value_type", kNested, kOnce, kType},
    {kShape, 1, "dim", kNested, kMany, kDimension},
    {kDimension, 1, "dim_value", kInt, kOnce},
    {kDimension, 2, "dim_param", kName, kOnce},
    {kPair, 1, "key", kText, kOnce},
    {kPair, 2, "value", kText, kOnce},
    {kOpset, 1, "domain", kName, kOnce},
    {kOpset, 2, "version", kInt, kOnce},
    {kFunction, 1, "name", kName, kOnce},
    {kFunction, 4, "input", kName, kMany},
    {kFunction, 5, "output", kName, kMany},
    {kFunction, 6, "attribute", kName, kMany},
    {kFunction, 7, "node", kNested, kMany, kNode},
    {kFunction, 9, "opset_import", kNested, kMany, kOpset},
    {kFunction, 10, "domain", kName, kOnce},
    {kFunction, 11, "attribute_proto", kNested, kMany, kAttribute},
    {kFunction, 13, "overload", kName, kOnce},
};

constexpr std::uint32_t kNumbers = 32;  // every known field number is smaller
constexpr std::size_t kMessages = kFunction + 1;

// kRules by message and field number; 0: unknown, else 1 + index.
constexpr auto kIndex = [] {
  std::array<std::array<std::uint8_t, kNumbers>, kMessages> index{};
  for (std::size_t i = 0; i < std::size(kRules); ++i) {
    index[kRules[i].message][kRules[i].number] = static_cast<std::uint8_t>(i + 1);
  }
  return index;
}();

const Rule* find_rule(Message message, std::uint32_t number) {
  if (number >= kNumbers) return nullptr;
  const std::uint8_t index = kIndex[message][number];
  return index ? &kRules[index - 1] : nullptr;
}

// About what libprotobuf's object of a message takes, its pointer and small strings included.
std::size_t decoded_size(Message message) {
  switch (message) {
    case kTensor:
      return 400;
    case kNode:
      return 320;
    case kAttribute:
      return 320;
    case kFunction:
      return 320;
    case kValueInfo:
    case kPair:
      return 160;
    default:
      return 96;
  }
}

class Scan {
 public:
  Scan(std::span<const std::byte> file, const ScanLimits& limits)
      : file_(file),
        limits_(limits),
        decoded_limit_(limits.decoded_bytes + limits.decoded_per_byte * file.size()) {
    frames_.push_back(Frame(kModel, Reader(file, {0, file.size()})));
  }

  void run() {
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      if (frame.reader.at_end()) {
        frames_.pop_back();
        continue;
      }
      frame.current = nullptr;
      Field field = frame.reader.start();
      const Rule* rule = frame.current = find_rule(frame.message, field.number);
      if (rule && ++frame.seen[field.number] > 1 && !rule->repeated) {
        throw Damage{field.record.begin, "the field appears twice"};
      }
      if (rule) check_wire(*rule, field);
      frame.reader.finish(field);
      if (rule) visit(*rule, field);
    }
  }

  /// "graph.node[3].attribute[0].t"
  std::string path() const {
    std::string out;
    for (const Frame& frame : frames_) {
      if (!frame.current) break;
      if (!out.empty()) out += '.';
      out += frame.current->name;
      if (frame.current->repeated && frame.current->form != kInts) {
        out += fmt::format("[{}]", frame.seen[frame.current->number] - 1);
      }
    }
    constexpr std::size_t kLongest = 200;
    return out.size() <= kLongest ? out : "…" + out.substr(out.size() - kLongest);
  }

  /// False until the first tag that an ONNX file could have.
  bool inside() const { return frames_.size() > 1 || frames_[0].current; }
  bool at_top() const { return frames_.size() == 1; }

 private:
  struct Frame {
    Frame(Message message_in, Reader reader_in) : message(message_in), reader(reader_in) {}
    Message message;
    Reader reader;
    std::size_t graphs = 0;  // that enclose the message
    const Rule* current = nullptr;
    std::array<std::uint32_t, kNumbers> seen{};
  };

  static void check_wire(const Rule& rule, const Field& field) {
    const auto expect = [&](Wire wire, bool packed) {
      if (field.wire == wire || (packed && field.wire == Wire::kBytes)) return;
      throw Damage{field.record.begin, fmt::format("the field must be {} and is {}", name_of(wire),
                                                   name_of(field.wire))};
    };
    switch (rule.form) {
      case kInt:
        expect(Wire::kVarint, false);
        break;
      case kFloat:
        expect(Wire::kFixed32, false);
        break;
      case kText:
      case kName:
      case kNested:
        expect(Wire::kBytes, false);
        break;
      case kInts:
        expect(Wire::kVarint, true);
        break;
      case kFloats:
        expect(Wire::kFixed32, true);
        break;
      case kDoubles:
        expect(Wire::kFixed64, true);
        break;
    }
  }

  void charge(std::size_t bytes, const Field& field) {
    decoded_ += bytes;
    if (decoded_ > decoded_limit_) {
      throw Damage{field.record.begin,
                   fmt::format("decoding it would need more than {} MiB", decoded_limit_ >> 20)};
    }
  }

  void visit(const Rule& rule, const Field& field) {
    switch (rule.form) {
      case kNested:
        enter(rule, field);
        break;
      case kName:
        if (field.content.size() > limits_.name_bytes) {
          throw Damage{field.record.begin,
                       fmt::format("a name of {} bytes is longer than the {} allowed",
                                   field.content.size(), limits_.name_bytes)};
        }
        if (const auto name = text(file_, field.content); !is_utf8(name)) {
          throw Damage{field.record.begin, "the name is not UTF-8"};
        }
        if (rule.repeated) charge(40, field);
        break;
      case kText:
        if (rule.repeated) charge(40, field);
        break;
      case kInts:
        if (field.wire == Wire::kVarint) return charge(8, field);
        {
          Reader packed(file_, field.content);
          std::size_t count = 0;
          for (; !packed.at_end(); ++count) packed.varint();
          charge(8 * count, field);
        }
        break;
      case kFloats:
      case kDoubles: {
        const std::size_t size = rule.form == kFloats ? 4 : 8;
        if (field.wire == Wire::kBytes && field.content.size() % size != 0) {
          throw Damage{
              field.record.begin,
              fmt::format("{} bytes are not a whole number of elements", field.content.size())};
        }
        break;
      }
      case kInt:
      case kFloat:
        break;
    }
  }

  void enter(const Rule& rule, const Field& field) {
    const Message message = rule.nested;
    if (message == kNode && ++nodes_ > limits_.nodes) {
      throw Damage{field.record.begin, fmt::format("there are more than {} nodes", limits_.nodes)};
    }
    if (message == kTensor && ++tensors_ > limits_.initializers) {
      throw Damage{field.record.begin,
                   fmt::format("there are more than {} tensors", limits_.initializers)};
    }
    if (frames_.size() >= limits_.nested_messages) {
      throw Damage{field.record.begin, fmt::format("messages are nested deeper than {} levels",
                                                   limits_.nested_messages)};
    }
    charge(decoded_size(message), field);
    const Frame& parent = frames_.back();
    Frame frame(message, Reader(file_, field.content));
    frame.graphs = parent.graphs + (message == kGraph ? 1 : 0);
    // Functions hold no graph of their own, so their sub-graphs begin at one.
    if (frame.graphs > limits_.nested_graphs + 1) {
      throw Damage{field.record.begin, fmt::format("sub-graphs are nested deeper than {} levels",
                                                   limits_.nested_graphs)};
    }
    frames_.push_back(frame);
  }

  std::span<const std::byte> file_;
  ScanLimits limits_;
  std::size_t decoded_limit_;
  std::vector<Frame> frames_;
  std::size_t nodes_ = 0;
  std::size_t tensors_ = 0;
  std::size_t decoded_ = 0;
};

}  // namespace

void scan_wire(std::span<const std::byte> file, const std::string& name, const ScanLimits& limits) {
  Scan scan(file, limits);
  try {
    scan.run();
  } catch (const Damage& damage) {
    PT_CHECK(scan.inside(), kModel, "{} is not an ONNX file: at byte {}, {}", printable(name),
             damage.offset, damage.what);
    PT_FAIL(kModel, "{} cannot be read: at byte {}, in {}, {}{}", printable(name), damage.offset,
            scan.path(), damage.what, scan.at_top() ? " (was the file cut short?)" : "");
  }
}

}  // namespace pipetrain
