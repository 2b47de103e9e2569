#include "cli/options/optimizer_help.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace pipetrain {
namespace {

template <class Condition>
std::string names_where(const Condition& condition) {
  std::string out;
  for (const OptimizerRow& row : kOptimizerRows) {
    if (std::invoke(condition, row)) out += (out.empty() ? "" : ", ") + std::string(row.name);
  }
  return out;
}

/// The shorter of 0.001 and 1e-3.
std::string short_text(double value) {
  const std::string plain = fmt::format("{}", value);
  for (int digits = 0; value != 0 && digits < 17; ++digits) {
    std::string text = fmt::format("{:.{}e}", value, digits);
    if (std::stod(text) != value) continue;
    const std::size_t e = text.find('e');
    text = fmt::format("{}e{}", text.substr(0, e), std::stoi(text.substr(e + 1)));
    return text.size() < plain.size() ? text : plain;
  }
  return plain;
}

struct Group {
  double value;
  std::vector<std::string_view> names;

  /// "0.01 for adamw, adam and lamb".
  std::string text() const {
    std::string out = short_text(value);
    for (std::size_t i = 0; i < names.size(); ++i)
      out += fmt::format("{}{}",
                         i == 0                 ? " for "
                         : i + 1 < names.size() ? ", "
                                                : " and ",
                         names[i]);
    return out;
  }
};

/// The optimizers that have a number, those with the same together.
template <class Number>
std::vector<Group> groups_of(const Number& number) {
  std::vector<Group> groups;
  for (const OptimizerRow& row : kOptimizerRows) {
    const std::optional<double> value = number(row);
    if (!value) continue;
    const auto found = std::ranges::find(groups, *value, &Group::value);
    if (found != groups.end()) {
      found->names.push_back(row.name);
    } else {
      groups.push_back({*value, {row.name}});
    }
  }
  return groups;
}

}  // namespace

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerRow& row : kOptimizerRows) names.emplace_back(row.name);
  return names;
}

std::string optimizer_help() {
  std::string out = fmt::format(
      "optimizer, with the formula and defaults of PyTorch (of their papers for {}; with momentum "
      "0.9 and a learning rate of 0.01 for sgd)",
      names_where([](const OptimizerRow& row) { return row.origin == Origin::kPaper; }));
  for (const OptimizerRow& row : kOptimizerRows) out += fmt::format("; {}: {}", row.name, row.help);
  return out;
}

std::string defaults_of(std::optional<double> OptimizerRow::*number) {
  std::string out;
  for (const Group& group : groups_of([&](const OptimizerRow& row) { return row.*number; }))
    out += (out.empty() ? "" : ", ") + group.text();
  return out;
}

std::string names_of_readers(bool OptimizerRow::*flag) { return names_where(flag); }

std::string defaults_of(double OptimizerRow::*number) {
  std::vector<Group> groups = groups_of([&](const OptimizerRow& row) { return row.*number; });
  // What most have comes last, without their names.
  const auto most = std::ranges::max_element(groups, std::ranges::less_equal(),
                                             [](const Group& group) { return group.names.size(); });
  const double usual = most->value;
  groups.erase(most);
  std::string out;
  for (const Group& group : groups) out += group.text() + ", ";
  return out + "else " + short_text(usual);
}

std::string names_with_decoupled_decay() {
  return names_where([](const OptimizerRow& row) { return row.decay == Decay::kDecoupled; });
}

}  // namespace pipetrain
