#include "train/adapter_file.h"

#include "train/safetensors.h"

namespace pipetrain {

void write_adapters(const std::filesystem::path& path, const LoadedModel& model,
                    const std::function<HostTensor(const std::string&)>& read) {
  NamedTensors tensors;
  for (const Adapter& adapter : model.adapters) {
    for (const std::string& name : {adapter.a, adapter.b})
      tensors["base_model.model." + name] = read(name);
  }
  write_safetensors(path, tensors);
}

}  // namespace pipetrain
