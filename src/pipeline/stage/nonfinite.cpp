#include "pipeline/stage/nonfinite.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/index.h"
#include "graph/op.h"
#include "ops/kernel/adding_kernel.h"
#include "tensor/finite.h"

namespace pipetrain {

std::string to_text(const NonfiniteValue& value) {
  std::string text = value.what;
  if (value.place) {
    text += value.backward ? " in the backward pass" : " in the forward pass";
    if (value.place->micro_batch >= 0)
      text += fmt::format(" of micro-batch {}", value.place->micro_batch);
    text += fmt::format(" in step {}", value.place->step + 1);
  }
  if (value.sample >= 0) text += fmt::format(", for sample {} of the mini-batch", value.sample);
  return text + fmt::format(", on stage {}", value.stage);
}

bool comes_before(const NonfiniteValue& a, const NonfiniteValue& b) {
  const auto key = [](const NonfiniteValue& value) {
    const PassPlace place = value.place.value_or(PassPlace());
    return std::tuple(place.step, value.backward, place.micro_batch, value.stage);
  };
  return key(a) < key(b);
}

NonfiniteSearch::NonfiniteSearch(const CompiledVariant& variant, const StageAddresses& real,
                                 const StageExecutor& executor)
    : variant_(variant),
      executor_(executor),
      slot_(variant.layout.slot_bytes),
      forward_out_(variant.layout.forward_out_bytes),
      gradient_out_(variant.layout.gradient_out_bytes),
      temporary_(variant.layout.temporary_bytes),
      addresses_(real) {
  addresses_.slot = slot_.data();
  addresses_.forward_out = forward_out_.data();
  addresses_.gradient_out = gradient_out_.data();
  addresses_.temporary = temporary_.data();
}

const Buffer& NonfiniteSearch::contribution(int accumulation, const TensorType& type) {
  Buffer& buffer = contributions_[accumulation];
  if (!buffer.data()) buffer = Buffer(type.bytes());
  return buffer;
}

void NonfiniteSearch::bind(StageStep& step) {
  const auto address = [&](const Location& at, int direct, const TensorType& type) -> void* {
    return direct >= 0 ? contribution(direct, type).data() : addresses_.of(at);
  };
  for (std::size_t i = 0; i < step.in.size(); ++i)
    step.in[i].data = address(step.in_at[i], step.in_direct[i], step.in[i].type);
  for (std::size_t i = 0; i < step.out.size(); ++i)
    step.out[i].data = address(step.out_at[i], step.out_direct[i], step.out[i].type);
}

void NonfiniteSearch::run(std::vector<StageStep>& steps, bool backward) {
  RunContext context;
  context.workspace = executor_.workspace().data;
  context.seed = addresses_.micro_batch->seed;
  context.step = addresses_.micro_batch->step;
  context.first_sample = addresses_.micro_batch->first_sample;
  context.samples = variant_.training->micro_batch;
  for (StageStep& step : steps) {
    bind(step);
    const Origin* from = worst_input(step, backward);
    // Those keep a record of the rows that they write; they only add up.
    if (dynamic_cast<RowAddingKernel*>(step.kernel.get())) continue;
    step.kernel->run(step.in, step.out, context);
    look_at_outputs(step, from, backward);
  }
}

NonfiniteSearch::Origin NonfiniteSearch::next_origin(bool backward) {
  Origin origin;
  origin.order = found_++;
  origin.backward = backward;
  return origin;
}

/// The origin of an operand that is not finite, of a NaN if there is one. Infinite constants are
/// meant: masks have them.
const NonfiniteSearch::Origin* NonfiniteSearch::worst_input(const StageStep& step, bool backward) {
  const Graph& graph = variant_.training->graph;
  const Node& node = graph[step.node];
  const Origin* worst = nullptr;
  for (std::size_t i = 0; i < step.in.size(); ++i) {
    if (!step.in[i]) continue;
    const ValueId root = variant_.root(node.inputs[i]);
    auto found = origins_.find(root);
    if (found == origins_.end() && !made_.contains(root)) {
      const Value& value = graph[root];
      const FirstNonfinite first = first_nonfinite(step.in[i]);
      if (first.index < 0 || (value.role == Role::kConstant && !first.is_nan)) continue;
      Origin origin = next_origin(backward);
      origin.is_nan = first.is_nan;
      if (value.role == Role::kParameter || value.role == Role::kConstant) {
        origin.begin = fmt::format("weight {} was not finite when {} read it",
                                   printable(value.name), describe(node));
      } else if (value.role == Role::kInput || value.role == Role::kLabel) {
        origin.begin =
            fmt::format("input {} had a value that is not finite", printable(value.name));
        origin.row = row_of(step.in[i].type, first.index);
      }
      found = origins_.emplace(root, std::move(origin)).first;
    }
    if (found == origins_.end()) continue;
    if (!worst || (found->second.is_nan && !worst->is_nan)) worst = &found->second;
  }
  return worst;
}

void NonfiniteSearch::look_at_outputs(const StageStep& step, const Origin* from, bool backward) {
  const Node& node = variant_.training->graph[step.node];
  for (std::size_t i = 0; i < step.out.size(); ++i) {
    if (!step.out[i]) continue;
    const ValueId root = variant_.root(node.outputs[i]);
    made_[root] = true;
    const FirstNonfinite first = first_nonfinite(step.out[i]);
    if (first.index < 0) {
      origins_.erase(root);
      continue;
    }
    Origin origin = from ? *from : next_origin(backward);
    if (!from) {
      origin.begin = fmt::format("{} made {}", describe(node),
                                 first.is_nan ? "the first NaN" : "the first infinite value");
      origin.row = row_of(step.out[i].type, first.index);
    } else if (first.is_nan && !from->is_nan) {
      origin.nan = describe(node);
    }
    origin.is_nan = first.is_nan;
    origins_[root] = std::move(origin);
  }
}

std::optional<NonfiniteValue> NonfiniteSearch::origin_of(const std::vector<ValueId>& values) const {
  const Origin* first = nullptr;
  for (const ValueId id : values) {
    const auto found = origins_.find(variant_.root(id));
    if (found != origins_.end() && (!first || found->second.order < first->order))
      first = &found->second;
  }
  if (!first || first->begin.empty()) return {};
  NonfiniteValue value;
  value.what = first->begin;
  if (!first->nan.empty()) value.what += fmt::format(", and {} made NaN of it,", first->nan);
  if (first->row >= 0) value.sample = addresses_.micro_batch->first_sample + first->row;
  value.backward = first->backward;
  return value;
}

/// "node "exp" (Exp)"; of a chain of element-wise operators that run as one, all of them.
std::string NonfiniteSearch::describe(const Node& node) const {
  const Graph& graph = variant_.training->graph;
  const std::string members = node.attributes.text("members", "");
  const Node& forward = node.gradient_of ? graph[node.gradient_of] : node;
  const std::string name = node.name.empty() ? forward.name : node.name;
  if (members.find('\n') == std::string::npos)
    return fmt::format("node {} ({})", printable(name), node.op->name);
  std::string text = "one of the nodes";
  std::size_t begin = 0;
  for (std::size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = members.find('\n', begin);
    text +=
        fmt::format("{} {}", begin == 0 ? "" : ",", printable(members.substr(begin, end - begin)));
  }
  return text;
}

/// The row of the micro-batch that an element belongs to; -1 where axis 0 is not, or may not be,
/// the samples'.
std::int64_t NonfiniteSearch::row_of(const TensorType& type, std::int64_t element) const {
  const std::int64_t rows = variant_.training->micro_batch;
  const Shape& shape = type.shape;
  if (rows == 1) return 0;
  if (shape.rank() == 0 || shape[0] != rows || (shape.rank() > 1 && shape[1] == rows)) return -1;
  return element / shape.count(1, shape.rank());
}

}  // namespace pipetrain
