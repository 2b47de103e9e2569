// What a stage remembers as bytes, to go from one process to another.
#pragma once

#include <string>
#include <string_view>

#include "pipeline/stage/stage_content.h"

namespace pipetrain {

std::string bytes_of(const StageContent& content);
/// Error (kInternal) when the bytes are not such a content.
StageContent content_of(std::string_view bytes);

}  // namespace pipetrain
