// How texts become samples of tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace pipetrain {

struct TextOptions {
  std::string tokenizer;     // its file; empty: none
  std::string column, pair;  // of JSON Lines and tables: the texts, and second ones; empty: by name
  /// Texts one after the other, cut into samples, or one sample for each text.
  enum class Layout : std::uint8_t { kAuto, kPack, kPad } layout = Layout::kAuto;
  /// What is one text in a plain file.
  enum class Document : std::uint8_t { kAuto, kFile, kLine } document = Document::kAuto;
  std::size_t length = 0;   // tokens of a sample; 0: the model's, or the longest text's
  std::string end_of_text;  // the token after each text; empty: by the tokenizer

  // What the reader is told besides.
  std::int64_t ignored_label = -100;  // of padding: what the loss passes over
  std::size_t model_length = 0;       // 0: not known, or any
  std::size_t trained_length = 0;  // of the samples that the model was trained with; 0: not known
  std::size_t training_rows = 0;   // of data beside the training's: the length that its rows have
  /// The same of other rows, such as a decoder's, by their names.
  std::map<std::string, std::size_t> other_rows;
  bool one_row_per_text = false;
  bool one_label_per_text = false;  // what the model computes is a row for each text
  /// The file is the one that the model was trained with: used if there are texts, and only it.
  bool from_model = false;
  std::string name, sha256;  // of that file; empty: any will do

  /// The tokens that samples are cut or padded to; 0: the longest text's.
  std::size_t sample_length() const { return training_rows ? training_rows : own_length(); }
  /// The same without regard to other data.
  std::size_t own_length() const {
    if (length) return length;
    return model_length ? model_length : trained_length;
  }
  /// For a model's metadata: the settings, and which file it was.
  std::string text(const std::string& file_name, const std::string& file_sha256) const;
  /// What text() has written; Error (kData) for anything else. No path is taken from it.
  static TextOptions parse(const std::string& text);
};

}  // namespace pipetrain
