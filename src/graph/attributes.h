// Named, typed attributes of a node.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tensor/tensor.h"

namespace pipetrain {

using Ints = std::vector<std::int64_t>;
using Reals = std::vector<double>;

class Attributes {
 public:
  using Value = std::variant<std::int64_t, double, std::string, Ints, Reals, HostTensor>;

  Attributes() = default;
  Attributes(std::initializer_list<std::pair<std::string, Value>> items) : items_(items) {}
  /// Of any number of items; no name may be in them twice.
  static Attributes of(std::vector<std::pair<std::string, Value>> items) {
    Attributes out;
    out.items_ = std::move(items);
    return out;
  }

  bool has(std::string_view name) const { return find(name) != nullptr; }
  void set(std::string name, Value value);

  /// The value, or the default when absent. A value of another type is an Error (kModel) naming the
  /// attribute.
  std::int64_t integer(std::string_view name, std::int64_t fallback) const;
  double real(std::string_view name, double fallback) const;
  std::string text(std::string_view name, std::string fallback) const;
  Ints ints(std::string_view name, Ints fallback) const;
  Reals reals(std::string_view name, Reals fallback) const;
  bool flag(std::string_view name) const { return integer(name, 0) != 0; }
  /// The value; an Error (kModel) when absent.
  std::int64_t integer(std::string_view name) const;
  double real(std::string_view name) const;
  Ints ints(std::string_view name) const;
  HostTensor tensor(std::string_view name) const;

  const std::vector<std::pair<std::string, Value>>& items() const { return items_; }
  /// "{axis: 1, pads: [0, 0]}"; tensors by type only. Equal attributes in equal order give equal
  /// texts.
  std::string to_text() const;

 private:
  const Value* find(std::string_view name) const;
  template <class T>
  const T* typed(std::string_view name) const;
  template <class T>
  const T& required(std::string_view name) const;

  std::vector<std::pair<std::string, Value>> items_;
};

}  // namespace pipetrain
