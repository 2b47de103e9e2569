// What a stage needs beside its arena when it computes on a device: memory for the data of units
// that come from elsewhere, results on their way to the host, and events.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "pipeline/host_staging.h"
#include "pipeline/stage.h"
#include "pipeline/stage_recordings.h"

namespace pipetrain {

/// Copies of what a unit reads from outside, and its results. Held from the unit's forward to its
/// last instruction. Blocks are used again and have room for any variant, so that a run allocates
/// only in its first round and frees nothing before its end.
struct StageBlock {
  DeviceMemory inputs;    // graph inputs and label
  DeviceMemory received;  // values of stages on other devices; taken when there is one
  DeviceMemory results;   // on the host: loss sum, right answers
  std::unique_ptr<StreamPoint> copied;  // on the transfer stream: what was asked for is there
  std::unique_ptr<StreamPoint>
      settled;  // on the compute stream: inputs are copied, results have arrived
  std::unique_ptr<StreamPoint> free;  // on the compute stream: the last reader is done
  bool settles = false;               // `settled` has been recorded for this unit
};

/// Where each entry of StageUnit::table lies in a block; inputs that the stage does not read have
/// no bytes there.
struct StagePlace {
  std::size_t table, offset, bytes;
};

/// A unit's batch moments on their way to the host.
struct StageMoments {
  DeviceMemory host;  // from the unit's slot (StageLayout::slot_moments_bytes), then prepared ones
  int variant = 0;
};

class StageDevice {
 public:
  StageDevice(Stream& compute, Stream& transfer)
      : compute_(compute),
        transfer_(transfer),
        loss_scale(device().allocate(sizeof(float))),
        sums(device().allocate(0)),
        recordings(compute) {}

  Device& device() const { return compute_.device(); }
  Stream& compute() const { return compute_; }
  Stream& transfer() const { return transfer_; }
  void synchronize() const {
    transfer_.synchronize();
    compute_.synchronize();
  }
  /// Uploads or downloads and waits.
  void move(void* to, const void* from, std::size_t bytes) const {
    compute_.copy(to, from, bytes);
    compute_.synchronize();
  }

  /// A block that nobody uses; work on the transfer stream starts after its last reader.
  int take_block();
  void give_back(int block);
  StageBlock& block(int index) { return *blocks_[static_cast<std::size_t>(index)]; }
  /// Room for the values that a unit with this block receives from other devices.
  std::byte* take_received(StageBlock& block) const;
  /// Host memory for moments, and back when they have been merged.
  DeviceMemory take_moments(std::size_t bytes);
  void give_back(DeviceMemory moments);
  /// Puts a copy of what another device has written at `written` into the transfer stream.
  void fetch(Device& sender, void* to, const void* from, std::size_t bytes,
             const StreamPoint* written);
  /// Bytes of the device that are taken beside the arena.
  std::size_t bytes() const;

 private:
  Stream& compute_;
  Stream& transfer_;
  std::vector<std::unique_ptr<StageBlock>> blocks_;
  std::vector<int> free_blocks_;
  std::multimap<std::size_t, DeviceMemory> free_moments_;
  std::map<const Device*, HostStaging> stagings_;  // by sender

 public:
  DeviceMemory arena, workspace, loss_scale, sums;
  std::vector<DeviceMemory> constants;
  std::map<std::string, DeviceMemory> running;           // running statistics by name
  std::vector<std::vector<StagePlace>> input_places;     // [variant]
  std::vector<std::vector<StagePlace>> received_places;  // [variant], by table entry
  std::vector<std::size_t> input_bytes, received_bytes;  // [variant]
  std::vector<DeviceUpdate> updates;                     // of the last update: room for the next
  std::vector<StageMoments> moments;                     // in the order of the units
  StageRecordings recordings;
};

}  // namespace pipetrain
