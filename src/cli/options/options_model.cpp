// Options of the network: what it is, which tensors are trained, and by which loss.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/options/option_table.h"

namespace pipetrain {

namespace {

void describe_shapes(Table& table, ModelConfig& model) {
  OptionSpec& shape = table
                          .add("--shape", "NAME=1x3x224x224",
                               "full shape of an input with free dimensions", kFileCommands)
                          .affects(ResultEffect::kUnrecorded);
  shape.repeatable = true;
  shape.aliases = {"--shapes"};
  shape.set = [&model](const std::string& v) {
    const auto [name, dims] = split_pair("--shape", v);
    std::vector<std::int64_t> sizes;
    std::size_t begin = 0;
    while (begin <= dims.size()) {
      const std::size_t end = std::min(dims.find('x', begin), dims.size());
      sizes.push_back(parse_integer("--shape", dims.substr(begin, end - begin), 1));
      begin = end + 1;
    }
    model.shapes[name] = Shape(sizes);
  };
  shape.get = [&model] {
    std::vector<std::string> all;
    for (const auto& [name, dims] : model.shapes)
      all.push_back(fmt::format("{}={}", name, fmt::join(dims.dims(), "x")));
    return fmt::format("{}", fmt::join(all, " "));
  };
  OptionSpec& dim = table.add("--dim", "NAME=N", "size of a free dimension", kFileCommands)
                        .affects(ResultEffect::kUnrecorded);
  dim.repeatable = true;
  dim.set = [&model](const std::string& v) {
    const auto [name, size] = split_pair("--dim", v);
    model.dims[name] = parse_integer("--dim", size, 1);
  };
  dim.get = [&model] {
    std::vector<std::string> all;
    for (const auto& [name, size] : model.dims) all.push_back(fmt::format("{}={}", name, size));
    return fmt::format("{}", fmt::join(all, " "));
  };
}

void describe_precision(Table& table, Options& options) {
  ModelConfig& model = options.run.model;
  OptionSpec& precision = table
                              .add("--precision", "fp32|tf32|bf16|fp16",
                                   "bf16: activations and matmul inputs in bfloat16, weights and "
                                   "accumulation in float32; fp16: the same in float16, with loss "
                                   "scaling; tf32: float32 with TF32 matmuls on GPUs",
                                   kModelCommands)
                              .affects(ResultEffect::kRecorded);
  precision.set = [&model](const std::string& v) {
    check_choice("--precision", v, {"fp32", "tf32", "bf16", "fp16"});
    model.precision = v == "bf16"   ? DType::kBFloat16
                      : v == "fp16" ? DType::kFloat16
                                    : DType::kFloat32;
    model.tensor_floats = v == "tf32";
  };
  precision.get = [&model] {
    return std::string(model.precision == DType::kBFloat16  ? "bf16"
                       : model.precision == DType::kFloat16 ? "fp16"
                       : model.tensor_floats                ? "tf32"
                                                            : "fp32");
  };
  double& scale = options.run.optimization.loss_scale;
  Table inner;
  OptionSpec& loss_scale =
      inner
          .add("--loss-scale", "N|auto",
               "loss scale of fp16; auto: starts at 65536, is halved when a gradient is not finite "
               "(the step is skipped), and doubled after 2000 steps",
               kTrainCommands)
          .affects(ResultEffect::kDerived);
  loss_scale.set = [&scale](const std::string& v) {
    scale = v == "auto" ? 0 : parse_real("--loss-scale", v);
    constexpr double kMost = 1e38;  // of float
    PT_CHECK(v == "auto" || (scale > 0 && scale <= kMost), kUsage,
             "--loss-scale takes a number above 0 and at most {:g}, or auto, not {}", kMost,
             printable(v));
  };
  loss_scale.get = [&scale] { return scale == 0 ? std::string("auto") : fmt::format("{}", scale); };
  Table::nest(precision, std::move(inner));
}

/// Recorded where there are adapters.
void record_adapters(OptionSpec& spec, const AdapterOptions& adapters) {
  spec.recorded_as([&adapters, name = spec.name.substr(2), get = spec.get] {
    if (adapters.rank == 0) return std::vector<Assignment>();
    return std::vector<Assignment>{{name, get()}};
  });
}

void describe_adapters(Table& table, Options& options) {
  AdapterOptions& adapters = options.run.model.adapters;
  const std::string commands = std::string(kModelCommands) + " export";
  OptionSpec& lora = table.integer(
      "--lora", adapters.rank, 0,
      "train low-rank adapters of rank N (LoRA) and freeze all other tensors but those of "
      "--train-only; the written model has them merged; 0: off",
      commands);
  lora.key = "rank";
  lora.means("inspect profile plan simulate eval predict verify",
             "low-rank adapters of rank N beside the weights, as in training; 0: none");
  record_adapters(lora, adapters);
  Table inner;
  OptionSpec& alpha =
      inner.real("--lora-alpha", adapters.alpha,
                 "adapters are scaled by alpha / rank; default: the rank", commands);
  alpha.key = "alpha";
  record_adapters(alpha, adapters);
  OptionSpec& targets =
      inner.list("--lora-targets", adapters.targets, "GLOB",
                 "layers with adapters, by tensor, module or the last part of a module's name; "
                 "default: all MatMul, Gemm and 1x1 Conv",
                 commands);
  targets.key = "targets";
  record_adapters(targets, adapters);
  Table::nest(lora, std::move(inner));
  table
      .path("--adapter", options.adapter, PathUse::kWrite, "FILE",
            "also write the adapters of --lora alone (safetensors with PEFT's names)",
            "train export")
      .affects(ResultEffect::kNone);
}

}  // namespace

void describe_model(Table& table, Options& options) {
  table.group = "Model";
  ModelConfig& model = options.run.model;
  table
      .path("--model", model.path, PathUse::kRead, "FILE", "ONNX model",
            "train inspect profile plan simulate eval predict verify generate export")
      .affects(ResultEffect::kContent)
      .completes({}, {"onnx"})
      .aliases = {"-m"};
  table.specs.back().in_short_help = true;
  describe_shapes(table, model);
  table
      .text("--output-node", model.output_node, "NAME",
            "ignore what the model computes after this node or value", kModelCommands)
      .affects(ResultEffect::kUnrecorded);
  table
      .list("--freeze", model.parameters.freeze, "GLOB", "do not train matching tensors",
            "train inspect")
      .affects(ResultEffect::kUnrecorded);
  table
      .list("--train-only", model.parameters.train_only, "GLOB", "train only matching tensors",
            "train inspect")
      .affects(ResultEffect::kUnrecorded);
  describe_adapters(table, options);
  table
      .choice("--init", options.init, {"keep", "random"},
              "random: initialize the weights instead of using those of the file", "train")
      .affects(ResultEffect::kNone);
  table
      .integer("--num-classes", options.num_classes, 2,
               "replace the last layer with a new one with N classes", "train")
      .affects(ResultEffect::kContent);
  table
      .choice_of<Undone>(
          "--tie", model.parameters.undone,
          {{"auto", Undone::kMerging}, {"graph", Undone::kNothing}, {"pytorch", Undone::kRemoval}},
          "how to treat what PyTorch's exporter changed; auto: train merged equal weights "
          "separately; graph: train the file as it is; pytorch: as auto, and train the biases that "
          "it removed because they were zero",
          "train inspect")
      .affects(ResultEffect::kUnrecorded);
  table
      .choice_of<BatchNormMode>(
          "--bn", model.batch_norm,
          {{"train", BatchNormMode::kTrain},
           {"as-file", BatchNormMode::kAsFile},
           {"frozen", BatchNormMode::kFrozen}},
          "BatchNormalization: use batch statistics, the mode in the file, or running statistics",
          kTrainedModelCommands)
      .affects(ResultEffect::kRecorded);
  table
      .choice_of<bool>("--dropout", model.dropout, {{"keep", true}, {"off", false}},
                       "keep Dropout nodes, or disable them", kTrainedModelCommands)
      .affects(ResultEffect::kRecorded);
  describe_precision(table, options);
}

void describe_loss(Table& table, Options& options) {
  LossOptions& loss = options.run.model.loss;
  OptionSpec& spec =
      table
          .choice("--loss", loss.loss,
                  {"auto", "cross-entropy", "bce", "mse", "l1", "causal-lm", "output"},
                  "loss function; auto: chosen by output and labels", kModelCommands)
          .affects(ResultEffect::kDerived);
  Table inner;
  inner.text("--logits", loss.output, "NAME", "model output that the loss reads", kModelCommands)
      .affects(ResultEffect::kRecorded)
      .key = "output";
  inner
      .integer("--ignore-index", loss.ignore_index, -1000000000, "label that the loss ignores",
               kRunCommands)
      .affects(ResultEffect::kRecorded);
  inner
      .real("--label-smoothing", loss.label_smoothing, "label smoothing of cross-entropy",
            kTrainCommands)
      .affects(ResultEffect::kRecorded)
      .key = "smoothing";
  OptionSpec& weights =
      inner
          .add("--class-weights", "X,X,…|balanced",
               "class weights of cross-entropy; balanced: inversely proportional to class "
               "frequency",
               kTrainCommands)
          .affects(ResultEffect::kRecorded);
  weights.key = "weights";
  weights.set = [&loss](const std::string& v) {
    loss.class_weights.clear();
    loss.balanced_classes = v == "balanced";
    if (loss.balanced_classes) return;
    for (const std::string& text : split_list_of(v)) {
      loss.class_weights.push_back(parse_real("--class-weights", text));
      PT_CHECK(loss.class_weights.back() >= 0, kUsage,
               "--class-weights must not be negative, not {}", printable(text));
      PT_CHECK(loss.class_weights.back() <= std::numeric_limits<float>::max(), kUsage,
               "--class-weights must fit into a float32, not {}", printable(text));
    }
    const auto counts = [](double weight) { return static_cast<float>(weight) > 0; };
    PT_CHECK(loss.class_weights.empty() || std::ranges::any_of(loss.class_weights, counts), kUsage,
             "--class-weights {}: one must be above 0, or no sample counts", printable(v));
  };
  weights.get = [&loss] {
    return loss.balanced_classes ? std::string("balanced")
                                 : fmt::format("{}", fmt::join(loss.class_weights, ","));
  };
  Table::nest(spec, std::move(inner));
}

}  // namespace pipetrain
