// Serializes the state of a stage, to send it between processes.
#pragma once

#include <string>
#include <string_view>

#include "pipeline/stage/stage_content.h"

namespace pipetrain {

std::string bytes_of(const StageContent& content);
/// Error (kInternal) for other bytes.
StageContent content_of(std::string_view bytes);

}  // namespace pipetrain
