#include "base/setting.h"

#include <utility>

namespace pipetrain {
namespace {

std::string in_backquotes(std::string_view name) { return "`" + std::string(name) + "`"; }

SettingStyle as_users_write_it = in_backquotes;

}  // namespace

std::string setting(std::string_view name) { return as_users_write_it(name); }

SettingStyle write_settings_as(SettingStyle style) {
  return std::exchange(as_users_write_it, style);
}

}  // namespace pipetrain
