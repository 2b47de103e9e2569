// Options of the commands that do not train: planning, schedules, new models, reports.
#include "cli/options/option_table.h"
#include "train/saving.h"

namespace pipetrain {

void describe_planning(Table& table, Options& options) {
  table.group = "Command";
  table.path("--follow", options.follow, PathUse::kRead, "RUN",
             "evaluate every checkpoint of a run as it appears, until the run ends", "eval");
  table.integer("--top-k", options.top_k, 1,
                "also how often the right class is among the k likeliest", "eval");
  table.path("--confusion", options.confusion, PathUse::kWrite, "FILE|-",
             "which class was taken for which, as CSV: a row for each label", "eval");
  table.choice("--to", options.to, {"npz", "csv", "jsonl"},
               "form of the outputs; by the name of --output, else jsonl", "predict");
  table.text("--assert", options.assertion, "'accuracy>=0.97'", "exit with 8 when it does not hold",
             "eval");
  table.real("--jitter", options.jitter,
             "how far times scatter, as a share: gives the step's p50 and p95", "simulate");
  table.text("--schedules", options.schedules, "LIST", "schedules to compare", "simulate");
  table.path("--svg", options.svg, PathUse::kWrite, "FILE", "a figure of the predicted step",
             "plan schedule");
  table.path("--dot", options.dot, PathUse::kWrite, "FILE", "the cut chain, for Graphviz", "plan");
  table.text("--times", options.times, "F,B|F,I,W",
             "seconds of forward and backward (input, weight) of a micro-batch; 1,2", "schedule");
  table.text("--latency", options.latency, "T", "of a transfer between devices; 0", "schedule");
  table.path("--costs", options.costs, PathUse::kRead, "FILE",
             "times of every stage and link, a pipetrain.costs/1 document, instead", "schedule");
  table.path("--csv", options.csv, PathUse::kWrite, "FILE|-",
             "compute steps as PyTorch's pipelining reads them", "schedule");
  table.path("--curves", options.curves, PathUse::kWrite, "FILE|-",
             "the curves as CSV, instead of the page", "report");
  OptionSpec& budget =
      table.add("--budget", "TIME", "for searching and measuring: 60s, 10min", "tune");
  budget.set = [&options](const std::string& v) {
    parse_duration("--budget", v);
    options.budget = v;
  };
  budget.get = [&options] { return options.budget; };
  table.flag("--allow-numeric", options.allow_numeric,
             "also try what changes what is trained: micro-batches, replicas, bf16, asynchronous "
             "schedules",
             "tune");
  table.integer("--causes", options.causes, 1, "most causes to print", "trace");
  table.flag("--measure", options.measure, "measure memory, links and arithmetic for the planner",
             "doctor");
  table.path("--pipedream-profile", options.pipedream_profile, PathUse::kRead, "graph.txt",
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
}

void describe_new(Table& table, Options& options) {
  table.group = "New";
  table.numbers = Numbers::kNone;
  table.integer("--image", options.image, 1, "height and width of the images", "new data");
  table.integer("--channels", options.channels, 1, "of the images", "new data");
  table.integer("--classes", options.classes, 2, "of a classifier", "new");
  table.integer("--width", options.width, 1, "of the layers; of a figure, in columns",
                "new schedule");
  table.integer("--depth", options.depth, 1, "number of layers or blocks", "new").aliases = {
      "--layers"};
  table.integer("--heads", options.heads, 1, "of each attention", "new");
  table.integer("--samples", options.samples, 1, "to make", "data");
  table.integer("--vocab", options.vocab, 2, "of a language model", "new");
  table.integer("--context", options.context, 2, "tokens of a language model", "new");
  table.choice("--weights", options.weights, {"auto", "random", "none"},
               "none: a file for planning that takes no disk; auto: none above 450 million numbers",
               "new");
}

}  // namespace pipetrain
