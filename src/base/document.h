// Versioned JSON documents, such as plan.json and profile.json. The field "schema" names the
// format, for example "pipetrain.plan/1". People edit these files, so errors name the wrong field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_fwd.h"

namespace pipetrain {

/// Parses untrusted JSON: Error (kData) if it is nested more deeply, or an object has more fields,
/// than in any document of this program; Json::exception if it is not JSON.
Json parse_json(std::string_view text);
/// The same with this limit of the fields of an object, which are sorted by their names: of many,
/// each is found quickly.
nlohmann::json parse_json_by_name(std::string_view text, std::size_t most_fields);

/// One value inside a document, with its path. Valid as long as its Document. Every error names
/// file and field, as in: plan.json: stages[1].first_index must be an integer, got "x".
class DocumentField {
 public:
  // Limits far beyond realistic values: values within them can be added and multiplied without
  // overflow.
  static constexpr double kMostSeconds = 1e9;
  static constexpr double kMostPerSecond = 1e24;  // bytes or operations
  static constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;
  static constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;

  DocumentField(const Json& value, std::string file, std::string path, ErrorKind kind);

  bool has(std::string_view key) const;
  /// Throws an Error if the object has a field that is not listed.
  void allow_only(std::initializer_list<std::string_view> fields) const;
  /// The fields of an object with their names.
  std::vector<std::pair<std::string, DocumentField>> fields() const;
  /// A field of an object; an Error when it is missing.
  DocumentField at(std::string_view key) const;
  /// Length of an array, and its items.
  std::size_t size() const;
  DocumentField item(std::size_t index) const;

  std::int64_t integer(std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;
  /// A finite number.
  double real(double least = std::numeric_limits<double>::lowest(),
              double most = std::numeric_limits<double>::max()) const;
  std::string text() const;
  bool flag() const;

  /// Throws an Error that starts with file and field.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::string where() const;
  [[noreturn]] void fail_type(std::string_view expected) const;

  const Json* value_;
  std::string file_;
  std::string path_;
  ErrorKind kind_;
};

class Document {
 public:
  /// Reads a file of at most 256 MiB. `schema` is for example "pipetrain.plan/1". Errors have the
  /// given kind.
  static Document read(const std::filesystem::path& path, std::string_view schema,
                       ErrorKind kind = ErrorKind::kUsage);
  /// The same from text; `file` is its name in errors.
  static Document parse(std::string_view text, std::string file, std::string_view schema,
                        ErrorKind kind = ErrorKind::kUsage);
  Document(Document&&) noexcept;
  Document& operator=(Document&&) noexcept;
  ~Document();

  DocumentField root() const;
  const Json& json() const { return *json_; }

 private:
  Document(std::unique_ptr<Json> json, std::string file, ErrorKind kind);

  std::unique_ptr<Json> json_;
  std::string file_;
  ErrorKind kind_;
};

/// The document's text: {"schema": …, fields of `body` …}, indented, with a final newline. Bytes
/// that are not UTF-8 are replaced.
std::string document_text(std::string_view schema, const Json& body);
/// Writes the document; the file is replaced atomically.
void write_document(const std::filesystem::path& path, std::string_view schema, const Json& body);

/// `text` after a round trip through a document: invalid UTF-8 is replaced.
std::string as_document_string(std::string_view text);

}  // namespace pipetrain
