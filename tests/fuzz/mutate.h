// Changes inputs at random, as fuzzers do: bytes, words of texts, values of JSON documents.
#pragma once

#include <cstdint>
#include <string>

namespace pipetrain::fuzz {

/// splitmix64 (Steele, Lea and Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  std::uint64_t below(std::uint64_t count) { return count == 0 ? 0 : next() % count; }

 private:
  std::uint64_t state_;
};

/// Flips, inserts, repeats and removes bytes; puts numbers in their places that are often wrong.
void mutate_bytes(std::string& bytes, Random& random);
/// The same with lines, words and numbers of a text.
void mutate_text(std::string& text, Random& random);
/// Replaces, removes, repeats and renames values of a JSON document; text that is none changes as
/// text.
void mutate_json(std::string& text, Random& random);

}  // namespace pipetrain::fuzz
