// Options of the commands that do not train: planning, schedules, new models, reports.
#include "cli/options/option_table.h"
#include "pipeline/schedule/generate.h"
#include "train/saving.h"

namespace pipetrain {

namespace {

/// How a text is continued.
void describe_generation(Table& table, Options& options) {
  table.text("--prompt", options.prompt, "TEXT", "the text to continue", "generate");
  table.integer("--max-tokens", options.max_tokens, 1, "number of tokens to add at most",
                "generate");
  OptionSpec& temperature = table.add(
      "--temperature", "X",
      "sampling temperature; 0: always the likeliest token; default: 0, or 1 with --top-k or "
      "--top-p",
      "generate");
  temperature.set = [&options](const std::string& v) {
    options.temperature = parse_real("--temperature", v);
    PT_CHECK(options.temperature >= 0, kUsage, "--temperature takes a number from 0 on");
  };
  temperature.get = [&options] {
    return options.temperature < 0 ? "" : fmt::format("{}", options.temperature);
  };
  table.real("--top-p", options.top_p,
             "choose at random among the likeliest tokens that together have probability X",
             "generate");
}

std::vector<std::string> names_of_schedules() {
  std::vector<std::string> names;
  for (const ScheduleDescription& each : schedules()) names.push_back(each.name);
  return names;
}

/// What inspect shows besides.
void describe_views(Table& table, Options& options) {
  table.flag("--params", options.show_params, "list every tensor, whether it is trained, and why",
             "inspect");
  table.flag("--layers", options.show_layers,
             "list the layers: output shape, parameters, operations, and share of the time with "
             "--profile",
             "inspect");
  table.flag("--chain", options.show_chain, "list the nodes between which the model can be cut",
             "inspect");
  table.flag("--graph", options.show_graph, "print the training graph, backward pass included",
             "inspect");
}

/// What verify compares besides a step.
void describe_comparisons(Table& table, Options& options) {
  table.path("--against", options.against, PathUse::kRead, "RUN",
             "instead compare the journals of two runs, and name the first step that differs",
             "verify");
  table.path("--replay", options.replay, PathUse::kRead, "RUN",
             "instead compute the updates of a run with --replica-mode async or backup again, in "
             "one thread, and compare the weights with those of its newest checkpoint",
             "verify");
}

}  // namespace

void describe_planning(Table& table, Options& options) {
  table.group = "Command-specific";
  table.path("--follow", options.follow, PathUse::kRead, "RUN",
             "evaluate every checkpoint of a run as it appears, until the run ends", "eval");
  table.integer("--top-k", options.top_k, 1, "also report the top-k accuracy", "eval generate")
      .means("generate", "choose among the K likeliest tokens at random");
  describe_generation(table, options);
  table.flag("--details", options.details,
             "also report F1, AUC and mean IoU, and precision and recall of each class; of "
             "regressions the mean absolute error",
             "eval");
  table.path("--confusion", options.confusion, PathUse::kWrite, "FILE|-",
             "write the confusion matrix as CSV, one row per label", "eval");
  table.choice("--to", options.to, {"npz", "csv", "jsonl"},
               "output format; default: by the extension of --output; jsonl on standard output",
               "predict");
  table.text("--assert", options.assertion, "'accuracy>=0.97'",
             "exit with code 8 if the condition fails", "eval");
  describe_comparisons(table, options);
  table.real("--jitter", options.jitter,
             "random variation of times, as a fraction; gives the p50 and p95 of the step",
             "simulate");
  table
      .text("--schedules", options.schedules, "LIST",
            "schedules to compare, in place of --schedule", "simulate")
      .completes(names_of_schedules());
  table
      .path("--svg", options.svg, PathUse::kWrite, "FILE|-",
            "write a timeline of the predicted step as SVG", "plan schedule")
      .completes({}, {"svg"});
  table.path("--dot", options.dot, PathUse::kWrite, "FILE|-",
             "write the stages as a Graphviz graph", "plan");
  table.text("--times", options.times, "F,B|F,I,W",
             "seconds per micro-batch: forward, backward; or forward, input gradient, weight "
             "gradient; default: 1,2",
             "schedule");
  table.text("--latency", options.latency, "T", "seconds of a transfer between devices; default: 0",
             "schedule");
  table
      .path("--costs", options.costs, PathUse::kRead, "FILE",
            "times of every stage and link (a pipetrain.costs/1 document), instead of --times and "
            "--latency",
            "schedule")
      .completes({}, {"json"});
  table.path("--csv", options.csv, PathUse::kWrite, "FILE|-",
             "write the compute steps as CSV for torch.distributed.pipelining", "schedule");
  table.path("--curves", options.curves, PathUse::kWrite, "FILE|-",
             "write the curves as CSV, instead of the page", "report");
  OptionSpec& budget =
      table.add("--budget", "TIME", "time limit for search and measurement: 60s, 10min", "tune");
  budget.set = [&options](const std::string& v) {
    parse_duration("--budget", v);
    options.budget = v;
  };
  budget.get = [&options] { return options.budget; };
  table.flag("--allow-numeric", options.allow_numeric,
             "also try settings that change the results: micro-batches, replicas, bf16, "
             "asynchronous schedules",
             "tune");
  table.integer("--causes", options.causes, 1, "number of causes to print", "trace");
  table.flag("--measure", options.measure, "measure memory, links and FLOP/s for the planner",
             "doctor");
  table
      .path("--pipedream-profile", options.pipedream_profile, PathUse::kRead, "graph.txt",
            "plan from a profile of PipeDream's profiler, instead of a model", "plan")
      .completes({}, {"txt"});
  table.choice("--compat", options.compat, {"pipedream"},
               "compare with the plan of PipeDream's planner", "plan");
  table.real("--bandwidth", options.bandwidth,
             "bytes per second between devices, for --pipedream-profile", "plan");
  table.text("--activation-compression", options.activation_compression, "X",
             "PipeDream's activation compression ratio; default: its cost model ignores activation "
             "transfers",
             "plan");
  table.flag("--fewer-machines", options.fewer_machines,
             "let PipeDream's planner leave machines unused", "plan");
  describe_views(table, options);
}

void describe_launch(Table& table, Options& options) {
  table.group = "Hosts";
  table.effect = ResultEffect::kNone;
  table.path("--hosts", options.hosts, PathUse::kRead, "FILE",
             "hosts to train on, one per line: \"node1 slots=2\" or \"node1:2\"; read again while "
             "training runs",
             "launch");
  table.path("--discover", options.discover, PathUse::kRead, "SCRIPT",
             "a program that prints the currently available hosts, instead of --hosts", "launch");
  table.integer("--min", options.least_hosts, 1, "minimum number of hosts that have to be there",
                "launch");
  table.automatic("--max", options.most_hosts, "maximum number of hosts to use; auto: all",
                  "launch");
  table.integer("--max-restarts", options.max_restarts, 0,
                "give up after this many restarts in a row without a new step", "launch");
  table.text(
      "--commit-every", options.commit_every, "N|auto|never",
      "steps between commits: copies of the state in the memory of the hosts, which training "
      "resumes from; auto: as many as take 2 % of the time",
      "launch");
}

void describe_new(Table& table, Options& options) {
  table.group = "Sizes";
  table.effect = ResultEffect::kNone;
  table.integer("--image", options.image, 1, "height and width of the images", "new data");
  table.integer("--channels", options.channels, 1, "channels of the images", "new data");
  table.integer("--classes", options.classes, 2, "number of classes", "new");
  table.integer("--width", options.width, 1, "width of the layers", "new schedule")
      .means("schedule", "columns of the timeline");
  table.integer("--depth", options.depth, 1, "number of layers or blocks", "new").aliases = {
      "--layers"};
  table.integer("--heads", options.heads, 1, "attention heads", "new");
  table.integer("--samples", options.samples, 1, "number of samples", "data");
  table.integer("--vocab", options.vocab, 2, "vocabulary size of a language model", "new");
  table.integer("--context", options.context, 2, "context length of a language model, in tokens",
                "new");
  table.choice("--weights", options.weights, {"auto", "random", "none"},
               "none: a file for planning only, which takes no disk space; auto: none above 450 "
               "million parameters",
               "new");
}

}  // namespace pipetrain
