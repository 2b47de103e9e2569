#include "cli/options/other_names.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace pipetrain {
namespace {

using Meant = std::pair<std::string_view, std::string_view>;

// PyTorch Lightning, Hugging Face's Trainer, DeepSpeed, Megatron, ultralytics, timm and Keras.
constexpr Meant kMeant[] = {
    {"--accelerator", "--device"},
    {"--accumulate", "--micro-batches"},
    {"--accumulate-grad-batches", "--micro-batches"},
    {"--amp", "--precision bf16"},
    {"--aug", "--augment"},
    {"--augmentation", "--augment"},
    {"--bf16", "--precision bf16"},
    {"--bs", "--batch-size"},
    {"--checkpoint", "--resume=PATH"},
    {"--checkpoint-interval", "--save-every"},
    {"--ckpt", "--resume=PATH"},
    {"--ckpt-path", "--resume=PATH"},
    {"--class-weight", "--class-weights"},
    {"--clip-grad", "--clip-norm"},
    {"--cpu", "--device cpu"},
    {"--cuda", "--device cuda"},
    {"--cutmix", "--augment cutmix"},
    {"--data-path", "--data"},
    {"--dataset", "--data"},
    {"--decay", "--weight-decay"},
    {"--devices", "--gpus"},
    {"--dtype", "--precision"},
    {"--early-stop", "--patience"},
    {"--early-stopping-patience", "--patience"},
    {"--eval-data", "--val-data"},
    {"--eval-interval", "--val-every"},
    {"--eval-steps", "--val-every"},
    {"--features", "--feature-columns"},
    {"--fp16", "--precision fp16"},
    {"--freeze-layers", "--freeze"},
    {"--grad-accum", "--micro-batches"},
    {"--gradient-accumulation-steps", "--micro-batches"},
    {"--gradient-clip-val", "--clip-norm"},
    {"--gradient-clipping", "--clip-norm"},
    {"--half", "--precision fp16"},
    {"--iterations", "--max-steps"},
    {"--label", "--label-column"},
    {"--label-names", "--label-column"},
    {"--labels", "--label-column"},
    {"--logdir", "--run-dir"},
    {"--logging-steps", "--log-every"},
    {"--lr-rate", "--lr"},
    {"--lr0", "--lr"},
    {"--max-epochs", "--epochs"},
    {"--max-seq-length", "--dim"},
    {"--metric", "--best-metric"},
    {"--metric-for-best-model", "--best-metric"},
    {"--mixed-precision", "--precision bf16"},
    {"--mixup", "--augment mixup"},
    {"--mlflow", "--log-to mlflow:DIR"},
    {"--monitor", "--best-metric"},
    {"--n-epochs", "--epochs"},
    {"--name", "--run-dir"},
    {"--nc", "--num-classes"},
    {"--no-cuda", "--device cpu"},
    {"--num-devices", "--gpus"},
    {"--num-epochs", "--epochs"},
    {"--num-labels", "--num-classes"},
    {"--num-stages", "--gpus"},
    {"--num-train-epochs", "--epochs"},
    {"--optim", "--optimizer"},
    {"--out", "--output"},
    {"--per-device-train-batch-size", "--batch-size"},
    {"--pipeline-model-parallel-size", "--gpus"},
    {"--pipeline-parallel-size", "--gpus"},
    {"--pp", "--gpus"},
    {"--pretrained", "--model"},
    {"--project", "--run-dir"},
    {"--resume-from-checkpoint", "--resume=PATH"},
    {"--save-dir", "--run-dir"},
    {"--save-total-limit", "--keep"},
    {"--scheduler", "--lr-schedule"},
    {"--shuffle-data", "--shuffle"},
    {"--smoothing", "--label-smoothing"},
    {"--steps", "--max-steps"},
    {"--target", "--label-column"},
    {"--target-column", "--label-column"},
    {"--test", "--val-data"},
    {"--test-data", "--val-data"},
    {"--test-size", "--val-split"},
    {"--train", "--data"},
    {"--train-batch-size", "--batch-size"},
    {"--train-data", "--data"},
    {"--train-file", "--data"},
    {"--use-cpu", "--device cpu"},
    {"--val", "--val-split"},
    {"--val-fraction", "--val-split"},
    {"--valid", "--val-data"},
    {"--validation-data", "--val-data"},
    {"--validation-file", "--val-data"},
    {"--validation-split", "--val-split"},
    {"--warmup-ratio", "--warmup"},
    {"--wd", "--weight-decay"},
    {"--weights", "--model"},
};
static_assert(std::ranges::is_sorted(kMeant, {}, &Meant::first));

}  // namespace

std::optional<std::pair<std::string, std::string>> current_spelling(const std::string& name,
                                                                    const std::string& value) {
  if (name != "--tensorboard" && name != "--no-tensorboard") return {};
  const bool on = name == "--tensorboard" && (value == "true" || value == "on" || value == "1");
  return std::pair<std::string, std::string>("--log-to", on ? "tensorboard" : "none");
}

std::string value_under_own_name(const std::string& name, const std::string& value) {
  return name == "--log-dir" ? "tensorboard:" + value : value;
}

void take_work_folder(std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    const std::string name = arguments[i].substr(0, arguments[i].find('='));
    if (name != "--work_dir" && name != "--work-dir") continue;
    const bool is_next = name == arguments[i];
    PT_CHECK(!is_next || i + 1 < arguments.size(), kUsage, "{0} needs a value: {0} DIR", name);
    const std::string folder = is_next ? arguments[i + 1] : arguments[i].substr(name.size() + 1);
    std::error_code error;
    std::filesystem::current_path(folder, error);
    PT_CHECK(!error, kUsage, "{}: cannot change to \"{}\": {}", name, printable(folder),
             error.message());
    const auto begin = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    arguments.erase(begin, begin + (is_next ? 2 : 1));
    return;
  }
}

std::string_view option_meant_by(std::string_view name) {
  const auto found = std::ranges::lower_bound(kMeant, name, {}, &Meant::first);
  return found != std::end(kMeant) && found->first == name ? found->second : std::string_view();
}

}  // namespace pipetrain
