#include "ops/registry/registry.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/vectors.h"
#include "ops/registry/narrow_kernel.h"
#include "ops/registry/row_major_kernel.h"

namespace pipetrain {
namespace {

template <class Item, class Select, class Key>
std::map<std::string_view, const Item*> index(Select select, Key key) {
  std::map<std::string_view, const Item*> out;
  for (const OpFamily* family : all_families()) {
    for (const Item& item : select(*family)) out.emplace(key(item), &item);
  }
  return out;
}

template <class Item>
const Item* lookup(const std::map<std::string_view, const Item*>& table, std::string_view name) {
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

const std::map<std::string_view, const ImportRule*>& all_imports() {
  static const auto table = index<ImportRule>([](const OpFamily& f) { return f.imports; },
                                              [](const ImportRule& rule) { return rule.op_type; });
  return table;
}

const KernelEntry* find_kernel(Backend backend, std::string_view op) {
  static const auto reference =
      index<KernelEntry>([](const OpFamily& f) { return f.reference; },
                         [](const KernelEntry& entry) { return entry.op; });
  static const auto cpu = index<KernelEntry>([](const OpFamily& f) { return f.cpu; },
                                             [](const KernelEntry& entry) { return entry.op; });
  return lookup(backend == Backend::kCpu ? cpu : reference, op);
}

/// Whether the operator has a kernel for the narrow types of the request.
bool takes_narrow(Backend backend, const KernelRequest& request) {
  static const auto families = [] {
    std::map<std::string_view, const OpFamily*> out;
    for (const OpFamily* family : all_families()) {
      for (const OpDef& op : family->ops) out.emplace(op.name, family);
    }
    return out;
  }();
  const OpFamily* family = lookup(families, request.node.op->name);
  return family && family->takes_narrow && family->takes_narrow(backend, request);
}

}  // namespace

const OpDef* find_op(std::string_view name) {
  static const auto table = index<OpDef>([](const OpFamily& f) { return f.ops; },
                                         [](const OpDef& op) { return op.name; });
  return lookup(table, name);
}

const ImportRule* find_import(std::string_view onnx_op_type) {
  return lookup(all_imports(), onnx_op_type);
}

std::vector<std::string_view> importable_operators() {
  std::vector<std::string_view> out;
  for (const auto& [name, rule] : all_imports()) out.push_back(name);
  return out;
}

bool has_cpu_kernel(std::string_view op) { return find_kernel(Backend::kCpu, op) != nullptr; }

std::unique_ptr<Kernel> make_kernel(Backend backend, const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  return with_context(
      [&] { return fmt::format("making the kernel of {} ({})", printable(request.node.name), op); },
      [&] {
        std::unique_ptr<Kernel> kernel;
        if (backend == Backend::kCpu) check_processor();
        if (op != "Reorder" && has_layout_of_gpus(request))
          return make_row_major_kernel(backend, request);
        if (has_narrow(request) && !only_moves_narrow(request) && !takes_narrow(backend, request))
          kernel = make_narrow_kernel(backend, request);
        if (kernel) return kernel;
        if (const KernelEntry* entry = find_kernel(backend, op)) kernel = entry->make(request);
        if (!kernel && backend == Backend::kCpu) {
          if (const KernelEntry* entry = find_kernel(Backend::kReference, op)) {
            kernel = entry->make(request);
          }
        }
        PT_CHECK(kernel != nullptr, kModel, "{} has no kernel for {}", op,
                 request.inputs.empty() ? request.outputs.at(0).text() : request.inputs[0].text());
        return kernel;
      });
}

std::vector<HostTensor> evaluate(const Node& node, std::span<const HostTensor> inputs,
                                 std::span<const TensorType> outputs) {
  // What is larger or longer is computed when training begins, by the kernels of the device.
  constexpr std::size_t kMaximumBytes = std::size_t{256} << 20;
  constexpr double kMaximumFlops = 1e9;
  std::size_t bytes = 0;
  for (const TensorType& type : outputs) bytes += type.bytes();
  if (bytes > kMaximumBytes) return {};
  KernelRequest request{node, {}, {outputs.begin(), outputs.end()}};
  std::vector<Tensor> in;
  for (const HostTensor& tensor : inputs) {
    request.inputs.push_back(tensor.type());
    in.push_back(tensor ? tensor.view() : Tensor{});
  }
  if (node.op->cost &&
      node.op->cost(node.attributes, request.inputs, outputs).flops > kMaximumFlops)
    return {};
  if (node.op->flags & kView) return {inputs[0].reshaped(outputs[0].shape)};
  std::vector<HostTensor> results;
  std::vector<Tensor> out;
  for (const TensorType& type : outputs) {
    results.emplace_back(type);
    out.push_back(results.back().view());
  }
  const std::unique_ptr<Kernel> kernel = make_kernel(Backend::kReference, request);
  const Buffer workspace(kernel->workspace_bytes());
  RunContext context;
  context.workspace = workspace.data();
  kernel->run(in, out, context);
  return results;
}

GraphBuilder make_builder(Graph& graph) { return {graph, find_op, evaluate}; }

}  // namespace pipetrain
