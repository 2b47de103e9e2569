#include "onnx_io/new_head.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/setting.h"
#include "onnx_io/gather_data.h"
#include "onnx_io/model.h"
#include "onnx_io/model_file.h"
#include "onnx_io/wire_scan.h"
#include "pt_onnx.pb.h"

namespace pipetrain {
namespace {

constexpr int kFloatTensor = 1;                 // TensorProto.FLOAT
constexpr std::int64_t kInitializersAlone = 4;  // IR version; before, they are inputs, too

/// The output that the loss reads if none is named, by names and types as output_of_loss() of
/// passes/loss.h does. An output without a type may be of floats.
std::string usual_output(const onnx::Graph& graph) {
  std::vector<std::string> floats;
  for (const onnx::ValueInfo& output : graph.output()) {
    if (output.has_type() && !output.type().has_tensor_type()) continue;
    const auto type = static_cast<DType>(output.type().tensor_type().elem_type());
    if (type == DType::kUndefined || is_float(type)) floats.push_back(output.name());
  }
  if (floats.empty()) return graph.output(0).name();
  for (const std::string_view known : kUsualOutputs) {
    if (std::ranges::find(floats, known) != floats.end()) return std::string(known);
  }
  return floats[0];
}

/// The value that the loss reads: `output`, or what the node or value called `output_node` makes,
/// as targets_of() of passes/needed_nodes.h finds it, or the usual output.
std::string value_to_train(const onnx::Model& model, const std::string& output,
                           const std::string& output_node) {
  if (!output.empty()) return output;
  if (output_node.empty()) return usual_output(model.graph());
  for (const onnx::Node& node : model.graph().node()) {
    for (const std::string& made : node.output()) {
      if (made == output_node || (node.name() == output_node && !made.empty())) return made;
    }
  }
  PT_FAIL(kUsage, "{}: no node or value{} is called \"{}\"", setting("output-node"),
          model.functions_size() > 0 ? " outside of local functions" : "", printable(output_node));
}

bool is_between(const std::string& op) {
  static const std::set<std::string> ops = {
      "Softmax", "LogSoftmax", "Sigmoid",    "Identity",          "Flatten",
      "Reshape", "Squeeze",    "Cast",       "GlobalAveragePool", "GlobalMaxPool",
      "Relu",    "Dropout",    "ReduceMean", "ReduceMax"};
  return ops.contains(op);
}

class Head {
 public:
  Head(onnx::Model& model, std::int64_t classes, std::uint64_t seed)
      : graph_(*model.mutable_graph()),
        ir_version_(model.ir_version()),
        classes_(classes),
        random_(seed, 0x6865616473) {}

  NewHead replace(const std::string& output) {
    find_layer(output);
    const std::string op = layer_->op_type();
    PT_CHECK(layer_->input_size() >= 2, kModel, "the layer of \"{}\" has no weight",
             printable(output));
    const std::vector<std::string> read = read_through(layer_->input(1));
    const std::string& name = read.back();
    onnx::Tensor& weight = tensor(name);
    // The reader has not checked the model yet.
    const std::optional<std::int64_t> all = numbers_in(weight);
    PT_CHECK(weight.dims_size() >= 2 && all, kModel,
             "the weight \"{}\" of the last layer has the shape ({}), which no such layer has; "
             "export the model again",
             printable(name), fmt::join(weight.dims(), ", "));
    // Which axis of the weight is the classes, and what each class sums over.
    int axis = 0;
    if (op == "MatMul") axis = weight.dims_size() - 1;
    if (op == "Gemm") axis = integer("transB") != 0 ? 0 : 1;
    for (std::size_t i = 0; i + 1 < read.size(); ++i) {
      declare(read[i], axis);
      if (producer(read[i])->op_type() == "Transpose") axis = 1 - axis;
    }
    const std::int64_t before = weight.dims(axis);
    for (const LastNumber& shape : shapes_) {
      PT_CHECK(shape.number == before, kModel,
               "{}: the Reshape after the last layer mixes its {} classes with other numbers",
               setting("num-classes"), before);
      shape.set(classes_);
    }
    const double bound = 1 / std::sqrt(static_cast<double>(*all / before));
    refill(weight, axis, bound);
    NewHead head{{name}, before, {}};
    const auto refill_bias = [&](const std::string& value) {
      const std::vector<std::string> read_as = read_through(value);
      const std::string& name = read_as.back();
      for (const std::string& copy : read_as) declare(copy, 0);
      onnx::Tensor& bias = tensor(name);
      PT_CHECK(bias.dims_size() >= 1 && bias.dims(bias.dims_size() - 1) == before, kModel,
               "the bias \"{}\" of the last layer is not one number for each of {} classes",
               printable(name), before);
      refill(bias, bias.dims_size() - 1, bound);
      head.tensors.push_back(name);
    };
    if (op != "MatMul" && layer_->input_size() > 2 && !layer_->input(2).empty())
      refill_bias(layer_->input(2));
    if (!added_bias_.empty()) refill_bias(added_bias_);
    follow_shapes(before);
    return head;
  }

