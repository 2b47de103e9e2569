// A plugin of another build.
#include "device/plugin.h"

extern "C" __attribute__((visibility("default"))) const pipetrain::PluginEntry pipetrain_plugin;
const pipetrain::PluginEntry pipetrain_plugin = {"0.0.0-older", nullptr};
