#include "device/gpu_capability.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <vector>

namespace pipetrain {
namespace {

struct Architecture {
  int number = 0;      // 86 for 8.6; 0: a name such as "native"
  bool exact = false;  // for this version alone
  bool real = false, any_newer = false;
};

std::vector<Architecture> architectures_in(std::string_view text) {
  std::vector<Architecture> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    std::string_view entry = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    Architecture architecture;
    architecture.real = !entry.ends_with("-virtual");
    architecture.any_newer = !entry.ends_with("-real");
    entry = entry.substr(0, entry.find('-'));
    while (!entry.empty() && std::isdigit(static_cast<unsigned char>(entry.front()))) {
      architecture.number = architecture.number * 10 + (entry.front() - '0');
      entry.remove_prefix(1);
    }
    architecture.exact = !entry.empty();
    out.push_back(architecture);
  }
  return out;
}

}  // namespace

bool has_kernels_for(std::string_view architectures, int major, int minor) {
  const int wanted = major * 10 + minor;
  const std::vector<Architecture> all = architectures_in(architectures);
  return std::any_of(all.begin(), all.end(), [&](const Architecture& one) {
    if (one.number == 0 || one.number == wanted) return true;
    if (one.exact || one.number > wanted) return false;
    return one.any_newer || (one.real && one.number / 10 == major);
  });
}

std::string capabilities_text(std::string_view architectures) {
  std::map<int, bool> newer;  // by number
  for (const Architecture& one : architectures_in(architectures)) {
    bool& any = newer[one.number];
    any = any || (one.any_newer && !one.exact);
  }
  std::string out;
  for (const auto& [number, any] : newer)
    out += fmt::format("{}{}.{}{}", out.empty() ? "" : ", ", number / 10, number % 10,
                       any ? " and newer" : "");
  return out;
}

}  // namespace pipetrain
