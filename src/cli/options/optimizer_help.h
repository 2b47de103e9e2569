// Help texts of --optimizer and of the options that optimizers read, from the optimizers' rows.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optim/optimizer_table.h"

namespace pipetrain {

std::vector<std::string> optimizer_names();
std::string optimizer_help();

/// Of those that have the number: "0.9 for sgd and lars, 0 for rmsprop".
std::string defaults_of(std::optional<double> OptimizerRow::*number);
/// Of all: "1e-3 for adamw and adam, 1 for lars, else 0.01".
std::string defaults_of(double OptimizerRow::*number);
/// "sgd".
std::string names_of_readers(bool OptimizerRow::*flag);
/// "adamw, lamb".
std::string names_with_decoupled_decay();

}  // namespace pipetrain
