// A hash table by name for models of a million nodes: one flat array, without an allocation per
// name. Names come from files, so that the hash has a key that no file can know.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace pipetrain {

/// The same for equal names within a process; names that are made to collide do not.
std::uint64_t hash_of_name(std::string_view name);

constexpr std::size_t kNamesAhead = 12;

/// Values by name. The table does not own the names: they must outlive it.
template <class Value>
class NameTable {
 public:
  /// Makes room for so many names.
  void reserve(std::size_t names) {
    if (names > most_of(slots_.size())) grow(std::bit_ceil(names + names / 2 + 1));
  }

  std::size_t size() const { return size_; }
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  /// Brings the place of a name that is added or looked for soon into the cache. Worth it in large
  /// tables, about kNamesAhead names before.
  void expect(std::string_view name) const {
    if (size_ > kFewNames) __builtin_prefetch(&slots_[hash(name) & (slots_.size() - 1)]);
  }

  /// The value of the name; null if it has none. Valid until another name is added.
  const Value* find(std::string_view name) const {
    if (size_ == 0) return nullptr;
    const Slot& slot = slots_[place_of(name, hash(name))];
    return slot.name ? &slot.value : nullptr;
  }
  Value* find(std::string_view name) { return const_cast<Value*>(std::as_const(*this).find(name)); }

  /// Gives the name a value unless it has one. Its value, and whether it is the one given.
  std::pair<Value*, bool> add(std::string_view name, Value value = {}) {
    reserve(size_ + 1);
    const std::uint32_t hashed = hash(name);
    Slot& slot = slots_[place_of(name, hashed)];
    if (slot.name) return {&slot.value, false};
    slot = {name.data() ? name.data() : "", static_cast<std::uint32_t>(name.size()), hashed,
            std::move(value)};
    ++size_;
    return {&slot.value, true};
  }

 private:
  struct Slot {
    const char* name = nullptr;  // null: the slot is free
    std::uint32_t length = 0;
    std::uint32_t hash = 0;
    [[no_unique_address]] Value value{};
  };
  static constexpr std::size_t kFewNames = 4096;

  static std::uint32_t hash(std::string_view name) {
    return static_cast<std::uint32_t>(hash_of_name(name));
  }

  /// Names that fit into so many slots.
  static std::size_t most_of(std::size_t slots) { return slots / 4 * 3; }

  /// Where the name is, or else the free slot where it belongs.
  std::size_t place_of(std::string_view name, std::uint32_t hashed) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = hashed & mask;
    for (; slots_[at].name; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.hash == hashed && std::string_view(slot.name, slot.length) == name) break;
    }
    return at;
  }

  void grow(std::size_t slots) {
    std::vector<Slot> old(std::max<std::size_t>(slots, 16));
    old.swap(slots_);
    const std::size_t mask = slots_.size() - 1;
    for (Slot& slot : old) {
      if (!slot.name) continue;
      std::size_t at = slot.hash & mask;
      while (slots_[at].name) at = (at + 1) & mask;
      slots_[at] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;  // a power of two; each name is in the first free one from its hash on
  std::size_t size_ = 0;
};

/// A set of names, which must outlive it.
class NameSet {
 public:
  void reserve(std::size_t names) { table_.reserve(names); }
  bool contains(std::string_view name) const { return table_.contains(name); }
  void expect(std::string_view name) const { table_.expect(name); }
  /// Whether the name was not in it before.
  bool insert(std::string_view name) { return table_.add(name).second; }
  template <class Names>
  void insert_all(const Names& names) {
    for (const auto& name : names) insert(name);
  }

 private:
  struct Nothing {};
  NameTable<Nothing> table_;
};

}  // namespace pipetrain
