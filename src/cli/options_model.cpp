// Options of the network: what it is, which tensors are trained, and by which loss.
#include <algorithm>

#include "cli/option_table.h"

namespace pipetrain {

void describe_model(Table& table, Options& options) {
  table.group = "Model";
  ModelConfig& model = options.run.model;
  table
      .text("--model", model.path, "FILE", "the network, an ONNX file",
            "train inspect profile plan simulate eval predict verify export")
      .aliases = {"-m"};
  table.specs.back().in_short_help = true;
  OptionSpec& shape = table.add("--shape", "NAME=1x3x224x224",
                                "full shape of an input with free dimensions", kModelCommands);
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
  OptionSpec& dim = table.add("--dim", "NAME=N", "size of a free dimension", kModelCommands);
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
  table.text("--output-node", model.output_node, "NAME", "train up to this node or value",
             kModelCommands);
  table.list("--freeze", model.parameters.freeze, "GLOB", "do not train matching tensors",
             "train inspect");
  table.list("--train-only", model.parameters.train_only, "GLOB", "train matching tensors only",
             "train inspect");
  table.choice_of<bool>("--tie", model.parameters.untie, {{"auto", true}, {"graph", false}},
                        "auto: merged copies are trained apart; graph: as the file shares them",
                        "train inspect");
  table.choice_of<BatchNormMode>(
      "--bn", model.batch_norm,
      {{"train", BatchNormMode::kTrain},
       {"as-file", BatchNormMode::kAsFile},
       {"frozen", BatchNormMode::kFrozen}},
      "BatchNormalization: train with batch statistics, as the file says, or never",
      kModelCommands);
  table.choice_of<bool>("--dropout", model.dropout, {{"keep", true}, {"off", false}},
                        "random masks of Dropout nodes", kModelCommands);
  table.choice_of<DType>(
      "--precision", model.precision, {{"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}},
      "bf16: products and what is stored between them in bfloat16, weights and sums in float",
      kModelCommands);
}

void describe_loss(Table& table, Options& options) {
  LossOptions& loss = options.run.model.loss;
  OptionSpec& spec = table.choice(
      "--loss", loss.loss, {"auto", "cross-entropy", "bce", "mse", "l1", "causal-lm", "output"},
      "loss; auto looks at output and labels", kModelCommands);
  Table inner;
  inner.text("--logits", loss.output, "NAME", "which model output it looks at", kModelCommands)
      .key = "output";
  inner.integer("--ignore-index", loss.ignore_index, -1000000000, "label that does not count",
                kRunCommands);
  Table::nest(spec, std::move(inner));
}

}  // namespace pipetrain
