// Options that name a file or a folder say whether they read or write it: checkpoints, whose
// settings may come from anywhere, depend on it.
#include <gtest/gtest.h>

#include <algorithm>
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
  static const std::set<std::string> places = {"FILE", "PATH",       "DIR",
                                               "RUN",  "CHECKPOINT", "graph.txt"};
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
                                               "NAME=KEY",
                                               "NAME=N",
                                               "GLOB",
                                               "GLOB=X",
                                               "A-B",
                                               "NODE,NODE",
                                               "NAME=1x3x224x224",
                                               "NAME[:X],…",
                                               "M,M,M/S,S,S",
                                               "F,B",
                                               "F,I,W",
                                               "'accuracy>=0.97'",
                                               "Nsa,…",
                                               "topK"};
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

TEST(OptionTable, WhatIsWrittenIsMarkedSo) {
  Options options;
  std::set<std::string> written;
  for (const OptionSpec& spec : describe_options(options)) {
    if (spec.path == PathUse::kWrite) written.insert(spec.name);
  }
  EXPECT_EQ(written,
            (std::set<std::string>{"--output", "--run-dir", "--status-file", "--metrics", "--trace",
                                   "--svg", "--dot", "--csv", "--curves", "--confusion"}));
}

}  // namespace
}  // namespace pipetrain
