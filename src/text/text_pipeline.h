// The steps of tokenizer.json: added tokens, normalizers, splits into words, the model of words.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/pattern.h"
#include "text/tokenizer.h"
#include "text/word_models.h"

namespace pipetrain {

enum class NormalizerStep : unsigned char {
  kFormC,
  kFormD,
  kFormKC,
  kFormKD,
  kLower,
  kCleanControls,    // control characters go, white space becomes spaces
  kSpaceIdeographs,  // spaces around CJK ideographs
  kRemoveAccents,    // form D without nonspacing marks
};
std::string normalize(std::string_view text, const std::vector<NormalizerStep>& steps);

/// Divides words at what a pattern matches, or at what it does not.
struct WordSplit {
  Pattern pattern;
  bool removes = false;  // the matches go
  bool inverted = false;
};
/// BERT's words: between white space, with every punctuation mark alone.
std::vector<WordSplit> bert_splits();
/// Of byte-level BPE, where the file names no pattern.
WordSplit gpt2_split();

struct TextPipeline {
  AddedTokens raw, normalized;  // looked for before and after the normalizers
  std::vector<NormalizerStep> normalizers;
  std::vector<WordSplit> splits;
  bool space_before = false;  // each part of the text then begins with a space
  std::vector<WordSplit> later_splits;
  std::unique_ptr<WordModel> model;
};

/// A tokenizer of such steps.
class PipelineTokenizer final : public Tokenizer {
 public:
  /// `pieces` by id, as they are decoded; `specials`: those that are left out.
  PipelineTokenizer(std::string kind, TextPipeline pipeline, Vocabulary tokens,
                    std::vector<std::string> pieces, std::vector<bool> specials);
  void encode(std::string_view text, WordCache& cache, TokenIds& out) const override;
  std::string decode(std::span<const TokenId> ids) const override;
  std::optional<TokenId> find(std::string_view token) const override;
  void set_templates(Template single, Template pair) {
    single_ = std::move(single);
    pair_ = std::move(pair);
  }

 private:
  void encode_part(std::string_view text, WordCache& cache, TokenIds& out) const;

  TextPipeline pipeline_;
  Vocabulary tokens_;
  std::vector<std::string> pieces_;
  std::vector<bool> specials_;
};

}  // namespace pipetrain
