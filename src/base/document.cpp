#include "base/document.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/input_file.h"

namespace pipetrain {
namespace {

constexpr std::size_t kMaximumBytes = std::size_t{256} << 20;
// The JSON library copies nested values recursively, and searches all fields for each new one.
constexpr std::size_t kDeepest = 64;
constexpr std::size_t kMostFields = 50'000;

std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// A short description of a value for error messages.
std::string shown(const Json& value) {
  if (value.is_object()) return fmt::format("an object of {} fields", value.size());
  if (value.is_array()) return fmt::format("a list of {} items", value.size());
  return printable(dump(value, -1));
}

// Without the library's "[json.exception.parse_error.101] ".
std::string reason(const Json::exception& error) {
  const std::string text = error.what();
  const std::size_t end = text.find("] ");
  return printable(end == std::string::npos ? text : text.substr(end + 2));
}

[[noreturn]] void fail(ErrorKind kind, const std::string& message) { throw Error(kind, message); }

// The version after "pipetrain.plan/"; 0 if there is none.
int version_of(std::string_view schema) {
  int version = 0;
  const std::string_view digits = schema.substr(schema.rfind('/') + 1);
  std::from_chars(digits.data(), digits.data() + digits.size(), version);
  return version;
}

void check_schema(const Json& json, const std::string& file, std::string_view schema,
                  ErrorKind kind) {
  if (!json.is_object() || !json.contains("schema") || !json["schema"].is_string()) {
    fail(kind, fmt::format("{} has no field \"schema\"; a {} document is needed", file, schema));
  }
  const auto& found = json["schema"].get_ref<const std::string&>();
  if (found == schema) return;
  const std::string_view family = schema.substr(0, schema.rfind('/') + 1);
  if (found.starts_with(family)) {
    const bool later = version_of(found) > version_of(schema);
    fail(kind,
         fmt::format("{} is a {} document{}, but this program reads {} only; {}", file,
                     printable(found), later ? " of a later version of pipetrain" : "", schema,
                     later ? "use that version, or recreate the file with this one"
                           : "recreate it with this version"));
  }
  fail(kind,
       fmt::format("{} is a {} document, a {} document is needed", file, printable(found), schema));
}

/// Checks how deep values are nested, and the names of the fields of each object. A text that is no
/// JSON ends the check. A pass of its own: the parser's callbacks search an object again for each
/// value in it.
class StructureCheck : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit StructureCheck(std::size_t most_fields) : most_fields_(most_fields) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    PT_CHECK(names_.back().insert(name).second, kData, "an object has the field \"{}\" twice",
             printable(name));
    PT_CHECK(names_.back().size() <= most_fields_, kData, "an object has more than {} fields",
             most_fields_);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool open() {
    PT_CHECK(names_.size() < kDeepest, kData, "values are nested more than {} deep", kDeepest);
    names_.emplace_back();
    return true;
  }
  bool close() {
    names_.pop_back();
    return true;
  }

  std::size_t most_fields_;
  std::vector<std::set<std::string>> names_;  // of each open object or array
};

template <class AnyJson>
AnyJson parse_checked(std::string_view text, std::size_t most_fields) {
  StructureCheck check(most_fields);
  nlohmann::json::sax_parse(text, &check);
  return AnyJson::parse(text);
}

}  // namespace

Json parse_json(std::string_view text) { return parse_checked<Json>(text, kMostFields); }

nlohmann::json parse_json_by_name(std::string_view text, std::size_t most_fields) {
  return parse_checked<nlohmann::json>(text, most_fields);
}

DocumentField::DocumentField(const Json& value, std::string file, std::string path, ErrorKind kind)
    : value_(&value), file_(std::move(file)), path_(std::move(path)), kind_(kind) {}

std::string DocumentField::where() const {
  return path_.empty() ? file_ : fmt::format("{}: {}", file_, path_);
}

void DocumentField::fail(const std::string& message) const {
  throw Error(kind_, fmt::format("{} {}", where(), message));
}

void DocumentField::fail_type(std::string_view expected) const {
  fail(fmt::format("must be {}, got {}", expected, shown(*value_)));
}

bool DocumentField::has(std::string_view key) const {
  return value_->is_object() && value_->contains(key);
}

