// Settings in messages. Code below the front end names a setting ("micro-batches"); how users write
// it ("--micro-batches") is the front end's business.
#pragma once

#include <string>
#include <string_view>

namespace pipetrain {

/// A setting's name as users write it; `name` in backquotes without a front end.
std::string setting(std::string_view name);

using SettingStyle = std::string (*)(std::string_view name);

/// Sets how users write settings, and returns how they did before. A front end calls it first.
SettingStyle write_settings_as(SettingStyle style);

}  // namespace pipetrain
