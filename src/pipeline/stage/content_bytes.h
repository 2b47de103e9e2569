// Serializes tensors and the state of a stage, to send them between processes.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "pipeline/stage/stage_content.h"

namespace pipetrain {

class ByteReader;
class ByteWriter;

/// Tensors by name.
void put_tensors(ByteWriter& writer, const std::map<std::string, HostTensor>& tensors);
std::map<std::string, HostTensor> get_tensors(ByteReader& reader);

std::string bytes_of(const StageContent& content);
/// Error (kInternal) for other bytes.
StageContent content_of(std::string_view bytes);

}  // namespace pipetrain
