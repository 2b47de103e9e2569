#include "train/round_mail.h"

#include <cstring>
#include <optional>
#include <string_view>

#include "pipeline/stage/content_bytes.h"

namespace pipetrain {
namespace {

enum class RoundLetterKind : std::uint8_t { kLoss, kRequests, kContent, kDecision };

template <class T>
std::string plain_letter(RoundLetterKind kind, const T& value) {
  std::string bytes(sizeof kind + sizeof value, '\0');
  std::memcpy(bytes.data(), &kind, sizeof kind);
  std::memcpy(bytes.data() + sizeof kind, &value, sizeof value);
  return bytes;
}

}  // namespace

void RoundMail::send(const Loss& loss) {
  letters_.post(0, plain_letter(RoundLetterKind::kLoss, loss));
}

void RoundMail::send(const RunRequests& requests) {
  letters_.post(0, plain_letter(RoundLetterKind::kRequests, requests));
}

void RoundMail::send(const Content& content) {
  ByteWriter writer;
  writer.put(RoundLetterKind::kContent);
  writer.put(content.stage);
  writer.put(content.units);
  writer.put(content.copy_seconds);
  writer.put_text(bytes_of(content.content));
  letters_.post(0, writer.take());
}

void RoundMail::send(const Decision& decision) {
  for (int rank = 1; rank < group_.size(); ++rank)
    letters_.post(rank, plain_letter(RoundLetterKind::kDecision, decision));
}

void RoundMail::hand_on(const Letter& letter) {
  ByteReader reader(letter.bytes);
  const auto kind = static_cast<RoundLetterKind>(letter.bytes.front());
  reader.get<RoundLetterKind>();
  switch (kind) {
    case RoundLetterKind::kLoss:
      receivers_.loss(reader.get<Loss>());
      break;
    case RoundLetterKind::kRequests:
      receivers_.requests(reader.get<RunRequests>());
      break;
    case RoundLetterKind::kDecision:
      receivers_.decision(reader.get<Decision>());
      break;
    case RoundLetterKind::kContent: {
      Content content;
      content.stage = reader.get<int>();
      content.units = reader.get<int>();
      content.copy_seconds = reader.get<double>();
      content.content = content_of(reader.get_text());
      receivers_.content(std::move(content));
    }
  }
}

void RoundMail::poll() {
  const std::lock_guard lock(mutex_);
  while (const std::optional<Letter> letter = letters_.next()) hand_on(*letter);
}

void RoundMail::wait_until(const std::function<bool()>& ready) {
  PollPause pause;
  for (poll(); !ready(); poll()) pause.rest();
}

void RoundMail::close() {
  const std::lock_guard lock(mutex_);
  for (const Letter& letter : letters_.close()) hand_on(letter);
}

}  // namespace pipetrain