 private:
  const onnx::Node* producer(const std::string& value) const {
    for (const onnx::Node& node : graph_.node()) {
      for (const std::string& made : node.output()) {
        if (made == value) return &node;
      }
    }
    return nullptr;
  }

  /// The Constant node that holds a tensor, as some exporters store weights; its index, or -1.
  int constant_of(const std::string& name) const {
    for (int n = 0; n < graph_.node_size(); ++n) {
      const onnx::Node& node = graph_.node(n);
      if (node.op_type() == "Constant" && node.output_size() == 1 && node.output(0) == name &&
          node.attribute_size() == 1 && node.attribute(0).has_t() &&
          node.attribute(0).t().dims_size() > 0)
        return n;
    }
    return -1;
  }

  /// Whether the file stores a tensor of this name.
  bool is_stored(const std::string& name) const {
    return constant_of(name) >= 0 ||
           std::any_of(graph_.initializer().begin(), graph_.initializer().end(),
                       [&](const onnx::Tensor& t) { return t.name() == name; });
  }

  /// A value, what it copies or transposes if nothing else reads that, and so on, up to the tensor
  /// that the file stores.
  std::vector<std::string> read_through(const std::string& value) const {
    std::vector<std::string> read = {value};
    while (read.size() < 16 && !is_stored(read.back()) && uses_of(read.back()) == 1) {
      const onnx::Node* node = producer(read.back());
      if (!node || node->input_size() != 1) break;
      const std::string& op = node->op_type();
      if (op != "Identity" && op != "Cast" && !(op == "Transpose" && swaps_two_axes(*node))) break;
      read.push_back(node->input(0));
    }
    return read;
  }

  bool reads_stored(const std::string& value) const {
    return is_stored(read_through(value).back());
  }

  static bool swaps_two_axes(const onnx::Node& transpose) {
    for (const onnx::Attribute& attribute : transpose.attribute()) {
      if (attribute.name() == "perm")
        return attribute.ints_size() == 2 && attribute.ints(0) == 1 && attribute.ints(1) == 0;
    }
    return false;
  }

  /// Makes the tensor of a Constant node an initializer.
  void make_initializer(const std::string& name, int constant) {
    onnx::Tensor& tensor = *graph_.add_initializer();
    tensor.Swap(graph_.mutable_node(constant)->mutable_attribute(0)->mutable_t());
    tensor.set_name(name);
    graph_.mutable_node()->DeleteSubrange(constant, 1);
    if (ir_version_ >= kInitializersAlone) return;
    onnx::ValueInfo& input = *graph_.add_input();
    input.set_name(name);
    onnx::TensorKind& type = *input.mutable_type()->mutable_tensor_type();
    type.set_elem_type(tensor.data_type());
    for (const std::int64_t d : tensor.dims()) type.mutable_shape()->add_dim()->set_dim_value(d);
  }

  void find_layer(std::string value) {
    const std::string output = value;
    changed_.insert(value);
    for (int depth = 0; depth < 16; ++depth) {
      const onnx::Node* node = producer(value);
      PT_CHECK(node, kModel, "\"{}\" does not come from a layer with weights", printable(output));
      const std::string& op = node->op_type();
      if (op == "Gemm" || op == "Conv" ||
          (op == "MatMul" && node->input_size() == 2 && reads_stored(node->input(1)))) {
        layer_ = node;
        changed_.insert(value);
        return;
      }
      if (op == "Add" && added_bias_.empty() && node->input_size() == 2 &&
          (reads_stored(node->input(0)) || reads_stored(node->input(1)))) {
        const int bias = reads_stored(node->input(0)) ? 0 : 1;
        added_bias_ = node->input(bias);
        value = node->input(1 - bias);
      } else {
        PT_CHECK(is_between(op) && node->input_size() >= 1, kModel,
                 "{}: \"{}\" comes from {}, which is not the last layer of a classifier "
                 "(a Gemm, MatMul or Conv); name its output with {}, or with {} where it is no "
                 "output of the model",
                 setting("num-classes"), printable(output), printable(op), setting("logits"),
                 setting("output-node"));
        if (op == "Reshape" && node->input_size() > 1) note_shape(node->input(1), 0);
        value = node->input(0);
      }
      changed_.insert(value);
    }
    PT_FAIL(kModel, "\"{}\" has no last layer near", printable(output));
  }

