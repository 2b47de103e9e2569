#include "train/replica_mail.h"

#include <optional>
#include <utility>

#include "pipeline/stage/content_bytes.h"

namespace pipetrain {
namespace {

enum class LetterKind : std::uint8_t { kPart, kCopy, kEnd, kGradient, kRequests, kCopyIsKept };

}  // namespace

ReplicaMail::ReplicaMail(ProcessGroup& group, double timeout_seconds, Receivers receivers)
    : group_(group),
      receivers_(std::move(receivers)),
      letters_(group),
      // poll() sees failures. The program computes even while it waits for others: nobody waits
      // for ever (replica_turns.h).
      thread_(
          group, [](const std::exception_ptr&) {},
          [] { return std::pair<std::string, std::uint64_t>(); }, [] { return true; },
          timeout_seconds) {
  group_.all_gather({});
  thread_.expect_signs_of_life();
}

void ReplicaMail::send_part(int process, int replica, const DataPart& part,
                            const NamedTensors& weights) {
  ByteWriter writer;
  writer.put(LetterKind::kPart);
  writer.put(replica);
  writer.put(part);
  put_tensors(writer, weights);
  letters_.post(process, writer.take());
}

void ReplicaMail::send_copy(int process, const std::string& piece) {
  ByteWriter writer;
  writer.put(LetterKind::kCopy);
  writer.put_text(piece);
  letters_.post(process, writer.take());
}

void ReplicaMail::send_end(RunEnd end) {
  for (int rank = 1; rank < group_.size(); ++rank) {
    ByteWriter writer;
    writer.put(LetterKind::kEnd);
    writer.put(end);
    letters_.post(rank, writer.take());
  }
}

void ReplicaMail::send_gradient(int replica, const PartGradient& gradient) {
  ByteWriter writer;
  writer.put(LetterKind::kGradient);
  writer.put(replica);
  writer.put(gradient.part);
  writer.put(gradient.samples);
  writer.put(gradient.counted);
  writer.put(gradient.weight);
  writer.put(gradient.loss);
  writer.put(gradient.correct);
  put_tensors(writer, gradient.gradients);
  put_tensors(writer, gradient.statistics);
  letters_.post(0, writer.take());
}

void ReplicaMail::send_requests(const RunRequests& requests) {
  ByteWriter writer;
  writer.put(LetterKind::kRequests);
  writer.put(requests);
  letters_.post(0, writer.take());
}

void ReplicaMail::send_copy_is_kept(const std::string& failure) {
  ByteWriter writer;
  writer.put(LetterKind::kCopyIsKept);
  writer.put_text(failure);
  letters_.post(0, writer.take());
}

bool ReplicaMail::poll() {
  const std::optional<Letter> letter = letters_.next();
  if (!letter) return false;
  ByteReader reader(letter->bytes);
  switch (reader.get<LetterKind>()) {
    case LetterKind::kPart: {
      const int replica = reader.get<int>();
      const DataPart part = reader.get<DataPart>();
      receivers_.part(replica, part, get_tensors(reader));
      break;
    }
    case LetterKind::kCopy:
      receivers_.copy(reader.get_text());
      break;
    case LetterKind::kEnd:
      receivers_.end(reader.get<RunEnd>());
      break;
    case LetterKind::kGradient: {
      const int replica = reader.get<int>();
      PartGradient gradient;
      gradient.part = reader.get<DataPart>();
      gradient.samples = reader.get<std::int64_t>();
      gradient.counted = reader.get<std::int64_t>();
      gradient.weight = reader.get<double>();
      gradient.loss = reader.get<double>();
      gradient.correct = reader.get<double>();
      gradient.gradients = get_tensors(reader);
      gradient.statistics = get_tensors(reader);
      receivers_.gradient(replica, std::move(gradient));
      break;
    }
    case LetterKind::kRequests:
      receivers_.requests(reader.get<RunRequests>());
      break;
    case LetterKind::kCopyIsKept:
      receivers_.copy_is_kept(std::string(reader.get_text()));
  }
  return true;
}

}  // namespace pipetrain
