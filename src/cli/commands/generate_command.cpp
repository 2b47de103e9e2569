// pipetrain generate: goes on with a text, token by token.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands/commands.h"
#include "cli/output/output.h"
#include "data/formats/texts.h"
#include "onnx_io/reader.h"
#include "text/unicode.h"
#include "train/export.h"
#include "train/generate.h"
#include "train/given_shapes.h"

namespace pipetrain {
namespace {

/// The length of a text without a character at its end that may go on.
std::size_t complete_length(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(4, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) break;
    if (byte < 0xc0) continue;
    const std::size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

/// Prints what generated tokens add to the prompt, as it comes.
class Continuation {
 public:
  Continuation(const Tokenizer& tokenizer, const std::string& prompt, const TokenIds& ids,
               bool prints)
      : tokenizer_(tokenizer), shown_(tokenizer.decode(ids).size()), prints_(prints) {
    put(valid_utf8(prompt));
  }
  void show(const TokenIds& ids, bool last) {
    const std::string all = tokenizer_.decode(ids);
    const std::size_t end = last ? all.size() : complete_length(all);
    if (end <= shown_) return;
    put(valid_utf8(std::string_view(all).substr(shown_, end - shown_)));
    shown_ = end;
  }
  const std::string& text() const { return text_; }

 private:
  void put(const std::string& part) {
    text_ += part;
    if (!prints_) return;
    print(part);
    std::fflush(stdout);
  }

  const Tokenizer& tokenizer_;
  std::size_t shown_;
  bool prints_;
  std::string text_;
};

SamplingOptions sampling_of(const Options& options) {
  SamplingOptions out;
  out.top_k = options.top_k;
  out.top_p = options.top_p;
  out.seed = options.run.optimization.seed;
  const bool samples = options.top_k > 0 || options.top_p < 1;
  out.temperature = options.temperature < 0 ? (samples ? 1 : 0) : options.temperature;
  PT_CHECK(out.top_p > 0 && out.top_p <= 1, kUsage, "--top-p takes a number above 0, up to 1");
  PT_CHECK(out.temperature > 0 || !samples, kUsage,
           "--temperature 0 always takes the likeliest token; leave out --top-k and --top-p");
  return out;
}

/// Without a tokenizer, a model of as many tokens as there are bytes was trained on bytes.
TokenizerFile tokenizer_of(const TextOptions& options, TextModel& network) {
  const bool has_none = options.tokenizer.empty() && options.name.empty();
  if (has_none && network.vocabulary() == kByteTokens) return {"bytes", {}, byte_tokenizer()};
  return open_tokenizer_of(options);
}

}  // namespace

int generate_command(Options& options) {
  resolve_verbosity(options);
  resolve_model(options, "generate");
  resolve_forward(options, "generate");
  const SamplingOptions sampling = sampling_of(options);
  const OnnxModel model = read_onnx(options.run.model.path);
  check_given_shapes(options.run.model, model);
  const std::string taken = follow_training(model.metadata, options.run);
  if (!taken.empty()) log_debug("generate", "note     {}", taken);
  TextModel network(options.run.model, options.run.pipeline.backend, model);
  const TokenizerFile file = tokenizer_of(options.run.data.text, network);
  const Tokenizer& tokenizer = *file.tokenizer;
  // A model that was trained on such texts expects nothing else.
  if (!tokenizer.names_special_tokens() && options.run.data.text.name.empty())
    log_info("generate", "note     {}", kNoSpecialTokens);
  std::optional<TokenId> end = tokenizer.end_of_text();
  if (const std::string& named = options.run.data.text.end_of_text; !named.empty()) {
    end = tokenizer.find(named);
    PT_CHECK(end, kData, "\"{}\" has no token \"{}\"", printable(file.name), printable(named));
  }
  TokenIds ids = tokenizer.begin(options.prompt);
  if (ids.empty() && end) ids.push_back(*end);
  PT_CHECK(!ids.empty(), kUsage, "the prompt has no tokens; give a text with --prompt");
  const std::size_t prompt_tokens = ids.size();
  bool is_cut = false;
  const auto next_logits = [&] {
    std::vector<float> out = network.next_logits(ids);
    if (network.length() > 0 && ids.size() > network.length() && !std::exchange(is_cut, true))
      log_warning("generate",
                  "the text is longer than the {} tokens that the model takes: its "
                  "beginning no longer counts",
                  network.length());
    return out;
  };
  std::vector<float> logits = next_logits();
  // Vocabularies of models are often padded, and those of tokenizers may have unused ids.
  PT_CHECK(
      2 * logits.size() >= tokenizer.vocabulary(), kModel,
      "the model gives {} values for each token, but \"{}\" has {} ids: it is no language model, "
      "or has another tokenizer",
      logits.size(), printable(file.name), tokenizer.vocabulary());
  Continuation continuation(tokenizer, options.prompt, ids, !options.json);
  bool ended = false;
  for (std::int64_t i = 0; i < options.max_tokens && !ended; ++i) {
    if (i > 0) logits = next_logits();
    const TokenId next = choose_token(logits, sampling, ids.size());
    ended = end && next == *end;
    ids.push_back(next);
    if (!ended) continuation.show(ids, /*last=*/false);
  }
  if (ended) ids.pop_back();
  continuation.show(ids, /*last=*/true);
  if (!options.json) {
    print("\n");
    return 0;
  }
  nlohmann::ordered_json json = {
      {"schema", "pipetrain.generate/1"},
      {"prompt", valid_utf8(options.prompt)},
      {"text", continuation.text()},
      {"prompt_tokens",
       TokenIds(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt_tokens))},
      {"tokens", TokenIds(ids.begin() + static_cast<std::ptrdiff_t>(prompt_tokens), ids.end())},
      {"ended", ended}};
  print(json.dump(2) + "\n");
  return 0;
}

}  // namespace pipetrain
