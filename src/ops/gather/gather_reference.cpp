// Plain loops for gathers of any element type and for the gradients of float ones.
#include <algorithm>
#include <cstring>

#include "graph/op.h"
#include "ops/gather/gather.h"
#include "ops/kernel/element_types.h"
#include "ops/kernel/type_switch.h"

namespace pipetrain {
namespace {

using Tensors = std::span<const Tensor>;

std::size_t index_bytes(std::int64_t count) {
  return sizeof(std::int64_t) * static_cast<std::size_t>(count);
}

std::int64_t* index_workspace(const RunContext& context) {
  return reinterpret_cast<std::int64_t*>(context.workspace);
}

/// Calls `visit(result_slice, data_slice)` for every tuple of every repetition.
template <class Visit>
void for_each_slice(const SliceGather& gather, const std::int64_t* rows, Visit visit) {
  for (std::int64_t outer = 0; outer < gather.outer; ++outer) {
    const std::int64_t* tuples = gather.shared ? rows : rows + outer * gather.count;
    for (std::int64_t i = 0; i < gather.count; ++i) {
      visit(outer * gather.count + i, outer * gather.rows() + tuples[i]);
    }
  }
}

std::unique_ptr<Kernel> make_slices(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  const SliceGather gather = slice_gather(request.node.op->name, request.node.attributes,
                                          request.inputs[0].shape, request.inputs[1].shape);
  const std::size_t bytes =
      size_of(request.inputs[0].dtype) * static_cast<std::size_t>(gather.slice);
  return make_kernel(
      [gather, bytes](Tensors in, Tensors out, const RunContext& context) {
        std::int64_t* rows = index_workspace(context);
        resolve_rows(gather, in[1], rows);
        const auto* data = in[0].as<std::byte>();
        auto* result = out[0].as<std::byte>();
        for_each_slice(gather, rows, [&](std::int64_t to, std::int64_t from) {
          std::memcpy(result + static_cast<std::size_t>(to) * bytes,
                      data + static_cast<std::size_t>(from) * bytes, bytes);
        });
      },
      index_bytes(gather.tuples()));
}

std::unique_ptr<Kernel> make_slices_gradient(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  const std::string_view op = request.node.op->name == "GatherGrad" ? "Gather" : "GatherND";
  const SliceGather gather =
      slice_gather(op, request.node.attributes, request.outputs[0].shape, request.inputs[1].shape);
  return for_element_type<float, double>(request.inputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [gather](Tensors in, Tensors out, const RunContext& context) {
          std::int64_t* rows = index_workspace(context);
          resolve_rows(gather, in[1], rows);
          std::fill_n(out[0].as<T>(), out[0].count(), T{0});
          for_each_slice(gather, rows, [&](std::int64_t from, std::int64_t to) {
            const T* dy = in[0].as<T>() + from * gather.slice;
            T* sum = out[0].as<T>() + to * gather.slice;
            for (std::int64_t i = 0; i < gather.slice; ++i) sum[i] += dy[i];
          });
        },
        index_bytes(gather.tuples()));
  });
}

/// `visit(position, offset)` for every index of an element gather.
template <class Visit>
std::unique_ptr<Kernel> element_kernel(ElementGather gather, Visit visit) {
  const std::int64_t count = gather.indices.count();
  return make_kernel(
      [gather = std::move(gather), count, visit](Tensors in, Tensors out,
                                                 const RunContext& context) {
        std::int64_t* offsets = index_workspace(context);
        resolve_elements(gather, in[1], offsets);
        visit(in, out, std::span<const std::int64_t>(offsets, static_cast<std::size_t>(count)));
      },
      index_bytes(count));
}

using Offsets = std::span<const std::int64_t>;

