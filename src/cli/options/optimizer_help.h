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

/// "of adamw, adam; 0.9" or, where defaults differ, "of sgd, lars 0.9, rmsprop 0". `meaning` is put
/// after the names: "of rmsprop: MEANING; 0.99".
std::string readers_of(std::optional<double> OptimizerRow::*number, std::string_view meaning = "");
/// "of sgd".
std::string readers_of(bool OptimizerRow::*flag);
/// "sgd".
std::string names_of_readers(bool OptimizerRow::*flag);
/// "adamw, adam 1e-3, lars 1, else 1e-2".
std::string defaults_of(double OptimizerRow::*number);
/// "adamw, lamb".
std::string names_with_decoupled_decay();

}  // namespace pipetrain
