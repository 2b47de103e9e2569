// The text of docs/published.md. It discusses the numbers that published.cpp prints.
#pragma once

namespace pipetrain {

constexpr const char* kIntroduction = R"(# Published results, and what pipetrain predicts of them

Nothing here was measured on the machines in question: the left number is printed in a paper, the right one comes from pipetrain's planner and simulator. The
file is made by `bench/published.cpp`, numbers and words together:

```
ninja -C build published_bench && build/published_bench tests/data/pipedream topologies > docs/published.md
```

)";

constexpr const char* kGpipeWords = R"(
Where they differ, and why, as far as it can be told:

- **One micro-batch, K = 4**: 1.08 against 1.07. Nothing is pipelined; what more partitions gain is that a stage recomputes its activations while it waits for
  the gradient. At K = 8 the paper gains more than that (1.30 against 1.12). It says that the batch size was adjusted to fit memory, so that more partitions may
  have had a larger batch; the sizes are not given.
- **Transformer, 4 micro-batches**: 3.2 and 4.8 cannot come from the schedule. With the same mini-batch everywhere the bubble alone leaves 2.24 and 3.03. The
  baseline (K = 2, one micro-batch) holds all activations of the mini-batch, so it had the smallest batch and probably the poorest use of the chip, which lifts
  every other number of the table.
- **Transformer, 32 micro-batches**: 4 to 5 % too low in each column, for the same reason; within the row, where it cancels, 1 : 1.89 : 3.50 is published and
  1 : 1.91 : 3.51 predicted. That is the row which the schedule decides.
- **AmoebaNet**: far too hopeful at 4 and 32 micro-batches. The simulator lets a micro-batch of a 32nd take a 32nd of the time; small convolutions on a TPU do
  not. And the stand-in is another network: its cells are more even than those of AmoebaNet-D, whose K = 2 already shows no gain (1.07) where it ought to have
  some. The published ratio from K = 4 to K = 8 (1.89 at 32 micro-batches) is above the predicted one (1.66 with GPipe's cut, 1.84 with pipetrain's): its cells must
  suit eight partitions better.
- **Table 3**: too hopeful by 6 to 16 %, as it must be without transfers: the paper gives no tensor sizes for these settings, and the links are PCIe.
)";

constexpr const char* kPipedreamWords = R"(
Where they differ, and why, as far as it can be told:

- **The choices agree for image networks.** For VGG-16 on both clusters pipetrain's planner picks 15-1, as published, and for ResNet-50 data parallelism. For AlexNet it
  finds plans that it believes to be better than 15-1, on A more than twice, as they send less between servers.
- **Gains on cluster A are published larger than predicted** (VGG-16 5.28 against 1.8, AlexNet 4.92 against 1.3). Both depend on what data parallelism pays for its
  all-reduce, and the inputs are kind to it: the full 10 Gb/s, which TCP between virtual machines of 2019 hardly reached, and the profile's mini-batch of 128 images
  for VGG-16, where a smaller one would share the all-reduce among fewer images. The second table shows how much hangs on that: half the bandwidth and half the
  mini-batch together give 3.4 and 8.4 in the simulation. With two such unknowns one can hit any number in between; that is no confirmation.
- **The same on cluster B**, less: 2.98 against 1.22 and 2.04 against 1.18. The file gives NVLink 25 GB/s between any two GPUs; some pairs of a p3.16xlarge have no
  direct link, so that data parallelism had less.
- **A data parallelism that hides its all-reduce** behind the backward pass would take most of the predicted gain away (1.21 and 0.92 for VGG-16). The measured
  baseline, PyTorch of 2019, evidently hid little.
- **GNMT-16, straight**: predicted below the published gain on both clusters. One layer of the published profile, node92, took 66 ms backward, its seven siblings
  19; it must be an outlier of the measurement, and a straight pipeline is as slow as its slowest layer. With the siblings' time the prediction is 2.7 against 2.34
  on A, but 1.35 against 3.14 on B. There even sixteen perfectly equal stages without any transfers would be no more than 1.9 times as fast as data parallelism
  (473 ms of compute, 433 ms of all-reduce): the profile or the bandwidth is not that of the published run.
- **GNMT-8**: 1.56 against 1.5 on one server. On 12 and 16 GPUs pipetrain predicts more than was measured (4.3 against 2.95; 3.0 for its own plan on B, where the
  authors found data parallelism best). PipeDream's own optimizer, given its own published profile, promises still more (14.2 and 4.4): the 775 MB of weights are
  dear to sum by either model. The run must have had cheaper sums: gradients in half precision or of the used rows of the embeddings only would do it, and
  the paper's profile may be another one.
- **PipeDream's model against ours.** Its all-reduce counts bytes sent and received (twice ours), its transfers overlap perfectly, and transfers of a cut are shared by
  the replicas of one side. So its data parallelism looks worse and its pipelines better than in our model, and it is ahead of what was measured where weights
  are large.
- **What the simulator leaves out**: the ports of a server that several GPUs share (each pair of devices has a link of its own, as fast as the level), input data, the
  optimizer's step, and the fill and drain of every epoch. The planner counts all transfers of a cut between
  replicated stages at the slowest link that one of the replicas uses, one after the other, as if they shared a port; the simulation gives each pair its own.
)";

}  // namespace pipetrain
