#include "cli/output/tensorboard.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/log.h"
#include "base/output_file.h"

namespace pipetrain {
namespace {

template <class T>
std::string little_endian(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

std::uint32_t masked_crc(std::string_view data) {
  const std::uint32_t crc = crc32c(std::as_bytes(std::span(data)));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}

/// Field `number` with a length in front of its bytes.
std::string field(int number, std::string_view bytes) {
  return static_cast<char>(number << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}

std::string wall_time_field(double seconds) {
  return static_cast<char>(1 << 3 | 1) + little_endian(seconds);
}

double clock_seconds() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 && name[0] ? name : "localhost";
}

}  // namespace

std::string tensorboard_record(std::string_view data) {
  const std::string length = little_endian<std::uint64_t>(data.size());
  return length + little_endian(masked_crc(length)) + std::string(data) +
         little_endian(masked_crc(data));
}

std::string tensorboard_event(double wall_time, std::int64_t step,
                              const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    // Summary.Value: tag = 1, simple_value = 2.
    summary += field(1, field(1, tag) + static_cast<char>(2 << 3 | 5) +
                            little_endian(static_cast<float>(value)));
  }
  // Event: wall_time = 1, step = 2, summary = 5.
  return wall_time_field(wall_time) + static_cast<char>(2 << 3) +
         varint(static_cast<std::uint64_t>(step)) + field(5, summary);
}

TensorBoard::TensorBoard(const std::filesystem::path& folder) {
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  PT_CHECK(!error, kResource, "--log-to tensorboard: cannot create the folder \"{}\": {}",
           printable(folder.string()), error.message());
  const double now = clock_seconds();
  path_ = (folder / fmt::format("events.out.tfevents.{}.{}.{}", static_cast<std::int64_t>(now),
                                host_name(), ::getpid()))
              .string();
  file_ = open_output(path_, OutputMode::kReplace, OutputTakes::kFiles, "--log-to tensorboard: ");
  write(tensorboard_record(wall_time_field(now) + field(3, "brain.Event:2")));
}

TensorBoard::~TensorBoard() {
  if (file_ >= 0) ::close(file_);
}

void TensorBoard::write(std::int64_t step,
                        const std::vector<std::pair<std::string, double>>& scalars) {
  if (file_ >= 0) write(tensorboard_record(tensorboard_event(clock_seconds(), step, scalars)));
}

void TensorBoard::write(const std::string& record) {
  if (!write_all_or_nothing(file_, record) && !std::exchange(has_warned_, true))
    log_warning("tensorboard", "cannot write {}: {}; training continues, but values will be missing",
                printable(path_), std::strerror(errno));
}

}  // namespace pipetrain
