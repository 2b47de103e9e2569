#include "base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "base/output_file.h"
#include "base/safe_text.h"

namespace pipetrain {
namespace {

class TerminalFormatter final : public spdlog::formatter {
 public:
  explicit TerminalFormatter(std::string (*layout)(std::string_view)) : layout_(layout) {}
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string_view text(message.payload.data(), message.payload.size());
    const std::string laid_out = (layout_ ? layout_(text) : std::string(text)) + "\n";
    out.append(laid_out.data(), laid_out.data() + laid_out.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<TerminalFormatter>(layout_);
  }

 private:
  std::string (*layout_)(std::string_view);
};

class Log {
 public:
  Log() : all_(std::make_shared<spdlog::sinks::dist_sink_mt>()), logger_("pipetrain", all_) {
    all_->add_sink(terminal_);
    keep_early();
    lay_out(nullptr);
    logger_.set_level(spdlog::level::info);
    // Flushed at once, so that the last message before a crash is seen.
    logger_.flush_on(spdlog::level::trace);
  }

  spdlog::logger& logger() { return logger_; }

  void lay_out(std::string (*layout)(std::string_view)) {
    terminal_->set_formatter(std::make_unique<TerminalFormatter>(layout));
  }

  void copy_to(const std::filesystem::path& path) {
    stop_copying({});
    ::close(open_output(path, OutputMode::kAppend));  // the library would wait for a pipe
    try {
      file_ = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
    } catch (const spdlog::spdlog_ex& error) {
      PT_FAIL(kResource, "cannot write the log {}: {}", printable(path.string()), error.what());
    }
    file_->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
    if (early_) {
      for (const auto& message : early_->last_raw()) file_->log(message);
      file_->flush();
      all_->remove_sink(early_);
      early_ = nullptr;
    }
    all_->add_sink(file_);
  }

  void forget_early() {
    if (!early_) return;
    all_->remove_sink(early_);
    keep_early();
  }

  void stop_copying(const std::string& last) {
    if (!file_) return;
    if (!last.empty()) file_->log({logger_.name(), spdlog::level::err, last});
    all_->remove_sink(file_);
    file_ = nullptr;
  }

 private:
  void keep_early() {
    constexpr std::size_t kMost = 1000;
    early_ = std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(kMost);
    all_->add_sink(early_);
  }

  std::shared_ptr<spdlog::sinks::dist_sink_mt> all_;
  spdlog::sink_ptr terminal_ = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  spdlog::logger logger_;
  spdlog::sink_ptr file_;
  // The messages before the first file; null once there was one.
  std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> early_;
};

Log& the_log() {
  static Log log;
  return log;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

std::string line(LogLevel level, std::string_view tag, std::string_view text) {
  switch (level) {
    case LogLevel::kDebug:
      return fmt::format("[{}] {}", tag, text);
    case LogLevel::kInfo:
      return std::string(text);
    case LogLevel::kWarning:
      return fmt::format("warning: {}", text);
    case LogLevel::kError:
      break;
  }
  return fmt::format("error: {}", text);
}

}  // namespace

void set_log_level(LogLevel level) { the_log().logger().set_level(spdlog_level(level)); }
bool is_logged(LogLevel level) { return the_log().logger().should_log(spdlog_level(level)); }
void lay_out_log(std::string (*layout)(std::string_view)) { the_log().lay_out(layout); }
void copy_log_to(const std::filesystem::path& path) { the_log().copy_to(path); }
void forget_early_log() { the_log().forget_early(); }
void stop_copying_log(std::string_view error) {
  the_log().stop_copying(error.empty() ? "" : line(LogLevel::kError, "", safe_text(error)));
}

void write_log(LogLevel level, std::string_view tag, std::string_view text) {
  spdlog::logger& logger = the_log().logger();
  if (!logger.should_log(spdlog_level(level))) return;
  logger.log(spdlog_level(level), spdlog::string_view_t(line(level, tag, safe_text(text))));
}

}  // namespace pipetrain
