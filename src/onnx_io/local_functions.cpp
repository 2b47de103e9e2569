#include "onnx_io/local_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>

#include "base/error.h"

namespace pipetrain {
namespace {

constexpr std::size_t kMaximumPrefix = 100;  // longer name prefixes are abbreviated
constexpr std::size_t kBytesOfName = 160;    // about, in what a call looks up by name

/// What a body expands to; saturates, so that a bomb cannot wrap around.
struct Size {
  std::size_t nodes = 0;
  std::size_t bytes = 0;
  std::size_t depth = 0;  // of calls below, none: 0

  void add(const Size& other) {
    constexpr std::size_t kMost = std::size_t{1} << 62;
    nodes = std::min(kMost, nodes + other.nodes);
    bytes = std::min(kMost, bytes + other.bytes);
    depth = std::max(depth, other.depth);
  }
};

std::size_t bytes_of_text(const std::string& text) {
  return sizeof(std::string) + kMaximumPrefix + text.size();
}

std::size_t bytes_of_attribute(const OnnxAttribute& attribute) {
  std::size_t bytes = sizeof(OnnxAttribute) + attribute.name.size() + attribute.s.size() +
                      attribute.floats.size() * sizeof(float) +
                      attribute.ints.size() * sizeof(std::int64_t);
  for (const std::string& text : attribute.strings) bytes += bytes_of_text(text);
  return bytes;
}

Size size_of_node(const OnnxNode& node) {
  Size size{1,
            sizeof(OnnxNode) + bytes_of_text(node.name) + node.op_type.size() + node.domain.size()};
  for (const std::string& name : node.inputs) size.bytes += bytes_of_text(name);
  for (const std::string& name : node.outputs) size.bytes += bytes_of_text(name);
  for (const OnnxAttribute& attribute : node.attributes)
    size.bytes += bytes_of_attribute(attribute);
  return size;
}

class Inliner {
 public:
  Inliner(const std::vector<LocalFunction>& functions,
          const std::map<std::string, std::int64_t>& opsets, std::set<std::string> taken,
          const InlineLimits& limits)
      : functions_(functions), opsets_(opsets), taken_(std::move(taken)), limits_(limits) {
    std::set<std::string> labels;  // by which nodes name the function that they come from
    for (std::size_t i = 0; i < functions.size(); ++i) {
      const LocalFunction& f = functions[i];
      PT_CHECK(by_name_.emplace(Key{f.domain, f.name, f.overload}, i).second, kModel,
               "local function {} is defined twice", printable(f.label()));
      PT_CHECK(labels.insert(f.label()).second, kModel,
               "two local functions are both called {}: the names and overloads of both join to "
               "that; rename one of them",
               printable(f.label()));
    }
    sizes_.resize(functions.size());
    for (std::size_t i = 0; i < functions.size(); ++i) measure(i);
  }

  Inlined run(std::vector<FileNode> graph) {
    Size total;
    for (const FileNode& call : graph) {
      const auto callee = find(call);
      total.add(callee ? *sizes_[*callee] : Size{1, 0});
      PT_CHECK(total.nodes <= limits_.nodes && total.bytes <= limits_.bytes, kModel,
               "{}: with its local functions expanded the model has more than {} nodes or {} MiB",
               call.node.label(), limits_.nodes, limits_.bytes >> 20);
    }
    for (FileNode& node : graph) {
      if (const auto callee = find(node)) {
        expand(functions_[*callee], node.node, "");
      } else {
        out_.nodes.push_back(std::move(node.node));
      }
    }
    return std::move(out_);
  }

 private:
  using Key = std::tuple<std::string, std::string, std::string>;
  using Values = std::map<std::string_view, const OnnxAttribute*>;  // of attributes, by name

  std::optional<std::size_t> find(const FileNode& node) const {
    const auto found = by_name_.find({node.node.domain, node.node.op_type, node.overload});
    if (found == by_name_.end()) return {};
    return found->second;
  }

  // Fills sizes_[index]. The stack is bounded by the depth limit.
  void measure(std::size_t index) {
    if (sizes_[index]) return;
    const LocalFunction& function = functions_[index];
    if (const auto at = std::ranges::find(open_, index); at != open_.end()) {
      std::string cycle;
      for (auto i = at; i != open_.end(); ++i) cycle += printable(functions_[*i].label()) + " → ";
      PT_FAIL(kModel, "local function {} calls itself: {}{}", printable(function.label()), cycle,
              printable(function.label()));
    }
    PT_CHECK(open_.size() < limits_.depth, kModel,
             "local functions are nested deeper than {} levels, at {}", limits_.depth,
             printable(function.label()));
    open_.push_back(index);
    Size size{function.outputs.size(),
              function.outputs.size() * sizeof(OnnxNode) +
                  (function.inputs.size() + function.defaults.size()) * kBytesOfName};
    for (const FileNode& node : function.nodes) {
      Size own = size_of_node(node.node);
      own.bytes += node.references.size() * kBytesOfName;
      if (const auto callee = find(node)) {
        measure(*callee);
        own.nodes = 0;  // the call itself leaves none
        own.add(*sizes_[*callee]);
      }
      size.add(own);
    }
    open_.pop_back();
    ++size.depth;
    PT_CHECK(size.depth <= limits_.depth, kModel,
             "local functions are nested deeper than {} levels, at {}", limits_.depth,
             printable(function.label()));
    sizes_[index] = size;
  }

  std::string fresh(const std::string& wanted) {
    std::string name = wanted;
    for (std::size_t i = 1; !taken_.insert(name).second; ++i)
      name = fmt::format("{}_{}", wanted, i);
    return name;
  }