  /// A Reshape after the layer may spell out the number of classes, at the end of its shape.
  void note_shape(const std::string& name, int concats) {
    PT_CHECK(concats < 16, kModel,
             "{}: the shape of the Reshape after the last layer is made by too many Concats",
             setting("num-classes"));
    for (onnx::Tensor& t : *graph_.mutable_initializer()) {
      if (t.name() == name) note_numbers(name, t);
    }
    for (onnx::Node& node : *graph_.mutable_node()) {
      if (node.output_size() != 1 || node.output(0) != name) continue;
      if (node.op_type() == "Concat" && node.input_size() > 0)
        return note_shape(node.input(node.input_size() - 1), concats + 1);
      if (node.op_type() != "Constant") continue;
      for (onnx::Attribute& attribute : *node.mutable_attribute()) {
        if (attribute.ints_size() > 0)
          note_number(
              name, attribute.ints(attribute.ints_size() - 1),
              [&attribute](std::int64_t n) { attribute.set_ints(attribute.ints_size() - 1, n); });
        if (attribute.has_t()) note_numbers(name, *attribute.mutable_t());
      }
    }
  }

  void note_numbers(const std::string& name, onnx::Tensor& shape) {
    std::int64_t last = 1;
    if (shape.int64_data_size() > 0) {
      const int end = shape.int64_data_size() - 1;
      note_number(name, shape.int64_data(end),
                  [&shape, end](std::int64_t n) { shape.set_int64_data(end, n); });
    } else if (shape.raw_data().size() >= sizeof last) {
      const std::size_t at = shape.raw_data().size() - sizeof last;
      std::memcpy(&last, shape.raw_data().data() + at, sizeof last);
      note_number(name, last, [&shape, at](std::int64_t n) {
        std::memcpy(shape.mutable_raw_data()->data() + at, &n, sizeof n);
      });
    }
  }

  /// -1 stands for what is left over, 0 for what it is.
  void note_number(const std::string& name, std::int64_t number,
                   std::function<void(std::int64_t)> set) {
    if (number <= 0) return;
    PT_CHECK(uses_of(name) == 1, kModel,
             "{}: the Reshape after the last layer shares its shape \"{}\" with other layers",
             setting("num-classes"), printable(name));
    shapes_.push_back({number, std::move(set)});
  }

  int uses_of(const std::string& name) const {
    int uses = 0;
    for (const onnx::Node& node : graph_.node())
      uses += static_cast<int>(std::count(node.input().begin(), node.input().end(), name));
    return uses;
  }

  std::int64_t integer(const std::string& name) const {
    for (const onnx::Attribute& attribute : layer_->attribute()) {
      if (attribute.name() == name) return attribute.i();
    }
    return 0;
  }

  onnx::Tensor& tensor(const std::string& name) {
    const int uses = uses_of(name);
    if (const int constant = constant_of(name); constant >= 0 && uses == 1)
      make_initializer(name, constant);
    for (onnx::Tensor& found : *graph_.mutable_initializer()) {
      if (found.name() != name) continue;
      PT_CHECK(uses == 1, kModel,
               "{}: \"{}\" of the last layer is used {} times, so it cannot be replaced",
               setting("num-classes"), printable(name), uses);
      PT_CHECK(found.data_type() == kFloatTensor, kModel,
               "{}: \"{}\" of the last layer is not float32", setting("num-classes"),
               printable(name));
      return found;
    }
    PT_CHECK(!is_stored(name), kModel,
             "{}: \"{}\" of the last layer is used {} times, so it cannot be replaced",
             setting("num-classes"), printable(name), uses);
    PT_FAIL(kModel,
            "{}: \"{}\" of the last layer is neither an initializer nor the tensor of a Constant",
            setting("num-classes"), printable(name));
  }

