#include "ops/kernel/onednn_cpu.h"

#include "base/error.h"

namespace pipetrain {
namespace {

dnnl::memory::dims dims_of(const Shape& shape) {
  return shape.rank() == 0 ? dnnl::memory::dims{1} : shape.dims();
}

dnnl::memory::format_tag blocked_tag(std::size_t rank, Layout layout) {
  using Tag = dnnl::memory::format_tag;
  const bool wide = layout == Layout::kBlocked16;
  switch (rank) {
    case 2:
      return Tag::ab;
    case 3:
      return wide ? Tag::aBc16b : Tag::aBc8b;
    case 4:
      return wide ? Tag::aBcd16b : Tag::aBcd8b;
    case 5:
      return wide ? Tag::aBcde16b : Tag::aBcde8b;
    default:
      PT_FAIL(kInternal, "no channel-blocked layout of rank {}", rank);
  }
}

}  // namespace

const dnnl::engine& onednn_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::data_type onednn_data_type(DType dtype) {
  using Type = dnnl::memory::data_type;
  switch (dtype) {
    case DType::kFloat32:
      return Type::f32;
    case DType::kBFloat16:
      return Type::bf16;
    case DType::kFloat16:
      return Type::f16;
    case DType::kInt32:
      return Type::s32;
    case DType::kInt8:
      return Type::s8;
    case DType::kUint8:
      return Type::u8;
    default:
      PT_FAIL(kInternal, "oneDNN has no {}", name_of(dtype));
  }
}

dnnl::memory::desc onednn_desc(const TensorType& type) {
  if (type.layout == Layout::kRowMajor) return onednn_row_major(type.shape, type.dtype);
  return {dims_of(type.shape), onednn_data_type(type.dtype),
          blocked_tag(type.shape.rank(), type.layout)};
}

dnnl::memory::desc onednn_row_major(const Shape& shape, DType dtype) {
  const dnnl::memory::dims strides = shape.rank() == 0 ? dnnl::memory::dims{1} : shape.strides();
  return {dims_of(shape), onednn_data_type(dtype), strides};
}

dnnl::memory::desc onednn_any(const Shape& shape, DType dtype) {
  return {dims_of(shape), onednn_data_type(dtype), dnnl::memory::format_tag::any};
}

dnnl::primitive_attr onednn_user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

PrimitiveSequence::PrimitiveSequence() : stream_(onednn_engine()) {}

PrimitiveSequence::Slot PrimitiveSequence::append_slot(Source source, std::size_t index,
                                                       const dnnl::memory::desc& desc) {
  Memory slot{source, index, 0, desc, dnnl::memory(desc, onednn_engine(), DNNL_MEMORY_NONE)};
  if (source == Source::kWorkspace) slot.offset = reserve(desc.get_size());
  slots_.push_back(std::move(slot));
  return static_cast<Slot>(slots_.size()) - 1;
}

std::size_t PrimitiveSequence::reserve(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t offset = workspace_bytes_;
  workspace_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return offset;
}

PrimitiveSequence::Slot PrimitiveSequence::input(std::size_t index,
                                                 const dnnl::memory::desc& desc) {
  return append_slot(Source::kInput, index, desc);
}

PrimitiveSequence::Slot PrimitiveSequence::output(std::size_t index,
                                                  const dnnl::memory::desc& desc) {
  const Slot slot = append_slot(Source::kOutput, index, desc);
  if (index > 0) slots_.back().offset = reserve(desc.get_size());
  return slot;
}

PrimitiveSequence::Slot PrimitiveSequence::temporary(const dnnl::memory::desc& desc) {
  return append_slot(Source::kWorkspace, 0, desc);
}

PrimitiveSequence::Slot PrimitiveSequence::convert(Slot slot, const dnnl::memory::desc& desc) {
  if (this->desc(slot) == desc) return slot;
  const Slot out = temporary(desc);
  reorder(slot, out);
  return out;
}

void PrimitiveSequence::reorder(Slot from, Slot to) {
  const dnnl::reorder::primitive_desc reorder_desc(onednn_engine(), desc(from), onednn_engine(),
                                                   desc(to), onednn_user_scratchpad());
  add(dnnl::reorder(reorder_desc), reorder_desc, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

void PrimitiveSequence::append(const dnnl::primitive& primitive,
                               const dnnl::memory::desc& scratchpad, const char* implementation,
                               Arguments arguments) {
  Step step{primitive, {}};
  const auto bind = [&](int argument, Slot slot) {
    step.arguments.push_back({argument, slots_[static_cast<std::size_t>(slot)].memory.get()});
  };
  for (const auto& [argument, slot] : arguments) bind(argument, slot);
  if (scratchpad.get_size() > 0) bind(DNNL_ARG_SCRATCHPAD, temporary(scratchpad));
  steps_.push_back(std::move(step));
  if (!implementations_.empty()) implementations_ += ", ";
  implementations_ += implementation;
}

void PrimitiveSequence::run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                            const RunContext& context) {
  for (Memory& slot : slots_) {
    void* data = context.workspace + slot.offset;
    if (slot.source == Source::kInput) data = inputs[slot.index].data;
    if (slot.source == Source::kOutput && slot.index < outputs.size() && outputs[slot.index]) {
      data = outputs[slot.index].data;
    }
    if (data == slot.bound) continue;  // setting a handle may write the padding of a blocked layout
    slot.memory.set_data_handle(data, stream_);
    slot.bound = data;
  }
  for (const Step& step : steps_) {
    const dnnl_status_t status =
        dnnl_primitive_execute(step.primitive.get(), stream_.get(),
                               static_cast<int>(step.arguments.size()), step.arguments.data());
    PT_CHECK(status == dnnl_success, kDevice, "a oneDNN primitive failed with status {}",
             static_cast<int>(status));
  }
}

}  // namespace pipetrain
