#include "base/program_id.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace pipetrain {
namespace {

using Bytes = std::span<const std::uint8_t>;

/// The build ID among the notes of a segment (elf(5)); empty: there is none.
std::string id_in(Bytes notes, std::size_t alignment) {
  const auto aligned = [&](std::size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  };
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) head;
    std::memcpy(&head, notes.data(), sizeof head);
    const std::size_t content = aligned(sizeof head + head.n_namesz);
    const std::size_t next = aligned(content + head.n_descsz);
    if (content + head.n_descsz > notes.size()) break;
    const std::string_view owner(reinterpret_cast<const char*>(notes.data()) + sizeof head,
                                 head.n_namesz);
    if (head.n_type == NT_GNU_BUILD_ID && owner == std::string_view("GNU", 4)) {
      std::string id;
      for (const std::uint8_t byte : notes.subspan(content, head.n_descsz))
        id += fmt::format("{:02x}", byte);
      return id;
    }
    notes = notes.subspan(std::min(next, notes.size()));
  }
  return {};
}

/// Of dl_iterate_phdr(): looks at the first object, which is the program.
int look(dl_phdr_info* object, std::size_t, void* out) {
  std::string& id = *static_cast<std::string*>(out);
  for (int i = 0; i < object->dlpi_phnum && id.empty(); ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* begin = reinterpret_cast<const std::uint8_t*>(object->dlpi_addr + segment.p_vaddr);
    id = id_in({begin, segment.p_memsz}, segment.p_align == 8 ? 8 : 4);
  }
  return 1;
}

}  // namespace

std::string program_id() {
  std::string id;
  dl_iterate_phdr(look, &id);
  return id;
}

}  // namespace pipetrain
