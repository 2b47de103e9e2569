#include "onnx_io/file_map.h"

#include "onnx_io/local_functions.h"

namespace pipetrain {

using namespace onnx_wire;

namespace {

template <class Visit>
void each_field(std::span<const std::byte> file, Range range, Visit&& visit) {
  Reader reader(file, range);
  while (!reader.at_end()) visit(reader.next());
}

Enclosing enclosing(const Field& field) { return {field.length_at, field.content}; }

EnclosingChain extended(EnclosingChain chain, const Field& field) {
  chain.push_back(enclosing(field));
  return chain;
}

class Mapper {
 public:
  explicit Mapper(std::span<const std::byte> file) : file_(file) {}

  std::string string(const Field& field) const { return std::string(text(file_, field.content)); }

  LocatedTensor tensor(const EnclosingChain& chain, std::string* name = nullptr) const {
    LocatedTensor out;
    out.chain = chain;
    each_field(file_, chain.back().content, [&](const Field& field) {
      switch (field.number) {
        case 1:
          if (field.wire == Wire::kVarint) {
            out.dims.push_back(static_cast<std::int64_t>(field.varint));
          } else {
            Reader packed(file_, field.content);
            while (!packed.at_end()) out.dims.push_back(static_cast<std::int64_t>(packed.varint()));
          }
          break;
        case 2:
          out.data_type = static_cast<std::int32_t>(field.varint);
          break;
        case 4:
        case 9:
        case 10:
          out.payload.push_back(field.content);
          // If the tensor gets new raw_data, an empty one must be removed.
          if (field.content.size() == 0) out.other_fields.push_back(field.record);
          break;
        case 5:
        case 7:
        case 11:
          out.other_fields.push_back(field.record);
          break;
        case 8:
          if (name) *name = string(field);
          break;
        case 13:
          out.entries.push_back(entry(chain, field));
          break;
        case 14:
          out.external = field.varint == 1;
          break;
        default:
          break;
      }
    });
    return out;
  }

  LocatedNode node(const EnclosingChain& chain) const {
    LocatedNode out;
    out.chain = chain;
    each_field(file_, chain.back().content, [&](const Field& field) {
      if (field.number == 1) out.inputs.push_back(enclosing(field));
      if (field.number == 5) attribute(extended(chain, field), out);
    });
    return out;
  }

  EnclosingChain pair(const EnclosingChain& chain, std::string& key) const {
    EnclosingChain out = chain;
    each_field(file_, chain.back().content, [&](const Field& field) {
      if (field.number == 1) key = string(field);
      if (field.number == 2) out.push_back(enclosing(field));
    });
    return out;
  }

 private:
  LocatedEntry entry(const EnclosingChain& tensor, const Field& field) const {
    LocatedEntry out;
    out.record = field.record;
    out.value_chain = pair(extended(tensor, field), out.key);
    if (out.value_chain.size() == tensor.size() + 2) {
      out.value = text(file_, out.value_chain.back().content);
    }
    return out;
  }

  void attribute(const EnclosingChain& chain, LocatedNode& out) const {
    LocatedTensor floats;
    floats.data_type = 1;
    floats.chain = chain;
    each_field(file_, chain.back().content, [&](const Field& field) {
      if (field.number == 5) out.tensors.push_back(tensor(extended(chain, field)));
      if (field.number == 2 || field.number == 7) floats.payload.push_back(field.content);
    });
    if (!floats.payload.empty()) out.tensors.push_back(std::move(floats));
  }

  std::span<const std::byte> file_;
};

}  // namespace

const LocatedEntry* LocatedTensor::find_entry(const std::string& key) const {
  for (const LocatedEntry& entry : entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

FileMap::FileMap(std::span<const std::byte> file) {
  const Mapper mapper(file);
  each_field(file, {0, file.size()}, [&](const Field& field) {
    const EnclosingChain chain = {enclosing(field)};
    if (field.number == 14) {
      std::string key;
      EnclosingChain value = mapper.pair(chain, key);
      metadata.emplace(std::move(key), std::move(value));
    } else if (field.number == 25) {
      LocalFunction label;
      std::vector<LocatedNode> body;
      each_field(file, field.content, [&](const Field& part) {
        switch (part.number) {
          case 1:
            label.name = mapper.string(part);
            break;
          case 10:
            label.domain = mapper.string(part);
            break;
          case 13:
            label.overload = mapper.string(part);
            break;
          case 7:
            body.push_back(mapper.node(extended(chain, part)));
            break;
          default:
            break;
        }
      });
      if (label.domain == "ai.onnx") label.domain.clear();
      functions.emplace(label.label(), std::move(body));
    } else if (field.number == 7) {
      graph = chain[0];
      each_field(file, field.content, [&](const Field& part) {
        if (part.number == 1) nodes.push_back(mapper.node(extended(chain, part)));
        if (part.number != 5) return;
        std::string name;
        LocatedTensor tensor = mapper.tensor(extended(chain, part), &name);
        initializers.emplace(std::move(name), std::move(tensor));
      });
    }
  });
}

}  // namespace pipetrain
