// The encoding of a table as JSON, as models keep it.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/formats/table_encoding.h"

namespace pipetrain {

namespace {

using Json = nlohmann::ordered_json;
using Kind = EncodedColumn::Kind;

constexpr const char* kKinds[] = {"number", "one-hot", "codes"};

EncodedColumn column_of(const Json& json) {
  EncodedColumn out;
  out.name = json.at("name").get<std::string>();
  const std::string kind = json.at("kind").get<std::string>();
  const auto found = std::find(std::begin(kKinds), std::end(kKinds), kind);
  PT_CHECK(found != std::end(kKinds), kData, "\"{}\" is no kind of column", printable(kind));
  out.kind = static_cast<Kind>(found - std::begin(kKinds));
  if (json.contains("words")) out.words = json.at("words").get<std::vector<std::string>>();
  PT_CHECK(std::is_sorted(out.words.begin(), out.words.end()) &&
               (out.kind == Kind::kNumber) == out.words.empty(),
           kData, "the words of column \"{}\" are not in order", printable(out.name));
  if (json.contains("filling")) out.filling = json.at("filling").get<double>();
  if (json.contains("word")) out.word = json.at("word").get<std::string>();
  out.marked = out.kind == Kind::kNumber && json.value("marked", false);
  out.mean = json.value("mean", 0.0);
  out.deviation = json.value("deviation", 1.0);
  PT_CHECK(std::isfinite(out.mean) && std::isfinite(out.deviation) && out.deviation > 0, kData,
           "column \"{}\" cannot be scaled by {}", printable(out.name), out.deviation);
  return out;
}

}  // namespace

std::string TableEncoding::text() const {
  Json json = {{"header", has_header}, {"label", label}, {"columns", Json::array()}};
  if (names_only) json["names_only"] = true;
  if (label_place) json["label_place"] = *label_place;
  for (const EncodedColumn& column : columns) {
    Json each = {{"name", column.name}, {"kind", kKinds[static_cast<std::size_t>(column.kind)]}};
    if (!column.words.empty()) each["words"] = column.words;
    if (column.filling) each["filling"] = *column.filling;
    if (column.word) each["word"] = *column.word;
    if (column.marked) each["marked"] = true;
    if (column.mean != 0) each["mean"] = column.mean;
    if (column.deviation != 1) each["deviation"] = column.deviation;
    json["columns"].push_back(std::move(each));
  }
  try {
    return json.dump();
  } catch (const Json::exception&) {
    PT_FAIL(kData, "the table has words that are not UTF-8; convert it: iconv -f latin1 -t utf-8");
  }
}

TableEncoding TableEncoding::parse(const std::string& text) try {
  const Json json = Json::parse(text);
  TableEncoding out;
  out.has_header = json.at("header").get<bool>();
  out.label = json.at("label").get<std::string>();
  for (const Json& column : json.at("columns")) out.columns.push_back(column_of(column));
  PT_CHECK(!out.columns.empty(), kData, "no columns");
  out.names_only = json.value("names_only", false);
  if (json.contains("label_place")) out.label_place = json.at("label_place").get<std::size_t>();
  return out;
} catch (const Json::exception& error) {
  PT_FAIL(kData, "the encoding of the table's columns is damaged: {}", printable(error.what()));
}

}  // namespace pipetrain
