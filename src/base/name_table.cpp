#include "base/name_table.h"

#include <sys/random.h>

#include <cstring>

namespace pipetrain {
namespace {

__extension__ using Wide =
    unsigned __int128;  // not standard, but in every compiler that builds this

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

struct Key {
  std::uint64_t first = 0x9e3779b97f4a7c15, second = 0xd1b54a32d192ed03;
  Key() {
    std::uint64_t drawn[2] = {};
    // Without random numbers the key is known: names that collide would only make it slow.
    if (::getrandom(drawn, sizeof drawn, GRND_NONBLOCK) == sizeof drawn) {
      first ^= drawn[0];
      second = drawn[1] | 1;
    }
  }
};

std::uint64_t bytes_at(const char* at, std::size_t count) {
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, at, count);
  return bytes;
}

}  // namespace

std::uint64_t hash_of_name(std::string_view name) {
  static const Key key;
  std::uint64_t hash = key.first ^ name.size();
  const char* at = name.data();
  std::size_t left = name.size();
  for (; left > 8; at += 8, left -= 8) hash = mixed(hash ^ bytes_at(at, 8), key.second);
  return mixed(mixed(hash ^ bytes_at(at, left), key.second) ^ key.first, key.second);
}

}  // namespace pipetrain
