#include "train/adapter_file.h"

#include "base/error.h"
#include "base/setting.h"
#include "train/safetensors.h"

namespace pipetrain {

void write_adapters(const std::filesystem::path& path, const LoadedModel& model,
                    const std::function<HostTensor(const std::string&)>& read) {
  NamedTensors tensors;
  for (const Adapter& adapter : model.adapters) {
    for (const std::string& name : {adapter.a, adapter.b})
      if (HostTensor value = read(name)) tensors["base_model.model." + name] = std::move(value);
  }
  PT_CHECK(!tensors.empty(), kUsage,
           "{}: the loss uses none of the layers that have adapters; give other targets",
           setting("lora"));
  write_safetensors(path, tensors);
}

}  // namespace pipetrain
