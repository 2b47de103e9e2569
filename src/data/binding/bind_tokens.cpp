#include "data/binding/bind_tokens.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/setting.h"
#include "data/binding/allowed_values.h"
#include "data/rows/element.h"

namespace pipetrain {

namespace {

const ModelInput* find_token_input(const DataSpec& spec) {
  const std::optional<std::size_t> index = token_input_in(spec);
  return index ? &spec.inputs[*index] : nullptr;
}

void check_ids(const std::vector<TokenShard>& shards, const DataSpec& spec,
               const ModelInput& input) {
  std::int64_t bound = input.upper_bound;
  if (spec.label && spec.label->classes >= 0) {
    bound = bound < 0 ? spec.label->classes : std::min(bound, spec.label->classes);
  }
  if (bound < 0) return;
  for (const TokenShard& shard : shards) {
    const std::size_t count = shard.tokens();
    const auto bytes = shard.content.bytes().subspan(shard.header_bytes);
    const double largest = range_of(bytes.data(), shard.dtype, count).high;
    if (count == 0 || largest < static_cast<double>(bound)) continue;
    std::size_t at = 0;
    while (at < count && shard.token(at) < static_cast<std::uint64_t>(bound)) ++at;
    if (at == count) continue;  // the file has just been cut, which is said when all is read
    const bool is_text = shard.dtype == DType::kUint8;
    const bool guessed = shard.header_bytes == 0 && !is_text;
    PT_FAIL(kData, "token {} out of range 0..{}, {} token {}{}", shard.token(at), bound - 1,
            printable(shard.file), at,
            shard.from_tokenizer
                ? fmt::format("; the tokenizer has more tokens than the model, which needs its own "
                              "({} FILE)",
                              setting("tokenizer"))
            : guessed ? fmt::format(" ({} u16 or u32 sets the token type)", setting("token-dtype"))
            : is_text ? fmt::format("; without a tokenizer, the tokens of a text are its bytes: "
                                    "give the model's with {} FILE",
                                    setting("tokenizer"))
                      : "");
  }
}

}  // namespace

std::optional<std::size_t> token_input_in(const DataSpec& spec) {
  for (std::size_t i = 0; i < spec.inputs.size(); ++i) {
    if (!known_filling(spec.inputs[i]) && !is_float(spec.inputs[i].dtype)) return i;
  }
  return std::nullopt;
}

std::shared_ptr<const Dataset> bind_token_stream(const TokenShards& shards, const DataSpec& spec,
                                                 std::vector<std::string>& notes) {
  const std::string& from = shards->front().file;
  const std::string file = from == "-" ? "standard input" : printable(from);
  const ModelInput* input = find_token_input(spec);
  PT_CHECK(input && input->sample_shape.rank() == 1 && input->sample_shape[0] > 0, kData,
           "\"{}\" is a stream of tokens, and the model has no integer input of shape (tokens); if "
           "it is something else, give {}, such as csv or jsonl",
           file, setting("format"));
  const bool shifted = spec.label && spec.label->shifted_input;
  PT_CHECK(!spec.label || shifted, kData,
           "\"{}\" is a stream of tokens without labels, for models that predict the next token, "
           "but this loss expects labels {} {}",
           file, name_of(spec.label->dtype), spec.label->sample_shape.text());
  check_ids(*shards, spec, *input);

  const auto length = static_cast<std::size_t>(input->sample_shape[0]);
  const std::size_t extra = shifted ? 1 : 0;
  const std::size_t samples = TokenSource(shards, length, extra, 0).size();
  std::size_t tokens = 0;
  for (const TokenShard& shard : *shards) tokens += shard.tokens();
  PT_CHECK(samples > 0, kData, "\"{}\" has {} tokens, too few for one sample of {}{}", file, tokens,
           length, shifted ? " and the next one" : "");

  std::vector<Column> columns;
  std::vector<std::unique_ptr<ColumnSource>> sources;
  const auto add = [&](const char* kind, Column column, const std::string& from,
                       std::unique_ptr<ColumnSource> source) {
    notes.push_back(fmt::format("{} {}: {}", kind, column.text(), from));
    columns.push_back(std::move(column));
    sources.push_back(std::move(source));
  };
  for (const ModelInput& each : spec.inputs) {
    const Column column{each.name, each.dtype, each.sample_shape};
    if (&each == input) {
      add("input", column, fmt::format("windows of {} of the {} tokens", length, tokens),
          std::make_unique<TokenSource>(shards, length, extra, 0));
      continue;
    }
    const std::optional<Filling> filling = known_filling(each);
    PT_CHECK(filling, kData, "\"{}\" has nothing for the input {}", file, column.text());
    check_filling(each, *filling);
    add("input", column, fmt::format("filled with {}, as the data have none", name_of(*filling)),
        std::make_unique<FillingSource>(*filling));
  }
  if (shifted) {
    const Column column{spec.label->name, spec.label->dtype, spec.label->sample_shape};
    PT_CHECK(column.sample_shape == input->sample_shape, kData,
             "next-token labels have shape {}, but the loss expects {}", input->sample_shape.text(),
             column.sample_shape.text());
    add("labels", column, "the next tokens", std::make_unique<TokenSource>(shards, length, 1, 1));
  }
  return std::make_shared<ColumnsDataset>(samples, std::move(columns), std::move(sources));
}

std::string warning_about_bytes(const TokenShards& shards, const DataSpec& spec) {
  constexpr std::int64_t kBytesAndSpecials = 512;
  const ModelInput* input = find_token_input(spec);
  if (shards->front().dtype != DType::kUint8 || !input || input->upper_bound <= kBytesAndSpecials)
    return {};
  return fmt::format(
      "without a tokenizer, the tokens of a text are its bytes, but the model has a vocabulary of "
      "{}: give the tokenizer of a model that was trained before with {} FILE",
      input->upper_bound, setting("tokenizer"));
}

std::string hint_at_tokenizer(const RawSplit& split) {
  if (!split.leaves_out_texts) return {};
  return fmt::format("; if the texts are meant, give their tokenizer: {} FILE",
                     setting("tokenizer"));
}

std::string hint_at_longer_rows(const RawSplit& split, const Shape& have, const Shape& want) {
  if (split.row_length == 0 || have.rank() != 1 || have.count() <= want.count()) return {};
  if (have.count() != static_cast<std::int64_t>(split.row_length)) return {};
  return fmt::format(
      "; if the model takes any length, {} {} pads all rows to that, otherwise leave out longer "
      "rows",
      setting("text-length"), have.count());
}

TokenShards token_stream_in(const RawSplit& split, const DataSpec& spec) {
  const ModelInput* input = find_token_input(spec);
  if (split.columns.size() != 1 || split.leaves_out_texts || !spec.label ||
      !spec.label->shifted_input || !input || input->sample_shape.rank() != 1 ||
      input->sample_shape[0] < 2) {
    return nullptr;
  }
  const RawColumn& raw = split.columns[0];
  if (raw.values.shape().rank() != 1 || is_float(raw.values.dtype())) return nullptr;
  const auto bad = find_bad_elements(
      raw.values, 0, 1, Allowed::whole(0, std::numeric_limits<std::uint32_t>::max()), 1);
  PT_CHECK(bad.empty(), kData, "token {} {}, {}", bad[0].value, bad[0].reason,
           raw.locate(bad[0].row));
  std::string ids(raw.rows() * sizeof(std::uint32_t), '\0');
  convert_elements(raw.values.view().data, raw.values.dtype(), ids.data(), DType::kUint32,
                   raw.rows(), 1);
  std::vector<TokenShard> shards;
  shards.push_back({raw.file, FileBytes(std::move(ids)), DType::kUint32, 0});
  return std::make_shared<const std::vector<TokenShard>>(std::move(shards));
}

bool are_tokens(const RawColumn& labels, const ArraySource& tokens, std::int64_t ignore_index) {
  const std::vector<std::int64_t> ids = tokens.values.to_int64s(),
                                  wanted = labels.values.to_int64s();
  const std::size_t length = wanted.size() / labels.rows();
  const std::size_t row_ids = ids.size() / labels.rows();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::size_t id = i / length * row_ids + tokens.first + i % length;
    if (wanted[i] != ignore_index && wanted[i] != ids[id]) return false;
  }
  return true;
}

std::optional<std::size_t> mask_beside(const RawSplit& split, const ArraySource& tokens) {
  const auto found = std::ranges::find(split.columns, "attention_mask", &RawColumn::name);
  if (found == split.columns.end() || found->source || is_float(found->dtype()) ||
      found->values.type().count() != tokens.values.type().count())
    return std::nullopt;
  return static_cast<std::size_t>(found - split.columns.begin());
}

}  // namespace pipetrain
