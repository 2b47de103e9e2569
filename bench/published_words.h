// The text of docs/published.md. It discusses the numbers that published.cpp prints.
#pragma once

namespace pipetrain {

constexpr const char* kIntroduction = R"(# Published results, and what pipetrain predicts

How pipetrain's planner and simulator compare with figures printed in the GPipe and PipeDream papers and in Horovod's
README. Nothing was measured on those machines. `bench/published.cpp` writes this page:

```
ninja -C build published_bench && build/published_bench tests/data/pipedream topologies > docs/published.md
```

)";

constexpr const char* kGpipeWords = R"(
Where they differ, and the likely reasons:

- **One micro-batch**: nothing is pipelined; more partitions gain only because a stage recomputes activations while it
  waits for its gradient. At K = 8 the paper gains more (1.30 against 1.12). It adjusts batch sizes to memory without
  giving them, so more partitions may have had larger batches.
- **Transformer, 4 micro-batches**: with the same mini-batch everywhere, the bubble alone allows 2.24 and 3.03, so 3.2
  and 4.8 must have another cause. The baseline (K = 2, one micro-batch) keeps all activations and so probably ran the
  smallest batch at the lowest utilization, which raises every other number of the table.
- **Transformer, 32 micro-batches**: 4 to 5 % too low in each column, for the same reason. Within the row, which the
  schedule decides, 1 : 1.89 : 3.50 is published and 1 : 1.91 : 3.51 predicted.
- **AmoebaNet**: too optimistic at 4 and 32 micro-batches. The simulator gives a 32nd of the samples a 32nd of the
  time, which small convolutions on a TPU do not reach. NASNet's cells are also more even than AmoebaNet's, which gain
  nothing at K = 2 (1.07). From K = 4 to K = 8 the published gain at 32 micro-batches is larger (1.89) than the
  predicted one (1.66 with GPipe's cut, 1.84 with pipetrain's).
- **Table 3**: 6 to 16 % too optimistic, because transfers over PCIe are left out: the paper gives no tensor sizes.
)";

constexpr const char* kPipedreamWords = R"(
Where they differ, and the likely reasons:

- **The plans agree for image networks**: 15-1 for VGG-16 on both clusters, data parallelism for ResNet-50. For
  AlexNet pipetrain predicts that other plans beat 15-1, on A more than twofold, as they send less between servers.
- **Cluster A: published gains are larger** (VGG-16 5.28 against 1.8, AlexNet 4.92 against 1.3). Both depend on the
  cost of the all-reduce, for which the inputs are optimistic: the full 10 Gb/s, which TCP between virtual machines of
  2019 hardly reached, and VGG-16's profile with a mini-batch of 128. With half the bandwidth and half the mini-batch
  the simulation gives 3.4 and 8.4 (second table). With two such unknowns any number in between can be hit, so this
  confirms nothing.
- **Cluster B: the same, less so** (2.98 against 1.22, 2.04 against 1.18). The topology gives NVLink 25 GB/s between
  any two GPUs, but some pairs of a p3.16xlarge have no direct link.
- **An all-reduce hidden behind the backward pass** would remove most of the predicted gain (1.21 and 0.92 for VGG-16).
  The measured baseline, PyTorch of 2019, evidently hid little.
- **GNMT-16, straight**: predicted below the published gain. One layer of the profile, node92, took 66 ms backward and
  its seven siblings 19 ms, probably an outlier, and a straight pipeline is as slow as its slowest layer. With the
  siblings' time the prediction is 2.7 against 2.34 on A, but 1.35 against 3.14 on B. There even sixteen equal stages
  without transfers would be only 1.9 times as fast as data parallelism (473 ms of compute, 433 ms of all-reduce), so
  profile or bandwidth must differ from the published run.
- **GNMT-8**: 1.56 against 1.5 on one server. On 12 and 16 GPUs pipetrain predicts more than was measured (4.3 against
  2.95; 3.0 for its own plan on B, where the authors chose data parallelism), and PipeDream's own optimizer still more
  (14.2 and 4.4): both find the all-reduce of 775 MB of weights expensive. The measured run probably reduced less:
  gradients in half precision, or only the embedding rows in use. The paper's profile may also be another one.
- **PipeDream's cost model** counts bytes sent and received in an all-reduce (twice ours), overlaps transfers perfectly
  and lets the replicas of one side share a cut's transfers. So data parallelism looks worse and pipelines better than
  in our model, beyond what was measured where weights are large.
- **Not simulated**: ports that several GPUs of a server share, input data, the optimizer, and filling and draining
  per epoch. Between replicated stages the planner counts all transfers of a cut one after the other over the slowest
  link in use; the simulator gives each pair of devices its own link.
)";

}  // namespace pipetrain
