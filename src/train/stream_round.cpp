#include "train/stream_round.h"

#include <optional>
#include <utility>

#include "pipeline/program/program_cut.h"

namespace pipetrain {

StreamEnd run_stream(PipelineRun& run, Loader& loader, std::int64_t first_step,
                     const ProgramCut* cut, const StreamCallbacks& callbacks) {
  const PlannedNetwork& network = run.network();
  const int micro_batches = static_cast<int>(network.micro_batches());
  const int done = cut ? cut->micro_batches_done : 0;
  const Program& program = run.program(network.round_units(first_step));
  std::optional<RoundMail> mail;
  RoundSaves saves(run, program, micro_batches, done, callbacks.saves);
  const StreamUnits::Shape shape = {.first_step = static_cast<std::uint64_t>(first_step),
                                    .micro_batches = micro_batches,
                                    .in_flight = run.batches_in_flight(),
                                    .done = done / micro_batches};
  StreamUnits units(
      run, program, loader, shape, saves,
      {callbacks.learning_rate, callbacks.done, [&](int unit, double sum, double correct) {
         mail->send(RoundMail::Loss{unit, sum, correct});
       }});
  if (ProcessGroup* processes = network.processes()) {
    mail.emplace(
        *processes,
        RoundMail::Receivers{[&](const RoundMail::Loss& loss) {
                               units.note_loss(loss.unit, loss.sum, loss.correct);
                             },
                             [&](const RunRequests& requests) { saves.take(requests); },
                             [&](RoundMail::Content content) { saves.take(std::move(content)); },
                             [&](const RoundMail::Decision& made) { saves.take(made); }});
    saves.connect(*mail);
  }
  StreamEnd end;
  end.result = cut ? run.runtime().run(*cut, units) : run.runtime().run(program, units);
  end.reason = saves.reason_to_end();
  end.batches = network.round_batches(first_step);
  if (end.reason != RunEnd::kDone) end.batches = saves.end() / micro_batches;
  units.finish(static_cast<int>(end.batches));
  if (mail) mail->close();
  end.left = saves.left_requests();
  return end;
}

}  // namespace pipetrain
