#include "data/loading/batch_reader.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "data/loading/batch_memory.h"

namespace pipetrain {

struct BatchReader::Work {
  std::shared_ptr<const Dataset> dataset;
  BatchMemory memory;
  std::vector<Tensor> columns;
  std::uint64_t step = 0;
  std::vector<std::size_t> indices;
  std::exception_ptr failure;
  bool asked = false;  // and not done yet
  std::mutex mutex;
  std::condition_variable_any changed;

  void fill() {
    columns = memory.columns(*dataset, indices.size());
    gather_batch(*dataset, step, indices, columns);
  }
  void serve(const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    while (changed.wait(lock, stop, [&] { return asked; })) {
      lock.unlock();
      std::exception_ptr what;
      try {
        fill();
      } catch (...) {
        what = std::current_exception();
      }
      lock.lock();
      failure = what;
      asked = false;
      changed.notify_all();
      if (stop.stop_requested()) return;
    }
  }
};

BatchReader::BatchReader(std::shared_ptr<const Dataset> dataset, double timeout_seconds)
    : work_(std::make_shared<Work>()), timeout_seconds_(timeout_seconds) {
  work_->dataset = std::move(dataset);
  thread_ = std::jthread([work = work_](const std::stop_token& stop) { work->serve(stop); });
}

BatchReader::~BatchReader() {
  thread_.request_stop();
  const std::lock_guard lock(work_->mutex);
  // Nobody knows when it comes back: it keeps what it uses, and the program ends without it.
  if (work_->asked) thread_.detach();
}

const std::vector<Tensor>& BatchReader::read(std::uint64_t step, std::vector<std::size_t> indices) {
  Work& work = *work_;
  std::unique_lock lock(work.mutex);
  PT_CHECK(!work.asked, kInternal, "a batch is still being read");
  work.step = step;
  work.indices = std::move(indices);
  work.asked = true;
  work.changed.notify_all();
  const auto done = [&] { return !work.asked; };
  if (timeout_seconds_ <= 0) {
    work.changed.wait(lock, done);
  } else {
    PT_CHECK(work.changed.wait_for(lock, std::chrono::duration<double>(timeout_seconds_), done),
             kDevice, "no progress for {:.0f} s; training waits for samples, which are being read",
             timeout_seconds_);
  }
  if (work.failure) std::rethrow_exception(std::exchange(work.failure, nullptr));
  return work.columns;
}

}  // namespace pipetrain
