#include "onnx_io/splice.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace pipetrain {

void Splice::replace(onnx_wire::Range range, std::string bytes, const EnclosingChain& chain) {
  Edit edit;
  edit.range = range;
  edit.text = std::move(bytes);
  add(std::move(edit), chain);
}

void Splice::replace(onnx_wire::Range range, std::shared_ptr<const TensorMaker> make,
                     std::size_t offset, std::size_t count, const EnclosingChain& chain) {
  Edit edit;
  edit.range = range;
  edit.make = std::move(make);
  edit.offset = offset;
  edit.count = count;
  add(std::move(edit), chain);
}

void Splice::add(Edit edit, const EnclosingChain& chain) {
  PT_CHECK(!settled_, kInternal, "a file is edited after it was written");
  const auto delta =
      static_cast<std::int64_t>(edit.size()) - static_cast<std::int64_t>(edit.range.size());
  edit.depth = chain.size();
  edits_.push_back(std::move(edit));
  if (delta == 0) return;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    Grown& grown = grown_[chain[i].length_at];
    grown.message = chain[i];
    grown.depth = i;
    if (i > 0) grown.parent = chain[i - 1].length_at;
    grown.delta += delta;
  }
}

void Splice::settle() {
  if (settled_) return;
  settled_ = true;
  // Innermost messages first: a prefix that grows makes the messages around it grow too.
  std::vector<Grown*> order;
  for (auto& [at, grown] : grown_) order.push_back(&grown);
  std::ranges::stable_sort(order, std::greater<>(), &Grown::depth);
  for (const Grown* grown : order) {
    if (grown->delta == 0) continue;
    Edit prefix;
    prefix.range = {grown->message.length_at, grown->message.content.begin};
    onnx_wire::append_varint(
        prefix.text, grown->message.content.size() + static_cast<std::size_t>(grown->delta));
    const auto change = static_cast<std::int64_t>(prefix.text.size()) -
                        static_cast<std::int64_t>(prefix.range.size());
    edits_.push_back(std::move(prefix));
    const Grown* inner = grown;
    while (change != 0 && inner->depth > 0) {
      Grown& outer = grown_.at(inner->parent);
      outer.delta += change;
      inner = &outer;
    }
  }
  // What is inserted where a message ends still belongs to it: inner insertions come first.
  std::ranges::stable_sort(edits_, {}, [](const Edit& edit) {
    return std::tuple(edit.range.begin, edit.range.end, -static_cast<std::int64_t>(edit.depth));
  });
  for (std::size_t i = 1; i < edits_.size(); ++i) {
    PT_CHECK(edits_[i - 1].range.end <= edits_[i].range.begin, kInternal,
             "two edits of a file overlap at byte {}", edits_[i].range.begin);
  }
}

std::uint64_t Splice::size() {
  settle();
  std::uint64_t size = file_.size();
  for (const Edit& edit : edits_) size += edit.size() - edit.range.size();
  return size;
}

void Splice::write(const std::function<void(std::span<const std::byte>)>& write) {
  settle();
  std::size_t done = 0;
  const TensorMaker* last = nullptr;
  HostTensor value;
  for (const Edit& edit : edits_) {
    write(file_.subspan(done, edit.range.begin - done));
    if (!edit.make) {
      write(std::as_bytes(std::span(edit.text)));
    } else {
      if (edit.make.get() != last) {
        value = {};
        value = (*edit.make)();
      }
      last = edit.make.get();
      write({static_cast<const std::byte*>(value.view().data) + edit.offset, edit.count});
    }
    done = edit.range.end;
  }
  write(file_.subspan(done));
}

}  // namespace pipetrain
