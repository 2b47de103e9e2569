#include "base/cache_directory.h"

#include <cstdlib>

namespace pipetrain {

std::filesystem::path default_cache_directory() {
  const auto variable = [](const char* name) {
    const char* text = std::getenv(name);
    return std::filesystem::path(text ? text : "");
  };
  if (const auto own = variable("PIPETRAIN_CACHE_DIR"); !own.empty()) return own;
  if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache / "pipetrain";
  if (const auto home = variable("HOME"); !home.empty()) return home / ".cache" / "pipetrain";
  return {};
}

}  // namespace pipetrain
