// Binding a stream of tokens to a language model: windows of the model's length, one after the
// other, and as labels the token that follows each.
//
//   tokens   a b c d e f g h i     length 4
//   sample 0 a b c d               labels b c d e
//   sample 1         e f g h       labels         f g h i
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/rows/column_source.h"
#include "data/rows/data_spec.h"
#include "data/rows/dataset.h"
#include "data/rows/raw_data.h"

namespace pipetrain {

using TokenShards = std::shared_ptr<const std::vector<TokenShard>>;

/// The input that takes tokens, by its number: the first integer one without a known filling.
std::optional<std::size_t> token_input_in(const DataSpec& spec);

/// Errors (kData): the model does not want tokens, an id is out of range, the stream is too short.
std::shared_ptr<const Dataset> bind_token_stream(const TokenShards& shards, const DataSpec& spec,
                                                 std::vector<std::string>& notes);

/// A warning if the tokens are the bytes of a text and the model has a vocabulary of its own;
/// empty: none.
std::string warning_about_bytes(const TokenShards& shards, const DataSpec& spec);

/// How texts that were left out become tokens, for errors; empty: there are none.
std::string hint_at_tokenizer(const RawSplit& split);

/// How rows of tokens that are too long fit, for errors; empty: they are none, or not too long.
std::string hint_at_longer_rows(const RawSplit& split, const Shape& have, const Shape& want);

/// A single array of whole numbers with one axis, given to a model that predicts the next token, is
/// a stream too; null if that is not what `split` and `spec` are.
TokenShards token_stream_in(const RawSplit& split, const DataSpec& spec);

/// Whether labels are the tokens of their rows, some of them ignored. `labels`: as many rows.
bool are_tokens(const RawColumn& labels, const ArraySource& tokens, std::int64_t ignore_index);

/// The attention_mask that comes with rows of tokens, by its number among the columns.
std::optional<std::size_t> mask_beside(const RawSplit& split, const ArraySource& tokens);

}  // namespace pipetrain
