#include "fuzz/mutate.h"

#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace pipetrain::fuzz {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 24> kNumbers = {"0",
                                                       "1",
                                                       "-1",
                                                       "2",
                                                       "7",
                                                       "255",
                                                       "256",
                                                       "65535",
                                                       "65536",
                                                       "1e9",
                                                       "1e308",
                                                       "-1e308",
                                                       "1e-320",
                                                       "1e400",
                                                       "nan",
                                                       "inf",
                                                       "-0",
                                                       "2147483647",
                                                       "2147483648",
                                                       "4294967296",
                                                       "9007199254740993",
                                                       "9223372036854775807",
                                                       "-9223372036854775808",
                                                       "18446744073709551615"};

std::uint64_t wrong_number(Random& random) {
  static constexpr std::array<std::uint64_t, 12> kWrong = {
      0,      1,          0x7f,       0x80,       0xff,       0x7fff,
      0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 1ULL << 62, ~0ULL};
  return kWrong[random.below(kWrong.size())];
}

void put_number(std::string& bytes, Random& random) {
  const std::size_t size = std::size_t{1} << random.below(4);
  if (bytes.size() < size) return;
  const std::size_t at = random.below(bytes.size() - size + 1);
  const std::uint64_t number = wrong_number(random);
  const bool big = random.below(2) == 0;
  for (std::size_t i = 0; i < size; ++i)
    bytes[at + (big ? size - 1 - i : i)] = static_cast<char>(number >> (8 * i));
}

/// The beginnings of the runs of characters that `belongs`, with their lengths.
template <class Belongs>
std::vector<std::pair<std::size_t, std::size_t>> runs(const std::string& text, Belongs belongs) {
  std::vector<std::pair<std::size_t, std::size_t>> out;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && belongs(static_cast<unsigned char>(text[end]))) ++end;
    if (end > i) out.emplace_back(i, end - i);
    i = end + 1;
  }
  return out;
}

bool is_number(unsigned char c) { return std::isdigit(c) != 0 || c == '.' || c == '-'; }
bool is_word(unsigned char c) { return std::isspace(c) == 0 && c != ',' && c != ':'; }
bool is_line(unsigned char c) { return c != '\n'; }

/// All values of a document.
void collect(Json& value, std::vector<Json*>& out) {
  out.push_back(&value);
  if (value.is_structured()) {
    for (Json& item : value) collect(item, out);
  }
}

Json other_value(Random& random) {
  switch (random.below(12)) {
    case 0:
      return nullptr;
    case 1:
      return random.below(2) == 0;
    case 2:
      return Json::array();
    case 3:
      return Json::object();
    case 4:
      return "";
    case 5:
      return std::string(random.below(300), 'x');
    case 6:
      return -1;
    case 7:
      return 0;
    case 8:
      return 1e308;
    case 9:
      return static_cast<std::int64_t>(wrong_number(random));
    case 10:
      return wrong_number(random);
    default:
      return static_cast<double>(random.below(1000)) / 7;
  }
}

void change_value(Json& root, Random& random) {
  std::vector<Json*> all;
  collect(root, all);
  Json& value = *all[random.below(all.size())];
  switch (random.below(6)) {
    case 0:
      value = other_value(random);
      break;
    case 1: {
      const Json copy = *all[random.below(all.size())];
      value = copy;
      break;
    }
    case 2:
      if (value.is_array() && !value.empty()) {
        const Json copy = value[random.below(value.size())];
        value.insert(value.begin() + static_cast<std::ptrdiff_t>(random.below(value.size() + 1)),
                     copy);
      }
      break;
    case 3:
      if (value.is_structured() && !value.empty()) {
        auto place = value.begin();
        std::advance(place, static_cast<std::ptrdiff_t>(random.below(value.size())));
        value.erase(place);
      }
      break;
    case 4:
      if (value.is_object() && !value.empty()) {
        auto place = value.begin();
        std::advance(place, static_cast<std::ptrdiff_t>(random.below(value.size())));
        const Json copy = place.value();
        value[place.key() + "x"] = copy;
      }
      break;
    default:
      if (value.is_string()) {
        std::string text = value;
        mutate_text(text, random);
        value = text;
      } else if (value.is_number_integer()) {
        // Unsigned, as it may be the least or the largest number.
        value = static_cast<std::int64_t>(value.get<std::uint64_t>() + random.below(5) - 2);
      } else if (value.is_number()) {
        value = -value.get<double>();
      }
  }
}

}  // namespace

std::uint64_t Random::next() {
  std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

void mutate_bytes(std::string& bytes, Random& random) {
  const std::size_t at = random.below(bytes.size() + 1);
  const std::size_t length = random.below(std::min<std::size_t>(bytes.size() - at, 32) + 1);
  switch (random.below(7)) {
    case 0:
      if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
      break;
    case 1:
      if (at < bytes.size()) bytes[at] = static_cast<char>(random.next());
      break;
    case 2:
      bytes.insert(at, 1 + random.below(8), static_cast<char>(random.next()));
      break;
    case 3:
      bytes.erase(at, length);
      break;
    case 4:
      bytes.insert(random.below(bytes.size() + 1), bytes.substr(at, length));
      break;
    case 5:
      bytes.resize(at);
      break;
    default:
      put_number(bytes, random);
  }
}

void mutate_text(std::string& text, Random& random) {
  const std::uint64_t kind = random.below(8);
  if (kind < 2) return mutate_bytes(text, random);
  const auto places = kind < 5   ? runs(text, is_number)
                      : kind < 7 ? runs(text, is_word)
                                 : runs(text, is_line);
  if (places.empty()) return mutate_bytes(text, random);
  const auto [at, length] = places[random.below(places.size())];
  const auto [other, other_length] = places[random.below(places.size())];
  const std::string copy = text.substr(other, other_length);
  if (kind < 5 && random.below(2) == 0) {
    text.replace(at, length, kNumbers[random.below(kNumbers.size())]);
  } else if (random.below(4) == 0) {
    text.erase(at, length);
  } else if (random.below(2) == 0) {
    text.replace(at, length, copy);
  } else {
    text.insert(at, copy + (kind == 7 ? "\n" : " "));
  }
}

void mutate_json(std::string& text, Random& random) {
  Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || random.below(8) == 0) return mutate_text(text, random);
  change_value(root, random);
  text = root.dump(random.below(2) == 0 ? 1 : -1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace pipetrain::fuzz