  /// Empty where an extent is not positive, or the product overflows.
  static std::optional<std::int64_t> numbers_in(const onnx::Tensor& tensor) {
    std::int64_t count = 1;
    for (const std::int64_t d : tensor.dims()) {
      if (d <= 0 || __builtin_mul_overflow(count, d, &count)) return {};
    }
    return count;
  }

  void refill(onnx::Tensor& tensor, int axis, double bound) {
    tensor.set_dims(axis, classes_);
    const std::optional<std::int64_t> count = numbers_in(tensor);
    PT_CHECK(count && *count < (std::int64_t{1} << 28), kUsage, "{} {} is too many",
             setting("num-classes"), classes_);
    std::vector<float> values(static_cast<std::size_t>(*count));
    for (float& x : values) x = static_cast<float>(bound * (2 * random_.uniform() - 1));
    tensor.clear_float_data();
    tensor.clear_external_data();
    tensor.clear_data_location();
    tensor.set_raw_data(values.data(), values.size() * sizeof(float));
    declare(tensor.name(), axis);
  }

  /// What else says how large a tensor is: it may be an input, too, as all are before IR version 4.
  void declare(const std::string& name, int axis) {
    for (auto* list : {graph_.mutable_input(), graph_.mutable_value_info()}) {
      for (onnx::ValueInfo& info : *list) {
        if (info.name() != name || !info.type().tensor_type().has_shape()) continue;
        onnx::TensorShape* shape = info.mutable_type()->mutable_tensor_type()->mutable_shape();
        if (axis < shape->dim_size()) shape->mutable_dim(axis)->set_dim_value(classes_);
      }
    }
  }

  /// Declared shapes of what the layer reaches get the new number of classes.
  void follow_shapes(std::int64_t before) {
    for (auto* list : {graph_.mutable_output(), graph_.mutable_value_info()}) {
      for (onnx::ValueInfo& info : *list) {
        if (!changed_.contains(info.name())) continue;
        if (!info.has_type() || !info.type().has_tensor_type() ||
            !info.type().tensor_type().has_shape())
          continue;
        onnx::TensorShape* shape = info.mutable_type()->mutable_tensor_type()->mutable_shape();
        // The first axis is the samples, whatever its size. Classes are the next one of images, and
        // the last one of other values.
        const int end = shape->dim_size();
        for (int i = 1; i < end; ++i) {
          const int d = layer_->op_type() == "Conv" ? i : end - i;
          if (shape->dim(d).dim_value() == before) {
            shape->mutable_dim(d)->set_dim_value(classes_);
            break;
          }
        }
      }
    }
  }

  onnx::Graph& graph_;
  std::int64_t ir_version_;
  std::int64_t classes_;
  RandomStream random_;
  const onnx::Node* layer_ = nullptr;
  std::string added_bias_;
  std::set<std::string> changed_;  // values after the layer
  struct LastNumber {
    std::int64_t number;
    std::function<void(std::int64_t)> set;
  };
  std::vector<LastNumber> shapes_;  // that end with the number of classes
};

}  // namespace

NewHead replace_head(const std::filesystem::path& from, const std::filesystem::path& to,
                     const std::string& output, std::int64_t classes, std::uint64_t seed,
                     const std::string& output_node) {
  const Buffer bytes = read_model_file(from);
  refuse_other_formats({bytes.data(), bytes.bytes()}, from.string());
  scan_wire({bytes.data(), bytes.bytes()}, from.string());
  onnx::Model model;
  PT_CHECK(model.ParseFromArray(bytes.data(), static_cast<int>(bytes.bytes())), kModel,
           "{} is damaged", printable(from.string()));
  PT_CHECK(model.graph().output_size() > 0, kModel, "{} has no output", printable(from.string()));
  return with_context(
      [&] { return printable(from.string()); },
      [&] {
        NewHead head =
            Head(model, classes, seed).replace(value_to_train(model, output, output_node));
        auto& entries = *model.mutable_metadata_props();
        for (int i = entries.size(); i-- > 0;) {
          if (entries.Get(i).key() == kClassNamesEntry) entries.DeleteSubrange(i, 1);
        }
        head.files = write_with_data(model, from.parent_path(), to);
        return head;
      });
}

}  // namespace pipetrain
