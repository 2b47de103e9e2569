#include "train/step_notes.h"

#include <utility>

#include "pipeline/runtime/runtime.h"
#include "processes/process_group.h"
#include "train/checkpoint_parts.h"

namespace pipetrain {

StepNotes::StepNotes(Runtime& runtime, CheckpointParts& parts, Here here)
    : runtime_(runtime), parts_(parts), here_(std::move(here)) {
  runtime_.set_round_notes(
      {[this] { return mine(); }, [this](const std::vector<std::string>& notes) { read(notes); }});
}

StepNotes::~StepNotes() { runtime_.set_round_notes({}); }

std::string StepNotes::mine() const {
  ByteWriter writer;
  writer.put(here_.asked());
  writer.put(here_.due());
  writer.put_text(parts_.take_record());
  return writer.take();
}

void StepNotes::read(const std::vector<std::string>& notes) {
  int process = 0;
  for (const std::string& bytes : notes) {
    ByteReader reader(bytes);
    asked_.add(reader.get<RunRequests>());
    const auto due = reader.get<SaveDue>();
    if (process == 0) due_ = due;
    const std::string_view record = reader.get_text();
    if (!record.empty()) parts_.note(process, record);
    ++process;
  }
}

RunRequests StepNotes::take_requests() { return std::exchange(asked_, {}); }

RunRequests requests_of_all(ProcessGroup& processes, RunRequests here) {
  ByteWriter mine;
  mine.put(here);
  for (const std::string& bytes : processes.all_gather(mine.take()))
    here.add(ByteReader(bytes).get<RunRequests>());
  return here;
}

}  // namespace pipetrain