void DocumentField::allow_only(std::initializer_list<std::string_view> fields) const {
  if (!value_->is_object()) fail_type("an object");
  for (const auto& [key, value] : value_->items()) {
    if (std::find(fields.begin(), fields.end(), key) != fields.end()) continue;
    fail(fmt::format("has an unknown field \"{}\"; known fields are {}", printable(key),
                     fmt::join(fields, ", ")));
  }
}

std::vector<std::pair<std::string, DocumentField>> DocumentField::fields() const {
  if (!value_->is_object()) fail_type("an object");
  std::vector<std::pair<std::string, DocumentField>> out;
  for (const auto& [key, value] : value_->items())
    out.emplace_back(
        key, DocumentField(value, file_, fmt::format("{}.{}", path_, printable(key)), kind_));
  return out;
}

DocumentField DocumentField::at(std::string_view key) const {
  if (!value_->is_object()) fail_type("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) fail(fmt::format("lacks the field \"{}\"", key));
  return {*found, file_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key),
          kind_};
}

std::size_t DocumentField::size() const {
  if (!value_->is_array()) fail_type("a list");
  return value_->size();
}

DocumentField DocumentField::item(std::size_t index) const {
  if (index >= size()) fail(fmt::format("has only {} items", value_->size()));
  return {(*value_)[index], file_, fmt::format("{}[{}]", path_, index), kind_};
}

std::int64_t DocumentField::integer(std::int64_t least, std::int64_t most) const {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const bool bounded = least != std::numeric_limits<std::int64_t>::min() || most != kMost;
  const std::string expected = !bounded ? "an integer"
                               : most == kMost
                                   ? fmt::format("an integer of at least {}", least)
                                   : fmt::format("an integer between {} and {}", least, most);
  const bool large = value_->is_number_unsigned() &&
                     value_->get<std::uint64_t>() > static_cast<std::uint64_t>(kMost);
  if (!value_->is_number_integer() || large) fail_type(expected);
  const auto number = value_->get<std::int64_t>();
  if (number < least || number > most) fail_type(expected);
  return number;
}

double DocumentField::real(double least, double most) const {
  const auto refuse = [&] {
    fail_type(most != std::numeric_limits<double>::max()
                  ? fmt::format("a number of at least {} and at most {}", least, most)
              : least != std::numeric_limits<double>::lowest()
                  ? fmt::format("a number of at least {}", least)
                  : "a number");
  };
  if (!value_->is_number()) refuse();
  const auto number = value_->get<double>();
  if (!std::isfinite(number) || number < least || number > most) refuse();
  return number;
}

std::string DocumentField::text() const {
  if (!value_->is_string()) fail_type("a text");
  return value_->get<std::string>();
}

bool DocumentField::flag() const {
  if (!value_->is_boolean()) fail_type("true or false");
  return value_->get<bool>();
}

Document::Document(std::unique_ptr<Json> json, std::string file, ErrorKind kind)
    : json_(std::move(json)), file_(std::move(file)), kind_(kind) {}
Document::Document(Document&&) noexcept = default;
Document& Document::operator=(Document&&) noexcept = default;
Document::~Document() = default;

DocumentField Document::root() const { return {*json_, file_, "", kind_}; }

Document Document::parse(std::string_view text, std::string file, std::string_view schema,
                         ErrorKind kind) {
  auto json = std::make_unique<Json>();
  try {
    *json = parse_json(text);
  } catch (const Json::exception& error) {
    fail(kind, fmt::format("{} is not JSON: {}", file, reason(error)));
  } catch (const Error& error) {
    fail(kind, fmt::format("{}: {}", file, error.message()));
  }
  check_schema(*json, file, schema, kind);
  return {std::move(json), std::move(file), kind};
}

Document Document::read(const std::filesystem::path& path, std::string_view schema,
                        ErrorKind kind) {
  return parse(read_file(path, kind, kMaximumBytes), printable(path.string()), schema, kind);
}

std::string document_text(std::string_view schema, const Json& body) {
  Json document = Json::object();
  document["schema"] = schema;
  for (const auto& [key, value] : body.items()) document[key] = value;
  return dump(document, 2) + "\n";
}

void write_document(const std::filesystem::path& path, std::string_view schema, const Json& body) {
  write_file(path, document_text(schema, body));
}

std::string as_document_string(std::string_view text) {
  return Json::parse(dump(Json(text), -1)).get<std::string>();
}

}  // namespace pipetrain
