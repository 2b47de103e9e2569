#include "graph/attributes.h"

#include <fmt/format.h>

#include "base/error.h"

namespace pipetrain {

const Attributes::Value* Attributes::find(std::string_view name) const {
  for (const auto& [key, value] : items_) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Attributes::set(std::string name, Value value) {
  for (auto& [key, old] : items_) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  items_.emplace_back(std::move(name), std::move(value));
}

template <class T>
const T* Attributes::typed(std::string_view name) const {
  const Value* value = find(name);
  if (!value) return nullptr;
  const T* out = std::get_if<T>(value);
  PT_CHECK(out != nullptr, kModel, "attribute {} has the wrong type", printable(name));
  return out;
}

template <class T>
const T& Attributes::required(std::string_view name) const {
  const T* out = typed<T>(name);
  PT_CHECK(out != nullptr, kModel, "attribute {} is missing", printable(name));
  return *out;
}

std::int64_t Attributes::integer(std::string_view name, std::int64_t fallback) const {
  const auto* value = typed<std::int64_t>(name);
  return value ? *value : fallback;
}
double Attributes::real(std::string_view name, double fallback) const {
  const auto* value = typed<double>(name);
  return value ? *value : fallback;
}
std::string Attributes::text(std::string_view name, std::string fallback) const {
  const auto* value = typed<std::string>(name);
  return value ? *value : fallback;
}
Ints Attributes::ints(std::string_view name, Ints fallback) const {
  const auto* value = typed<Ints>(name);
  return value ? *value : fallback;
}
Reals Attributes::reals(std::string_view name, Reals fallback) const {
  const auto* value = typed<Reals>(name);
  return value ? *value : fallback;
}
std::int64_t Attributes::integer(std::string_view name) const {
  return required<std::int64_t>(name);
}
double Attributes::real(std::string_view name) const { return required<double>(name); }
Ints Attributes::ints(std::string_view name) const { return required<Ints>(name); }
HostTensor Attributes::tensor(std::string_view name) const { return required<HostTensor>(name); }

std::string Attributes::to_text() const {
  struct Printer {
    std::string operator()(std::int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const { return fmt::format("{}", v); }
    std::string operator()(const std::string& v) const {
      return fmt::format("\"{}\"", printable(v));
    }
    std::string operator()(const Ints& v) const { return fmt::format("[{}]", fmt::join(v, ", ")); }
    std::string operator()(const Reals& v) const { return fmt::format("[{}]", fmt::join(v, ", ")); }
    std::string operator()(const HostTensor& v) const { return v.type().text(); }
  };
  std::string out = "{";
  for (const auto& [key, value] : items_) {
    if (out.size() > 1) out += ", ";
    out += key + ": " + std::visit(Printer{}, value);
  }
  return out + "}";
}

}  // namespace pipetrain
