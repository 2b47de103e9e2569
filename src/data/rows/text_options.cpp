#include "data/rows/text_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace pipetrain {

namespace {

constexpr std::array<const char*, 3> kLayouts = {"auto", "pack", "pad"};
constexpr std::array<const char*, 3> kDocuments = {"auto", "file", "line"};

template <class Enum>
Enum choice_in(const std::array<const char*, 3>& names, std::string_view value) {
  const auto found = std::find(names.begin(), names.end(), value);
  PT_CHECK(found != names.end(), kData, "\"{}\" is none of {}, {}, {}", printable(value), names[0],
           names[1], names[2]);
  return static_cast<Enum>(found - names.begin());
}

// A setting is a line: line breaks in values are written as \\n, and backslashes twice.
std::string escaped(const std::string& value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '\n') out += '\\';
    out += c == '\n' ? 'n' : c;
  }
  return out;
}
std::string unescaped(std::string_view value) {
  std::string out;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const bool escapes =
        value[i] == '\\' && i + 1 < value.size() && (value[i + 1] == '\\' || value[i + 1] == 'n');
    if (escapes) ++i;
    out += escapes && value[i] == 'n' ? '\n' : value[i];
  }
  return out;
}

}  // namespace

std::string TextOptions::text(const std::string& file_name, const std::string& file_sha256) const {
  std::string out = fmt::format("sha256={}\nname={}\n", file_sha256, escaped(file_name));
  const auto add = [&](const char* key, const std::string& value, bool given) {
    if (given) out += fmt::format("{}={}\n", key, escaped(value));
  };
  add("column", column, !column.empty());
  add("pair", pair, !pair.empty());
  add("layout", kLayouts[static_cast<std::size_t>(layout)], layout != Layout::kAuto);
  add("document", kDocuments[static_cast<std::size_t>(document)], document != Document::kAuto);
  add("length", fmt::format("{}", length), length > 0);
  add("end", end_of_text, !end_of_text.empty());
  return out;
}

TextOptions TextOptions::parse(const std::string& text) {
  TextOptions out;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::size_t equal = std::min(line.find('='), line.size());
    const std::string_view key = line.substr(0, equal);
    const std::string value = unescaped(line.substr(std::min(equal + 1, line.size())));
    if (key == "sha256") {
      out.sha256 = value;
    } else if (key == "name") {
      PT_CHECK(!value.empty() && value.find('/') == std::string::npos, kData,
               "\"{}\" is no name of a file", printable(value));
      out.name = value;
    } else if (key == "column") {
      out.column = value;
    } else if (key == "pair") {
      out.pair = value;
    } else if (key == "layout") {
      out.layout = choice_in<Layout>(kLayouts, value);
    } else if (key == "document") {
      out.document = choice_in<Document>(kDocuments, value);
    } else if (key == "length") {
      const auto [end, error] =
          std::from_chars(value.data(), value.data() + value.size(), out.length);
      PT_CHECK(error == std::errc() && end == value.data() + value.size(), kData,
               "\"{}\" is no length", printable(value));
    } else if (key == "end") {
      out.end_of_text = value;
    } else {
      PT_FAIL(kData, "\"{}\" says nothing of texts", printable(line));
    }
  }
  PT_CHECK(!out.sha256.empty() && !out.name.empty(), kData, "it names no tokenizer");
  return out;
}

}  // namespace pipetrain
