// The part of tar that data sets use: POSIX ustar and pax (IEEE Std 1003.1), and GNU's long names
// and sizes. Only the headers are read.
#pragma once

#include <string>
#include <vector>

#include "data/files/file_bytes.h"

namespace pipetrain {

struct TarMember {
  std::string name;
  FileBytes content;
};

/// The regular files in an archive, in order. Error kData, naming the member that is damaged.
std::vector<TarMember> read_tar(const FileBytes& archive, const std::string& file);
bool is_tar(std::span<const std::byte> bytes);

}  // namespace pipetrain
