// What several processes choose together where the options leave it open.
#pragma once

#include "cli/options/options.h"
#include "train/auto_schedule.h"

namespace pipetrain {

class ProcessGroup;
struct Checkpoint;

/// What every process reads for itself: Error where this one cannot read it, before the processes
/// try candidates together, whose errors do not end them.
void check_files_of_process(const PipelineConfig& pipeline);

/// The devices that stages need whose beginnings are known, from --split or a resumed checkpoint,
/// or else `gpus`, the number that --gpus gives (0: none). Error (kUsage) where --gpus gives
/// another number than --split.
int devices_with_cuts(const PipelineConfig& pipeline, int gpus);

/// Without stages given: as many devices as processes, or as the stages of --split need. Error
/// (kUsage) where these cannot be divided among the processes, or where --split needs other devices
/// than those given.
void take_devices_of_processes(Options& options, ProcessGroup* processes);

/// Without stages given: as many replicas of each stage as make the predicted step shortest, with
/// one device per process. `were_given`: whether stages or devices were. `resumed`: the checkpoint
/// of a run that goes on, whose replicas stay where it had as many devices and this schedule.
void choose_replicas(Options& options, ProcessGroup* processes, bool were_given,
                     const Checkpoint* resumed = nullptr);

/// choose_schedule() of process 0, over the links between the processes; the others take its
/// choice, and nothing is found there.
FoundSchedules choose_schedule_together(Options& options, SearchScope scope,
                                        ProcessGroup* processes);

}  // namespace pipetrain
