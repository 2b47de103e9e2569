// The JSON type by name only. Its definition (nlohmann/json.hpp) is included by .cpp files that
// build documents.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace pipetrain {

/// Keeps the order in which fields were written, so that files read well and compare line by line.
using Json = nlohmann::ordered_json;

}  // namespace pipetrain
