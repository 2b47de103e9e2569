// The one table of options.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "cli/options.h"
#include "train/saving.h"

namespace pipetrain {
namespace {

double parse_real(const std::string& name, std::string text) {
  double scale = 1;
  const auto ends = [&](std::string_view suffix) {
    if (text.size() <= suffix.size() ||
        text.compare(text.size() - suffix.size(), suffix.size(), suffix) != 0)
      return false;
    text.resize(text.size() - suffix.size());
    return true;
  };
  for (const auto& [suffix, factor] :
       std::initializer_list<std::pair<std::string_view, double>>{{"GiB", 1073741824.0},
                                                                  {"MiB", 1048576.0},
                                                                  {"KiB", 1024.0},
                                                                  {"GB", 1e9},
                                                                  {"MB", 1e6},
                                                                  {"k", 1e3},
                                                                  {"M", 1e6}}) {
    if (ends(suffix)) {
      scale = factor;
      break;
    }
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  PT_CHECK(error == std::errc() && end == text.data() + text.size() && std::isfinite(value), kUsage,
           "{} takes a number, not \"{}\"", name, printable(text));
  return value * scale;
}

std::int64_t parse_integer(const std::string& name, const std::string& text, std::int64_t least) {
  const double value = parse_real(name, text);
  PT_CHECK(value == std::floor(value) && std::abs(value) < 9e15, kUsage,
           "{} takes a whole number, not \"{}\"", name, printable(text));
  PT_CHECK(value >= static_cast<double>(least), kUsage, "{} must be at least {}, not {}", name,
           least, text);
  return static_cast<std::int64_t>(value);
}

double parse_memory(const std::string& name, const std::string& text) {
  const double bytes = parse_real(name, text);
  PT_CHECK(bytes >= 0 && bytes < 1e18, kUsage, "{} must be from 0 to 1e18 bytes, not {}", name,
           printable(text));
  return bytes;
}

bool parse_flag(const std::string& name, const std::string& text) {
  if (text == "true" || text == "1" || text == "on" || text == "yes" || text.empty()) return true;
  if (text == "false" || text == "0" || text == "off" || text == "no") return false;
  PT_FAIL(kUsage, "{} takes true or false, not \"{}\"", name, printable(text));
}

template <class T>
std::string real_text(T value) {
  return fmt::format("{}", value);
}

/// Makes specs that read and write a field.
class Table {
 public:
  OptionSpec& add(std::string name, std::string value, std::string help, std::string commands,
                  OptionSpec spec = {}) {
    spec.name = std::move(name);
    spec.value = std::move(value);
    spec.help = std::move(help);
    spec.commands = std::move(commands);
    spec.group = group;
    specs.push_back(std::move(spec));
    return specs.back();
  }
  OptionSpec& text(const std::string& name, std::string& field, std::string value, std::string help,
                   std::string commands) {
    OptionSpec& spec = add(name, std::move(value), std::move(help), std::move(commands));
    spec.set = [&field](const std::string& v) { field = v; };
    spec.get = [&field] { return field; };
    return spec;
  }
  OptionSpec& choice(const std::string& name, std::string& field, std::vector<std::string> choices,
                     std::string help, std::string commands) {
    OptionSpec& spec =
        add(name, fmt::format("{}", fmt::join(choices, "|")), std::move(help), std::move(commands));
    spec.set = [&field, name, choices](const std::string& v) {
      if (std::find(choices.begin(), choices.end(), v) == choices.end()) {
        const std::string near = nearest(v, choices);
        PT_FAIL(kUsage, "{} cannot be \"{}\"{}; one of: {}", name, printable(v),
                near.empty() ? "" : fmt::format(", did you mean \"{}\"?", near),
                fmt::join(choices, ", "));
      }
      field = v;
    };
    spec.get = [&field] { return field; };
    return spec;
  }
  template <class Integer>
  OptionSpec& integer(const std::string& name, Integer& field, std::int64_t least, std::string help,
                      std::string commands) {
    OptionSpec& spec = add(name, "N", std::move(help), std::move(commands));
    spec.set = [&field, name, least](const std::string& v) {
      const std::int64_t value = parse_integer(name, v, least);
      PT_CHECK(std::in_range<Integer>(value), kUsage, "{} must be at most {}, not {}", name,
               std::numeric_limits<Integer>::max(), v);
      field = static_cast<Integer>(value);
    };
    spec.get = [&field] { return fmt::format("{}", field); };
    return spec;
  }
  /// A whole number or "auto", which is 0.
  template <class Integer>
  OptionSpec& automatic(const std::string& name, Integer& field, std::string help,
                        std::string commands) {
    OptionSpec& spec = add(name, "N|auto", std::move(help), std::move(commands));
    spec.set = [&field, name](const std::string& v) {
      const std::int64_t value = v == "auto" ? 0 : parse_integer(name, v, 1);
      PT_CHECK(std::in_range<Integer>(value), kUsage, "{} must be at most {}, not {}", name,
               std::numeric_limits<Integer>::max(), v);
      field = static_cast<Integer>(value);
    };
    spec.get = [&field] { return field == 0 ? std::string("auto") : fmt::format("{}", field); };
    return spec;
  }
  OptionSpec& real(const std::string& name, double& field, std::string help, std::string commands) {
    OptionSpec& spec = add(name, "X", std::move(help), std::move(commands));
    spec.set = [&field, name](const std::string& v) { field = parse_real(name, v); };
    spec.get = [&field] { return real_text(field); };
    return spec;
  }
  /// A number whose default depends on another option: kept as text until resolved.
  OptionSpec& late_real(const std::string& name, std::string& field, std::string help,
                        std::string commands) {
    OptionSpec& spec = add(name, "X", std::move(help), std::move(commands));
    spec.set = [&field, name](const std::string& v) {
      parse_real(name, v);
      field = v;
    };
    spec.get = [&field] { return field; };
    return spec;
  }
  OptionSpec& flag(const std::string& name, bool& field, std::string help, std::string commands) {
    OptionSpec& spec = add(name, "", std::move(help), std::move(commands));
    spec.set = [&field, name](const std::string& v) { field = parse_flag(name, v); };
    spec.get = [&field] { return field ? "true" : "false"; };
    return spec;
  }
  OptionSpec& list(const std::string& name, std::vector<std::string>& field, std::string value,
                   std::string help, std::string commands) {
    OptionSpec& spec = add(name, std::move(value), std::move(help), std::move(commands));
    spec.set = [&field](const std::string& v) {
      std::size_t begin = 0;
      while (begin <= v.size()) {
        const std::size_t comma = std::min(v.find(',', begin), v.size());
        if (comma > begin) field.push_back(v.substr(begin, comma - begin));
        begin = comma + 1;
      }
    };
    spec.get = [&field] { return fmt::format("{}", fmt::join(field, ",")); };
    spec.repeatable = true;
    return spec;
  }

  std::string group;
  std::vector<OptionSpec> specs;
};

std::pair<std::string, std::string> split_pair(const std::string& name, const std::string& text) {
  const std::size_t equal = text.find('=');
  PT_CHECK(equal != std::string::npos && equal > 0 && equal + 1 < text.size(), kUsage,
           "{} takes NAME=VALUE, not \"{}\"", name, printable(text));
  return {text.substr(0, equal), text.substr(equal + 1)};
}

constexpr const char* kModelCommands = "train inspect profile plan simulate eval verify";
constexpr const char* kRunCommands = "train profile plan simulate eval verify";
constexpr const char* kPlanCommands = "train plan simulate verify";
constexpr const char* kScheduleCommands = "train plan simulate verify schedule";
constexpr const char* kTrainCommands = "train verify";

void describe_model(Table& table, Options& options) {
  table.group = "Model";
  ModelConfig& model = options.run.model;
  table
      .text("--model", model.path, "FILE", "the network, an ONNX file",
            "train inspect profile plan simulate eval verify export")
      .aliases = {"-m"};
  table.specs.back().in_short_help = true;
  OptionSpec& shape = table.add("--shape", "NAME=1x3x224x224",
                                "full shape of an input with free dimensions", kModelCommands);
  shape.repeatable = true;
  shape.aliases = {"--shapes"};
  shape.set = [&model](const std::string& v) {
    const auto [name, dims] = split_pair("--shape", v);
    std::vector<std::int64_t> shape;
    std::size_t begin = 0;
    while (begin <= dims.size()) {
      const std::size_t end = std::min(dims.find('x', begin), dims.size());
      shape.push_back(parse_integer("--shape", dims.substr(begin, end - begin), 1));
      begin = end + 1;
    }
    model.shapes[name] = Shape(shape);
  };
  shape.get = [] { return std::string(); };
  OptionSpec& dim = table.add("--dim", "NAME=N", "size of a free dimension", kModelCommands);
  dim.repeatable = true;
  dim.set = [&model](const std::string& v) {
    const auto [name, size] = split_pair("--dim", v);
    model.dims[name] = parse_integer("--dim", size, 1);
  };
  dim.get = [] { return std::string(); };
  table.choice("--loss", model.loss.loss,
               {"auto", "cross-entropy", "bce", "mse", "l1", "causal-lm", "output"},
               "loss; auto looks at output and labels", kModelCommands);
  table.text("--output-node", model.output_node, "NAME", "train up to this node or value",
             kModelCommands);
  table.text("--logits", model.loss.output, "NAME", "which model output the loss looks at",
             kModelCommands);
  table.integer("--ignore-index", model.loss.ignore_index, -1000000000, "label that does not count",
                kRunCommands);
  table.list("--freeze", model.parameters.freeze, "GLOB", "do not train matching tensors",
             "train inspect");
  table.list("--train-only", model.parameters.train_only, "GLOB", "train matching tensors only",
             "train inspect");
  OptionSpec& tie = table.add(
      "--tie", "auto|graph",
      "auto: merged copies are trained apart; graph: as the file shares them", "train inspect");
  tie.set = [&model](const std::string& v) {
    PT_CHECK(v == "auto" || v == "graph", kUsage, "--tie cannot be \"{}\"; one of: auto, graph",
             printable(v));
    model.parameters.untie = v == "auto";
  };
  tie.get = [&model] { return model.parameters.untie ? "auto" : "graph"; };
  OptionSpec& bn =
      table.add("--bn", "train|as-file|frozen",
                "BatchNormalization: train with batch statistics, as the file says, or never",
                kModelCommands);
  bn.set = [&model](const std::string& v) {
    if (v == "train")
      model.batch_norm = BatchNormMode::kTrain;
    else if (v == "as-file")
      model.batch_norm = BatchNormMode::kAsFile;
    else if (v == "frozen")
      model.batch_norm = BatchNormMode::kFrozen;
    else
      PT_FAIL(kUsage, "--bn cannot be \"{}\"; one of: train, as-file, frozen", printable(v));
  };
  bn.get = [&model] {
    return model.batch_norm == BatchNormMode::kTrain    ? "train"
           : model.batch_norm == BatchNormMode::kAsFile ? "as-file"
                                                        : "frozen";
  };
  OptionSpec& dropout =
      table.add("--dropout", "keep|off", "random masks of Dropout nodes", kModelCommands);
  dropout.set = [&model](const std::string& v) {
    PT_CHECK(v == "keep" || v == "off", kUsage, "--dropout cannot be \"{}\"; one of: keep, off",
             printable(v));
    model.dropout = v == "keep";
  };
  dropout.get = [&model] { return model.dropout ? "keep" : "off"; };
}

void describe_data(Table& table, Options& options) {
  table.group = "Data";
  DataOptions& data = options.run.data;
  table.text("--data", data.path, "PATH|synthetic",
             "training data: npz, npy, CSV, IDX, CIFAR, tokens, text", kRunCommands);
  table.specs.back().in_short_help = true;
  table.text("--format", data.format, "NAME", "of the data, instead of what is detected",
             kRunCommands);
  table.text("--val-data", data.validation_path, "PATH", "validation data", "train").aliases = {
      "--valid-data"};
  table.real("--val-split", data.validation_split, "share of the training data to hold out",
             "train");
  table.integer("--val-rows", data.validation_rows, 0, "or a number of samples", "train");
  OptionSpec& bind =
      table.add("--bind", "NAME=KEY", "which array feeds which input or label", kRunCommands);
  bind.repeatable = true;
  bind.set = [&data](const std::string& v) {
    data.bind.bindings.push_back(split_pair("--bind", v));
  };
  bind.get = [] { return std::string(); };
  OptionSpec& normalize =
      table.add("--normalize", "auto|none|max|X", "scale of float inputs", kRunCommands);
  normalize.set = [&data](const std::string& v) {
    data.bind.normalization = Normalization::parse(v);
  };
  normalize.get = [] { return std::string("auto"); };
  OptionSpec& tokens =
      table.add("--token-dtype", "u16|u32", "of a token file without header", kRunCommands);
  tokens.set = [&data](const std::string& v) {
    PT_CHECK(v == "u16" || v == "u32" || v == "u8", kUsage,
             "--token-dtype cannot be \"{}\"; one of: u8, u16, u32", printable(v));
    data.token_dtype = v == "u16" ? DType::kUint16 : v == "u32" ? DType::kUint32 : DType::kUint8;
  };
  tokens.get = [] { return std::string(); };
  table.text("--label-column", data.csv.label_column, "NAME|N", "of a table; the last by default",
             kRunCommands);
  table.flag("--shuffle", options.run.optimization.shuffle, "a new order every epoch", "train");
  table.flag("--drop-last", options.run.optimization.drop_last,
             "leave out a last batch that is short", kTrainCommands);
  table.integer("--limit", data.limit, 0, "use only the first N samples; 0: all", kRunCommands);
}

void describe_pipeline(Table& table, Options& options) {
  table.group = "Pipeline";
  PipelineConfig& pipeline = options.run.pipeline;
  table
      .integer("--gpus", options.gpus, 1,
               "stages, one a device; with --device cpu that many CPU stages",
               "train profile plan simulate eval verify schedule")
      .aliases = {"--num-gpus", "--stages"};
  table.specs.back().in_short_help = true;
  table.choice("--device", options.device, {"auto", "cpu", "cuda", "reference"},
               "what the stages run on", kModelCommands);
  OptionSpec& ids =
      table.add("--gpu-ids", "N,N,…",
                "which GPUs, one a device; one may stand several times (0,0,0,0)", "train eval");
  ids.set = [&pipeline](const std::string& v) {
    pipeline.gpu_ids.clear();
    for (std::size_t begin = 0; begin <= v.size();) {
      const std::size_t comma = std::min(v.find(',', begin), v.size());
      pipeline.gpu_ids.push_back(
          static_cast<int>(parse_integer("--gpu-ids", v.substr(begin, comma - begin), 0)));
      begin = comma + 1;
    }
  };
  ids.get = [&pipeline] { return fmt::format("{}", fmt::join(pipeline.gpu_ids, ",")); };
  OptionSpec& schedule =
      table.add("--schedule", "NAME|FILE|auto",
                "see: pipetrain schedule list; auto: what the simulator finds best", kPlanCommands);
  schedule.in_short_help = true;
  schedule.set = [&options](const std::string& v) {
    options.run.pipeline.schedule = v;
    options.schedule_given = true;
  };
  schedule.get = [&pipeline] { return pipeline.schedule; };
  OptionSpec& replicas = table.add(
      "--replicas", "N,N,…|auto",
      "devices of each stage, which share its micro-batches; auto: as the planner finds best",
      kScheduleCommands);
  replicas.set = [&pipeline](const std::string& v) {
    pipeline.replicas.clear();
    pipeline.plan_replicas = v == "auto";
    for (std::size_t begin = 0; begin <= v.size() && !pipeline.plan_replicas;) {
      const std::size_t comma = std::min(v.find(',', begin), v.size());
      pipeline.replicas.push_back(
          static_cast<int>(parse_integer("--replicas", v.substr(begin, comma - begin), 1)));
      begin = comma + 1;
    }
  };
  replicas.get = [&pipeline] {
    return pipeline.plan_replicas ? "auto" : fmt::format("{}", fmt::join(pipeline.replicas, ","));
  };
  table.text("--topology", pipeline.topology, "FILE|NAME",
             "devices and links; what doctor --measure found by default", kPlanCommands);
  table.integer("--virtual-stages", pipeline.chunks, 1,
                "stages of each device in interleaved schedules", kScheduleCommands);
  table.integer("--memory-units", pipeline.memory_units, 0,
                "of schedule zb: micro-batches that a device may hold; 0: one a stage",
                kScheduleCommands);
  table.real("--warm-up-tolerance", pipeline.warm_up_tolerance,
             "of schedule 1f1b-auto: speed given up for memory, as a share", kPlanCommands);
  table
      .automatic("--micro-batches", pipeline.micro_batches,
                 "per update; auto: up to 8 of 8 samples or more",
                 "train profile plan simulate eval verify schedule")
      .aliases = {"--chunks", "--num-microbatches"};
  table.specs.back().in_short_help = true;
  table.automatic("--micro-batch-size", pipeline.micro_batch_size,
                  "samples, instead of --micro-batches", kRunCommands);
  table.automatic("--threads", pipeline.threads, "threads of each CPU stage; auto: cores / stages",
                  kRunCommands);
  table.flag("--pin", pipeline.pin, "give each CPU stage cores of its own", kRunCommands);
  table.text("--plan", pipeline.plan_path, "FILE", "a plan.json to follow", "train plan simulate");
  table.list("--split", pipeline.split, "NODE,NODE",
             "nodes at which stages begin, instead of planning", "train plan simulate");
  OptionSpec& recompute =
      table.add("--recompute", "none|all|auto",
                "run the forward again instead of keeping activations", kPlanCommands);
  recompute.aliases = {"--gradient-checkpointing"};
  recompute.set = [&pipeline](const std::string& v) {
    if (v == "none")
      pipeline.recompute = Recompute::kNone;
    else if (v == "all")
      pipeline.recompute = Recompute::kAll;
    else if (v == "auto")
      pipeline.recompute = Recompute::kAuto;
    else
      PT_FAIL(kUsage, "--recompute cannot be \"{}\"; one of: none, all, auto", printable(v));
  };
  recompute.get = [&pipeline] {
    return pipeline.recompute == Recompute::kNone  ? "none"
           : pipeline.recompute == Recompute::kAll ? "all"
                                                   : "auto";
  };
  OptionSpec& memory =
      table.add("--gpu-memory", "SIZE", "memory limit of each stage, for example 4GiB; 0: none",
                kPlanCommands);
  memory.set = [&pipeline](const std::string& v) {
    pipeline.memory_limit_bytes = static_cast<std::size_t>(parse_memory("--gpu-memory", v));
  };
  memory.get = [&pipeline] { return fmt::format("{}", pipeline.memory_limit_bytes); };
  table.text("--profile", pipeline.profile_path, "FILE", "a profile.json instead of measuring",
             kPlanCommands);
  table.flag("--cache", pipeline.profile_cache, "remember measured kernels", kRunCommands);
  OptionSpec& timeout =
      table.add("--comm-timeout", "SECONDS",
                "without any progress: stop and say who waits for whom", "train eval");
  timeout.set = [&pipeline](const std::string& v) {
    pipeline.timeout_seconds =
        parse_real("--comm-timeout", !v.empty() && v.back() == 's' ? v.substr(0, v.size() - 1) : v);
  };
  timeout.get = [&pipeline] { return real_text(pipeline.timeout_seconds); };
}

void describe_optimization(Table& table, Options& options) {
  table.group = "Optimise";
  OptimizationConfig& optimization = options.run.optimization;
  table.integer("--epochs", optimization.epochs, 0, "passes over the training data", "train")
      .in_short_help = true;
  table.integer("--max-steps", optimization.max_steps, 0, "updates, instead of --epochs", "train")
      .aliases = {"--max-iters"};
  table.integer("--batch-size", optimization.batch_size, 1, "samples per update", kRunCommands)
      .aliases = {"-b", "--global-batch-size"};
  table.specs.back().in_short_help = true;
  table
      .choice("--optimizer", options.optimizer,
              {"adamw", "adam", "sgd", "rmsprop", "adagrad", "lamb", "lars", "lion"},
              "formulas and defaults are PyTorch's; lamb, lars, lion: the papers'", kTrainCommands)
      .in_short_help = true;
  table
      .late_real("--lr", options.lr,
                 "learning rate; adam, adamw, lamb 1e-3, lion 1e-4, lars 1, else 1e-2",
                 kTrainCommands)
      .aliases = {"--learning-rate"};
  table.specs.back().in_short_help = true;
  table.late_real("--momentum", options.momentum, "of sgd, lars 0.9, of rmsprop 0", kTrainCommands);
  table.flag("--nesterov", optimization.optimizer.nesterov, "of sgd", kTrainCommands);
  table.late_real("--weight-decay", options.weight_decay, "adamw, lamb 0.01, lars 5e-4, else 0",
                  kTrainCommands);
  table.late_real("--beta1", options.beta1, "of adam, adamw, lamb, lion; 0.9", kTrainCommands);
  table.late_real("--beta2", options.beta2, "of adam, adamw, lamb 0.999, lion 0.99",
                  kTrainCommands);
  table.late_real("--eps", options.epsilon,
                  "of adam, adamw, rmsprop 1e-8, adagrad 1e-10, lamb 1e-6", kTrainCommands);
  table.late_real("--alpha", options.alpha, "of rmsprop: decay of the mean square; 0.99",
                  kTrainCommands);
  table.flag("--centered", optimization.optimizer.centered,
             "of rmsprop: divide by the deviation from the mean", kTrainCommands);
  OptionSpec& schedule = table.add("--lr-schedule",
                                   "constant|cosine|linear|step|multistep|exponential|polynomial|"
                                   "inverse-sqrt|wsd|onecycle",
                                   "over the whole run", kTrainCommands);
  schedule.aliases = {"--lr-scheduler"};
  schedule.set = [&optimization](const std::string& v) {
    optimization.learning_rate.kind = learning_rate_named(v);
  };
  schedule.get = [&optimization] { return std::string(name_of(optimization.learning_rate.kind)); };
  table
      .text("--warmup", options.warmup, "N|P%|Nep",
            "of the learning rate: steps, share of the run, epochs", kTrainCommands)
      .aliases = {"--warmup-steps"};
  table.real("--min-lr", optimization.learning_rate.minimum,
             "learning rate that it never falls below", kTrainCommands);
  table.real("--lr-gamma", optimization.learning_rate.gamma,
             "factor of --lr-schedule step, multistep, exponential", kTrainCommands);
  table.integer("--lr-step", optimization.learning_rate.every_steps, 1,
                "of step and exponential: steps for one factor", kTrainCommands);
  table.list("--lr-milestones", options.milestones, "N|P%|Nep,…",
             "of multistep: when to apply the factor", kTrainCommands);
  table.real("--lr-power", optimization.learning_rate.power, "of polynomial", kTrainCommands);
  table.real("--lr-decay-fraction", optimization.learning_rate.decay_fraction,
             "of wsd: share of the run in which it falls", kTrainCommands);
  table
      .real("--clip-norm", optimization.clip_norm, "largest global gradient norm; 0: off",
            kTrainCommands)
      .aliases = {"--max-grad-norm", "--grad-clip"};
  OptionSpec& seed = table.integer("--seed", optimization.seed, 0,
                                   "of order, masks, held-out samples and new weights",
                                   "train profile plan simulate eval verify new");
  seed.in_short_help = true;
  OptionSpec& on_nan = table.add("--on-nan", "stop|ignore",
                                 "what to do when the loss is not finite", kTrainCommands);
  on_nan.set = [&optimization](const std::string& v) {
    PT_CHECK(v == "stop" || v == "ignore", kUsage,
             "--on-nan cannot be \"{}\"; one of: stop, ignore", printable(v));
    optimization.stop_on_nonfinite = v == "stop";
  };
  on_nan.get = [&optimization] { return optimization.stop_on_nonfinite ? "stop" : "ignore"; };
}

void describe_checkpoints(Table& table, Options& options) {
  table.group = "Checkpoints";
  OptionSpec& resume = table.add("--resume", "",
                                 "go on from a checkpoint: the newest of the run; auto: start "
                                 "afresh where there is none; PATH: this one",
                                 "train");
  resume.optional_value = "auto|PATH";
  resume.in_short_help = true;
  resume.set = [&options](const std::string& v) {
    options.resume = v == "true" ? "latest" : v == "false" ? "" : v;
  };
  resume.get = [&options] { return options.resume; };
  table.flag("--resume-weights-only", options.resume_weights_only,
             "a new run that begins with the weights of --resume", "train");
  OptionSpec& every =
      table.add("--save-every", "N|Nep|Nmin|never",
                "steps, epochs or time between checkpoints; with --data 1ep", "train");
  every.aliases = {"--save-interval", "--save-steps"};
  every.set = [&options](const std::string& v) {
    SaveEvery::parse(v);
    options.save_every = v;
  };
  every.get = [&options] { return options.save_every; };
  OptionSpec& keep =
      table.add("--keep", "N|all", "checkpoints, the newest ones; the best stays too", "train");
  keep.aliases = {"--keep-last"};
  keep.set = [&options](const std::string& v) {
    options.keep =
        v == "all"
            ? 0
            : static_cast<int>(std::min<std::int64_t>(1 << 30, parse_integer("--keep", v, 2)));
  };
  keep.get = [&options] { return options.keep == 0 ? "all" : fmt::format("{}", options.keep); };
  table.choice("--on-checkpoint-error", options.on_checkpoint_error, {"warn", "fail"},
               "when one cannot be written; warn: the third in a row ends the run", "train");
  OptionSpec& time = table.add("--max-time", "TIME", "save and end after 90, 30min, 2h", "train");
  time.set = [&options](const std::string& v) {
    parse_duration("--max-time", v);
    options.max_time = v;
  };
  time.get = [&options] { return options.max_time; };
  table.text("--status-file", options.status_file, "FILE",
             "where the run stands, as JSON, replaced once a second", "train");
  table.text("--from", options.from, "CHECKPOINT",
             "a checkpoint, or a run's folder: its newest one, also while it trains", "export");
}

void describe_output(Table& table, Options& options) {
  table.group = "Output";
  table
      .text("--output", options.output, "FILE|-", "trained model; RUN/trained.onnx",
            "train plan profile new schedule doctor export report")
      .aliases = {"-o"};
  table.specs.back().in_short_help = true;
  table.text("--run-dir", options.run_dir, "DIR", "folder of the run; runs/<model>-<date>-<time>",
             "train");
  table.flag("--overwrite", options.overwrite, "allow files that exist to be replaced",
             "train new export");
  table.integer("--log-every", options.log_every, 1, "steps between two lines", "train").aliases = {
      "--log-interval"};
  table.text("--metrics", options.metrics, "FILE|-", "JSON Lines; RUN/events.jsonl", "train");
  table.flag("--json", options.json, "print one JSON document",
             "inspect profile plan simulate eval verify schedule trace doctor");
  table.text("--assert", options.assertion, "'accuracy>=0.97'", "exit with 8 when it does not hold",
             "eval");
  table.real("--jitter", options.jitter,
             "how far times scatter, as a share: gives the step's p50 and p95", "simulate");
  table.text("--schedules", options.schedules, "LIST", "schedules to compare", "simulate");
  table.text("--svg", options.svg, "FILE", "a picture of the predicted step", "plan schedule");
  table.text("--dot", options.dot, "FILE", "the cut chain, for Graphviz", "plan");
  table.text("--trace", options.trace, "FILE", "a timeline of some steps, for ui.perfetto.dev",
             "train");
  table.text("--trace-steps", options.trace_steps, "A-B", "which; the first three warm ones",
             "train");
  table.text("--times", options.times, "F,B|F,I,W",
             "seconds of forward and backward (input, weight) of a micro-batch; 1,2", "schedule");
  table.text("--latency", options.latency, "T", "of a transfer between devices; 0", "schedule");
  table.text("--costs", options.costs, "FILE",
             "times of every stage and link, a pipetrain.costs/1 document, instead", "schedule");
  table.text("--csv", options.csv, "FILE|-", "compute steps as PyTorch's pipelining reads them",
             "schedule");
  table.text("--curves", options.curves, "FILE|-", "the curves as CSV, instead of the page",
             "report");
  table.integer("--causes", options.causes, 1, "most causes to print", "trace");
  table.flag("--measure", options.measure, "measure memory, links and arithmetic for the planner",
             "doctor");
  table.text("--pipedream-profile", options.pipedream_profile, "graph.txt",
             "plan a network that PipeDream's profiler measured, instead of a model", "plan");
  table.choice("--compat", options.compat, {"pipedream"},
               "also what PipeDream's planner makes of its profile", "plan");
  table.real("--bandwidth", options.bandwidth, "bytes per second between devices, of such a plan",
             "plan");
  table.text("--activation-compression", options.activation_compression, "X",
             "PipeDream's ratio; absent: activations travel for free in its model", "plan");
  table.flag("--fewer-machines", options.fewer_machines, "PipeDream's planner may leave some idle",
             "plan");
  table.flag("--params", options.show_params, "list every tensor: trained or not, and why",
             "inspect");
  table.flag("--chain", options.show_chain, "list the nodes between which the model can be cut",
             "inspect");
  table.flag("--graph", options.show_graph, "print the training graph, backward pass included",
             "inspect");
  table.group = "New";
  table.integer("--image", options.image, 1, "height and width of the images", "new");
  table.integer("--channels", options.channels, 1, "of the images", "new");
  table.integer("--classes", options.classes, 2, "of a classifier", "new");
  table.integer("--width", options.width, 1, "of the layers; of a picture, in columns",
                "new schedule");
  table.integer("--depth", options.depth, 1, "number of layers or blocks", "new").aliases = {
      "--layers"};
  table.integer("--heads", options.heads, 1, "of each attention", "new");
  table.integer("--vocab", options.vocab, 2, "of a language model", "new");
  table.integer("--context", options.context, 2, "tokens of a language model", "new");
  table.choice("--weights", options.weights, {"auto", "random", "none"},
               "none: a file for planning that takes no disk; auto: none above 450 million numbers",
               "new");
  table.group = "General";
  table.flag("--dry-run", options.dry_run, "plan and check, do not train", "train").aliases = {
      "-n"};
  table.specs.back().in_short_help = true;
  table.flag("--quiet", options.quiet, "errors only", "*").aliases = {"-q"};
  table.flag("--verbose", options.verbose, "more messages", "*").aliases = {"-v"};
  table.flag("--help", options.help, "this", "*").aliases = {"-h"};
  table.flag("--version", options.version, "print the version", "*");
}

}  // namespace

std::vector<OptionSpec> describe_options(Options& options) {
  Table table;
  describe_model(table, options);
  describe_data(table, options);
  describe_pipeline(table, options);
  describe_optimization(table, options);
  describe_checkpoints(table, options);
  describe_output(table, options);
  return std::move(table.specs);
}

}  // namespace pipetrain