  // The prefix of everything inside one call, unique and short.
  std::string prefix_of(const OnnxNode& call, const std::string& outer) {
    const std::string wanted = outer + (call.name.empty() ? call.op_type : call.name);
    ++calls_;
    if (call.name.empty() || wanted.size() + 1 > kMaximumPrefix ||
        !prefixes_.insert(wanted).second) {
      return fmt::format("{}@{}/", wanted.substr(0, std::min<std::size_t>(wanted.size(), 60)),
                         calls_);
    }
    return wanted + "/";
  }

  void expand(const LocalFunction& function, const OnnxNode& call, const std::string& outer) {
    PT_CHECK(call.inputs.size() <= function.inputs.size(), kModel,
             "{} has {} inputs, but local function {} takes {}", call.label(), call.inputs.size(),
             printable(function.label()), function.inputs.size());
    PT_CHECK(call.outputs.size() <= function.outputs.size(), kModel,
             "{} has {} outputs, but local function {} gives {}", call.label(), call.outputs.size(),
             printable(function.label()), function.outputs.size());
    ++out_.calls[function.label()];
    const std::string prefix = prefix_of(call, outer);
    std::map<std::string, std::string> names = {{"", ""}};
    for (std::size_t i = 0; i < function.inputs.size(); ++i) {
      PT_CHECK(
          names.emplace(function.inputs[i], i < call.inputs.size() ? call.inputs[i] : "").second,
          kModel, "local function {} has two inputs '{}'", printable(function.label()),
          printable(function.inputs[i]));
    }
    Values values;
    for (const auto* given : {&call.attributes, &function.defaults}) {
      for (const OnnxAttribute& attribute : *given) values.emplace(attribute.name, &attribute);
    }
    std::vector<OnnxNode> passed_through;
    for (std::size_t i = 0; i < function.outputs.size() && i < call.outputs.size(); ++i) {
      const std::string& formal = function.outputs[i];
      if (call.outputs[i].empty()) continue;
      const auto [known, inserted] = names.emplace(formal, call.outputs[i]);
      if (inserted) continue;
      // The function returns an input, or one value twice: that takes a node.
      OnnxNode identity;
      identity.name = prefix + "Identity";
      identity.op_type = "Identity";
      identity.inputs = {known->second};
      identity.outputs = {call.outputs[i]};
      identity.opset = opset_of("", function);
      identity.function = function.label();
      passed_through.push_back(std::move(identity));
    }
    for (const FileNode& body : function.nodes) {
      OnnxNode node = body.node;
      const auto rename = [&](std::string& name) {
        auto found = names.find(name);
        if (found == names.end()) found = names.emplace(name, fresh(prefix + name)).first;
        name = found->second;
      };
      std::ranges::for_each(node.inputs, rename);
      std::ranges::for_each(node.outputs, rename);
      node.function = function.label();
      node.opset = opset_of(node.domain, function);
      const auto callee = find(body);
      if (!callee) {
        node.name = prefix + (node.name.empty() ? node.op_type : node.name);
        charge(size_of_node(node).bytes, node);
      }
      bind(body, function, values, node);
      if (callee) {
        expand(functions_[*callee], node, prefix);
      } else {
        out_.nodes.push_back(std::move(node));
      }
    }
    for (OnnxNode& node : passed_through) out_.nodes.push_back(std::move(node));
  }

  std::int64_t opset_of(const std::string& domain, const LocalFunction& function) const {
    for (const auto* imports : {&function.opsets, &opsets_}) {
      if (const auto found = imports->find(domain); found != imports->end()) return found->second;
    }
    return 0;
  }

  void charge(std::size_t bytes, const OnnxNode& node) {
    expanded_bytes_ += bytes;
    PT_CHECK(expanded_bytes_ <= limits_.bytes, kModel,
             "{}: with its local functions expanded the model takes more than {} MiB", node.label(),
             limits_.bytes >> 20);
  }

  // Gives `node` the attributes that its references name, from the `values` of the call.
  void bind(const FileNode& body, const LocalFunction& function, const Values& values,
            OnnxNode& node) {
    for (const AttributeReference& reference : body.references) {
      const auto found = values.find(reference.source);
      if (found == values.end()) continue;  // an optional attribute that the call does not give
      const OnnxAttribute* const value = found->second;
      PT_CHECK(value->kind == reference.kind, kModel,
               "{}: attribute '{}' must be {} but the call of local function {} gives {}",
               body.node.label(), printable(reference.name), name_of(reference.kind),
               printable(function.label()), name_of(value->kind));
      charge(bytes_of_attribute(*value), node);  // it is not in the measured sizes
      node.attributes.push_back(*value);
      node.attributes.back().name = reference.name;
      node.attributes.back().bound = true;
    }
  }

  const std::vector<LocalFunction>& functions_;
  const std::map<std::string, std::int64_t>& opsets_;
  std::set<std::string> taken_;
  InlineLimits limits_;
  std::map<Key, std::size_t> by_name_;
  std::vector<std::optional<Size>> sizes_;
  std::vector<std::size_t> open_;  // functions being measured, outermost first
  std::set<std::string> prefixes_;
  std::size_t calls_ = 0;
  std::size_t expanded_bytes_ = 0;
  Inlined out_;
};

}  // namespace

std::string LocalFunction::label() const {
  return overload.empty() ? domain + "::" + name : domain + "::" + name + ":" + overload;
}

Inlined inline_functions(std::vector<FileNode> graph, const std::vector<LocalFunction>& functions,
                         const std::map<std::string, std::int64_t>& opsets,
                         std::set<std::string> taken, const InlineLimits& limits) {
  return Inliner(functions, opsets, std::move(taken), limits).run(std::move(graph));
}

}  // namespace pipetrain