std::unique_ptr<Kernel> make_elements(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  const std::size_t bytes = size_of(request.inputs[0].dtype);
  return element_kernel(
      element_gather(request.node.attributes, request.inputs[0].shape, request.inputs[1].shape),
      [bytes](Tensors in, Tensors out, Offsets offsets) {
        for (std::size_t i = 0; i < offsets.size(); ++i) {
          const auto from = static_cast<std::size_t>(offsets[i]);
          std::memcpy(out[0].as<std::byte>() + i * bytes, in[0].as<std::byte>() + from * bytes,
                      bytes);
        }
      });
}

std::unique_ptr<Kernel> make_elements_gradient(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  return for_element_type<float, double>(request.inputs[0].dtype, [&]<class T>() {
    return element_kernel(
        element_gather(request.node.attributes, request.outputs[0].shape, request.inputs[1].shape),
        [](Tensors in, Tensors out, Offsets offsets) {
          std::fill_n(out[0].as<T>(), out[0].count(), T{0});
          for (std::size_t i = 0; i < offsets.size(); ++i) {
            out[0].as<T>()[offsets[i]] += in[0].as<T>()[i];
          }
        });
  });
}

/// Combines elements of `from` with those of `to`, or replaces them.
template <class T>
void combine(const std::string& reduction, const T* from, T* to, std::int64_t count) {
  const auto each = [&](auto f) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(f(to[i], from[i]));
  };
  if (reduction == "add") return each([](T a, T b) { return a + b; });
  if (reduction == "mul") return each([](T a, T b) { return a * b; });
  if (reduction == "max") return each([](T a, T b) { return a > b || a != a ? a : b; });
  if (reduction == "min") return each([](T a, T b) { return a < b || a != a ? a : b; });
  std::copy_n(from, count, to);
}

template <class Make>
std::unique_ptr<Kernel> for_scatter_type(DType dtype, Make make) {
  std::unique_ptr<Kernel> made;
  visit_number(dtype == DType::kBool ? DType::kUint8 : dtype,
               [&]<class T>(T) { made = make.template operator()<T>(); });
  return made;
}

std::unique_ptr<Kernel> make_scatter_elements(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  const std::string reduction = request.node.attributes.text("reduction", "none");
  return for_scatter_type(request.inputs[0].dtype, [&]<class T>() {
    return element_kernel(
        element_gather(request.node.attributes, request.inputs[0].shape, request.inputs[1].shape),
        [reduction](Tensors in, Tensors out, Offsets offsets) {
          std::copy_n(in[0].as<T>(), in[0].count(), out[0].as<T>());
          for (std::size_t i = 0; i < offsets.size(); ++i) {
            combine(reduction, in[2].as<T>() + i, out[0].as<T>() + offsets[i], 1);
          }
        });
  });
}

std::unique_ptr<Kernel> make_scatter_nd(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  const std::string reduction = request.node.attributes.text("reduction", "none");
  const SliceGather gather =
      slice_gather("GatherND", {}, request.inputs[0].shape, request.inputs[1].shape);
  return for_scatter_type(request.inputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [gather, reduction](Tensors in, Tensors out, const RunContext& context) {
          std::int64_t* rows = index_workspace(context);
          resolve_rows(gather, in[1], rows);
          std::copy_n(in[0].as<T>(), in[0].count(), out[0].as<T>());
          for_each_slice(gather, rows, [&](std::int64_t from, std::int64_t to) {
            combine(reduction, in[2].as<T>() + from * gather.slice,
                    out[0].as<T>() + to * gather.slice, gather.slice);
          });
        },
        index_bytes(gather.tuples()));
  });
}

constexpr KernelEntry kGatherReferenceKernels[] = {
    {"Gather", make_slices},
    {"GatherElements", make_elements},
    {"GatherElementsGrad", make_elements_gradient},
    {"GatherGrad", make_slices_gradient},
    {"GatherND", make_slices},
    {"GatherNDGrad", make_slices_gradient},
    {"ScatterElements", make_scatter_elements},
    {"ScatterND", make_scatter_nd},
};

}  // namespace

std::span<const KernelEntry> gather_reference_kernels() { return kGatherReferenceKernels; }

}  // namespace pipetrain
