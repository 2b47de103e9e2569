// What rows of the option table must say: options that name a file or a folder, whether they read
// or write it, since settings of checkpoints may come from anywhere; options of train, what the
// numbers that are trained have to do with them, since a run that goes on must tell what changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cli/options/options.h"

namespace pipetrain {
namespace {

/// "NAME|FILE" as its words.
std::vector<std::string> notation_of(const OptionSpec& spec) {
  const std::string notation = spec.is_switch() ? spec.optional_value : spec.value;
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < notation.size();) {
    const std::size_t end = std::min(notation.find('|', begin), notation.size());
    words.push_back(notation.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

bool is_lower(const std::string& word) {
  return std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

/// Checks an option; returns the words of its notation that are neither a place nor known.
std::set<std::string> unknown_words(const OptionSpec& spec) {
  static const std::set<std::string> places = {
      "FILE",  "PATH", "DIR", "RUN", "CHECKPOINT", "graph.txt", "mlflow:DIR", "tensorboard[:DIR]",
      "SCRIPT"};
  static const std::set<std::string> others = {"N",
                                               "N,N,…",
                                               "N,N,...",
                                               "Nep",
                                               "Nmin",
                                               "Nsa",
                                               "N,…",
                                               "P%",
                                               "X",
                                               "X,X,…",
                                               "X:Y",
                                               "T",
                                               "TIME",
                                               "SECONDS",
                                               "SIZE",
                                               "LIST",
                                               "NAME",
                                               "TEXT",
                                               "TOKEN",
                                               "NAME=KEY",
                                               "NAME=N",
                                               "GLOB",
                                               "GLOB=X",
                                               "KEY=VALUE,…",
                                               "A-B",
                                               "NODE,NODE",
                                               "NAME=1x3x224x224",
                                               "NAME[:X],…",
                                               "M,M,M/S,S,S",
                                               "F,B",
                                               "F,I,W",
                                               "'accuracy>=0.97'",
                                               "Nsa,…",
                                               "topK",
                                               "async:staleness=N",
                                               "backup:N"};
  std::set<std::string> unknown;
  bool names_place = false;
  for (const std::string& word : notation_of(spec)) {
    if (places.contains(word))
      names_place = true;
    else if (!others.contains(word) && !is_lower(word))
      unknown.insert(word);
  }
  EXPECT_EQ(names_place, spec.path != PathUse::kNone)
      << spec.name << " " << spec.value << ": PathUse says otherwise than the notation";
  return unknown;
}

TEST(OptionTable, EveryOptionThatNamesAPlaceSaysWhatBecomesOfIt) {
  Options options;
  int places = 0;
  const auto check = [&](const OptionSpec& spec) {
    for (const std::string& word : unknown_words(spec))
      ADD_FAILURE() << spec.name << " " << spec.value << ": is \"" << word
                    << "\" a place? then use Table::path(), else name it in this test";
    places += spec.path != PathUse::kNone ? 1 : 0;
  };
  for (const OptionSpec& spec : describe_options(options)) {
    check(spec);
    for (const OptionSpec& part : spec.parts) check(part);
  }
  EXPECT_GE(places, 20);
}

TEST(OptionTable, EveryOptionOfTrainSaysWhatNumbersHaveToDoWithIt) {
  Options options;
  int rows = 0;
  const auto check = [&](const OptionSpec& spec) {
    if (!spec.applies_to("train")) return;
    ++rows;
    EXPECT_NE(spec.effect, ResultEffect::kUnclassified)
        << spec.name << ": say in its row whether a run that goes on may be given another value";
    EXPECT_TRUE(!spec.record || spec.effect == ResultEffect::kRecorded) << spec.name;
  };
  for (const OptionSpec& spec : describe_options(options)) {
    check(spec);
    for (const OptionSpec& part : spec.parts) check(part);
  }
  EXPECT_GE(rows, 90);
}

TEST(OptionTable, CheckpointsRecordWhatIsInForce) {
  const auto record = [](const std::vector<std::string>& arguments) {
    std::map<std::string, std::string> all;
    for (const auto& [name, value] : recorded_settings(parse_options("train", arguments)))
      EXPECT_TRUE(all.emplace(name, value).second) << name << " is recorded twice";
    return all;
  };
  // A key here stands in every checkpoint: one that is renamed is not compared with older ones.
  const std::map<std::string, std::string> defaults = {{"accumulators", "0"},
                                                       {"alpha", "0.99"},
                                                       {"augment", "none"},
                                                       {"beta1", "0.9"},
                                                       {"beta2", "0.999"},
                                                       {"bn", "train"},
                                                       {"centered", "false"},
                                                       {"class-weights", ""},
                                                       {"clip-norm", "0"},
                                                       {"compress", "none"},
                                                       {"dropout", "keep"},
                                                       {"ema", "0"},
                                                       {"eps", "1e-08"},
                                                       {"ignore-index", "-100"},
                                                       {"label-smoothing", "0"},
                                                       {"logits", ""},
                                                       {"lr", "0.001"},
                                                       {"lr-decay-fraction", "0.1"},
                                                       {"lr-gamma", "0.1"},
                                                       {"lr-milestones", ""},
                                                       {"lr-power", "1"},
                                                       {"lr-scale", ""},
                                                       {"lr-schedule", "cosine"},
                                                       {"lr-step", "0"},
                                                       {"min-lr", "0"},
                                                       {"momentum", "0"},
                                                       {"nesterov", "false"},
                                                       {"precision", "fp32"},
                                                       {"seed", "1"},
                                                       {"shuffle", "true"},
                                                       {"warmup", "0 steps"},
                                                       {"weight-decay", "0.01"},
                                                       {"weight-decay of tensors", ""}};
  EXPECT_EQ(record({"--optimizer", "adamw"}), defaults);
  const std::map<std::string, std::string> given =
      record({"--optimizer", "sgd:momentum=0.9", "--lr-schedule", "multistep:at=10,50%,gamma=0.5",
              "--lr-scale", "a*=0.1", "--lr-scale", "b=2", "--weight-decay", "0.1",
              "--weight-decay", "*.bias=0", "--warmup", "5%", "--sample-weights", "dir/w.txt"});
  EXPECT_EQ(given.at("momentum"), "0.9");
  EXPECT_EQ(given.at("lr-milestones"), "10,0.5 of the run");
  EXPECT_EQ(given.at("lr-gamma"), "0.5");
  EXPECT_EQ(given.at("lr-scale"), "a*=0.1,b=2");
  EXPECT_EQ(given.at("weight-decay"), "0.1");
  EXPECT_EQ(given.at("weight-decay of tensors"), "*.bias=0");
  EXPECT_EQ(given.at("warmup"), "0.05 of the run");
  EXPECT_EQ(given.at("sample-weights"), "w.txt");
  const std::map<std::string, std::string> loss =
      record({"--loss", "cross-entropy:output=z", "--ignore-index", "7", "--augment", "mixup:0.4"});
  EXPECT_EQ(loss.at("logits"), "z");
  EXPECT_EQ(loss.at("ignore-index"), "7");
  EXPECT_EQ(loss.at("augment"), "mixup:0.4");
  EXPECT_EQ(record({"--augment", "none"}).at("augment"), "none");
  EXPECT_EQ(record({"--warmup", "2k"}).at("warmup"), "2000 steps");
  EXPECT_EQ(record({"--warmup", "64ksa", "--batch-size", "64"}).at("warmup"), "1000 steps");
  EXPECT_EQ(record({"--lr-schedule", "cosine:over=time"}).at("lr-over"), "time");
  const std::map<std::string, std::string> adapted =
      record({"--lora", "rank=8,alpha=16,targets=q*,v*"});
  EXPECT_EQ(adapted.at("lora"), "8");
  EXPECT_EQ(adapted.at("lora-alpha"), "16");
  EXPECT_EQ(adapted.at("lora-targets"), "q*,v*");
}

TEST(Overlay, StagesOnTheCpuPutGpuNumbersOutOfForce) {
  const std::vector<Assignment> gpus = {{"--gpu-ids", "0,0"}};
  for (const char* device : {"cpu", "reference"}) {
    const std::vector<Assignment> given = {{"--device", device}, {"--gpus", "2"}};
    EXPECT_EQ(overlay(gpus, given), given);
  }
  EXPECT_EQ(overlay(gpus, {{"--device", "cuda"}}).size(), 2);
}

TEST(ParseOptions, AValueReplacesAnEarlierOneWithItsParts) {
  const auto parsed = [](std::vector<std::string> words) { return parse_options("train", words); };
  EXPECT_EQ(parsed({"--optimizer", "sgd:momentum=0.9", "--optimizer", "rmsprop"}).momentum, "");
  EXPECT_EQ(parsed({"--momentum", "0.9", "--optimizer", "rmsprop"}).momentum, "0.9");
  EXPECT_EQ(parsed({"--optimizer", "rmsprop:momentum=0.5", "--momentum", "0.9"}).momentum, "0.9");
  const Options errors = parsed({"--on-error", "bad-sample=skip", "--on-error", "nan=skip"});
  EXPECT_EQ(errors.run.data.bind.on_bad_sample, BadSample::kSkip);
  EXPECT_EQ(errors.run.optimization.on_nonfinite, OnNonfinite::kSkip);
}

TEST(OptionTable, WhatIsWrittenIsMarkedSo) {
  Options options;
  std::set<std::string> written;
  for (const OptionSpec& spec : describe_options(options)) {
    if (spec.path == PathUse::kWrite) written.insert(spec.name);
  }
  EXPECT_EQ(written, (std::set<std::string>{"--output", "--adapter", "--run-dir", "--status-file",
                                            "--metrics", "--trace", "--svg", "--dot", "--csv",
                                            "--curves", "--confusion", "--log-to"}));
}

}  // namespace
}  // namespace pipetrain
