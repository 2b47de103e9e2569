// Makes option specs that read and write a field. Internal to the option table: each topic
// (options_model.cpp, options_data.cpp, …) adds its rows to one Table.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/options/options.h"

namespace pipetrain {

// What most options belong to.
inline constexpr const char* kModelCommands =
    "train inspect profile plan simulate eval predict verify";
inline constexpr const char* kFileCommands =
    "train inspect profile plan simulate eval predict verify generate";
// Those that build a model as it trains.
inline constexpr const char* kTrainedModelCommands = "train inspect profile plan simulate verify";
inline constexpr const char* kRunCommands = "train profile plan simulate eval predict verify";
inline constexpr const char* kDataCommands = "train profile plan simulate eval predict verify";
inline constexpr const char* kPlanCommands = "train plan simulate verify";
inline constexpr const char* kScheduleCommands = "train plan simulate verify schedule";
inline constexpr const char* kTrainCommands = "train verify";
inline constexpr const char* kOptimizerCommands = "train plan simulate verify";

/// A number, also with k, M, KiB, GB, …; an Error (kUsage) that names the option.
double parse_real(const std::string& name, std::string text);
/// A whole number of at least `least`.
std::int64_t parse_integer(const std::string& name, const std::string& text, std::int64_t least);
/// The same of at most `most`.
int parse_int(const std::string& name, const std::string& text, int least,
              int most = std::numeric_limits<int>::max());
/// Bytes, from 0 to 1e18.
double parse_memory(const std::string& name, const std::string& text);
/// "true", "on", "1", "yes", "" and their opposites.
bool parse_flag(const std::string& name, const std::string& text);
/// "NAME=VALUE" in two.
std::pair<std::string, std::string> split_pair(const std::string& name, const std::string& text);
/// "a,b" as its parts; empty ones are left out.
std::vector<std::string> split_list_of(const std::string& text);
/// "momentum=0.9,at=10,20" as keys and values: what has no "=" belongs to the value before.
std::vector<Assignment> split_parts(const std::string& name, const std::string& text);
/// Refuses what is not among the choices, with the nearest of them.
void check_choice(const std::string& name, const std::string& value,
                  const std::vector<std::string>& choices);

class Table {
 public:
  OptionSpec& add(std::string name, std::string value, std::string help, std::string commands);
  OptionSpec& text(const std::string& name, std::string& field, std::string value, std::string help,
                   std::string commands);
  /// What names a file or a folder, maybe among other things: "NAME|FILE".
  OptionSpec& path(const std::string& name, std::string& field, PathUse use, std::string value,
                   std::string help, std::string commands);
  OptionSpec& choice(const std::string& name, std::string& field, std::vector<std::string> choices,
                     std::string help, std::string commands);
  /// Choices with the values of an enumeration.
  template <class Enum>
  OptionSpec& choice_of(const std::string& name, Enum& field,
                        std::vector<std::pair<std::string, Enum>> choices, std::string help,
                        std::string commands) {
    std::vector<std::string> names;
    for (const auto& [text, value] : choices) names.push_back(text);
    OptionSpec& spec =
        add(name, fmt::format("{}", fmt::join(names, "|")), std::move(help), std::move(commands));
    spec.set = [&field, name, choices, names](const std::string& v) {
      check_choice(name, v, names);
      for (const auto& [text, value] : choices) {
        if (text == v) field = value;
      }
    };
    spec.get = [&field, choices] {
      for (const auto& [text, value] : choices) {
        if (value == field) return text;
      }
      return std::string();
    };
    return spec;
  }
  template <class Integer>
  OptionSpec& integer(const std::string& name, Integer& field, std::int64_t least, std::string help,
                      std::string commands) {
    OptionSpec& spec = add(name, "N", std::move(help), std::move(commands));
    spec.set = [&field, name, least](const std::string& v) {
      field = checked<Integer>(name, v, parse_integer(name, v, least));
    };
    spec.get = [&field] { return fmt::format("{}", field); };
    return spec;
  }
  /// A whole number or "auto", which is 0.
  template <class Integer>
  OptionSpec& automatic(const std::string& name, Integer& field, std::string help,
                        std::string commands, Integer most = std::numeric_limits<Integer>::max()) {
    OptionSpec& spec = add(name, "N|auto", std::move(help), std::move(commands));
    spec.set = [&field, name, most](const std::string& v) {
      field = checked<Integer>(name, v, v == "auto" ? 0 : parse_integer(name, v, 1), most);
    };
    spec.get = [&field] { return field == 0 ? std::string("auto") : fmt::format("{}", field); };
    return spec;
  }
  OptionSpec& real(const std::string& name, double& field, std::string help, std::string commands);
  /// A number whose default depends on another option: kept as text until resolved.
  OptionSpec& late_real(const std::string& name, std::string& field, std::string help,
                        std::string commands);
  OptionSpec& flag(const std::string& name, bool& field, std::string help, std::string commands);
  OptionSpec& list(const std::string& name, std::vector<std::string>& field, std::string value,
                   std::string help, std::string commands);

  /// Makes the options of `inner`, which only apply together with `outer`, settings of its value:
  /// "sgd:momentum=0.9,nesterov=true". They can still be given by their own names. If `outer` has a
  /// key, "KEY=VALUE,momentum=0.9" is the same; without a setter it has no value besides:
  /// "momentum=0.9,nesterov=true".
  static void nest(OptionSpec& outer, Table inner);

  std::string group;
  ResultEffect effect = ResultEffect::kUnclassified;  // default of the rows
  std::vector<OptionSpec> specs;

 private:
  template <class Integer>
  static Integer checked(const std::string& name, const std::string& text, std::int64_t value,
                         Integer most = std::numeric_limits<Integer>::max()) {
    PT_CHECK(std::in_range<Integer>(value) && static_cast<Integer>(value) <= most, kUsage,
             "{} must be at most {}, not {}", name, most, text);
    return static_cast<Integer>(value);
  }
};

void describe_model(Table& table, Options& options);
void describe_loss(Table& table, Options& options);
void describe_data(Table& table, Options& options);
void describe_pipeline(Table& table, Options& options);
void describe_optimization(Table& table, Options& options);
void describe_checkpoints(Table& table, Options& options);
void describe_output(Table& table, Options& options);
void describe_planning(Table& table, Options& options);
void describe_launch(Table& table, Options& options);
void describe_new(Table& table, Options& options);
void describe_general(Table& table, Options& options);

}  // namespace pipetrain
