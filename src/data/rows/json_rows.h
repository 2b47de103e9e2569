// JSON texts (RFC 8259) as data: one object a sample.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pipetrain {

/// The class number under "label", "cls", "class" or "y" of an object, if there is one. Error
/// kData, naming the file, for invalid JSON.
std::optional<std::int64_t> label_in_json(std::string_view text, const std::string& name);

}  // namespace pipetrain
