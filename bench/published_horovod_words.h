// The text of Horovod's section in docs/published.md. It discusses the numbers that
// published_horovod.h prints.
#pragma once

namespace pipetrain {

constexpr const char* kHorovodInputs = R"(
## Horovod: scaling efficiency of data parallelism on 512 GPUs

Images per second of 512 GPUs, over 512 times those of one GPU. Published in Horovod's README since 10 May 2018 (commit
8318a898), three months after the paper (Sergeev and Del Balso, arXiv:1802.05799): 128 servers with 4 Pascal GPUs each
and a RoCE-capable network of 25 Gb/s. Predicted by the simulator: one stage with 512 replicas, where gradients that
are complete are summed while the backward pass continues.

Published inputs:

- *one GPU*: 134.4, 119.4 and 130.9 images/s with 64 images per GPU, from Horovod's README of 5 September 2017 (commit
  d54e3a88), measured on 4 servers with 4 Pascal GPUs each and such a network;
- *layers*: those of torchvision, Inception V3 without the auxiliary classifier, which tf_cnn_benchmarks does not use.
  Parameters and multiply-adds are computed from the shapes and are those that torchvision gives;
- *buckets*: Horovod's Tensor Fusion with the 64 MiB of its version of May 2018. Gradients are put together as long as
  they fit. A larger one is summed alone, such as the 411 MB of VGG-16's first fully connected layer.

Assumptions:

- The 512 GPUs are as fast as those of 2017, with 64 images each as in Horovod's instructions. Which Pascal GPU it was
  is not published: `topologies/horovod-p100.json` says P100, but the prediction takes no number of the device from
  there.
- A forward pass takes a third of a step, and each layer a time in proportion to its multiply-adds. The backward pass
  completes the gradients of one layer after the other, from the last to the first.
- Buckets are summed one after the other in a ring over all GPUs. It passes each server's network card once in each
  direction, so it has the bandwidth of one card: the full 25 Gb/s. Each of its 2 × 511 steps has a latency of 10 µs, a
  usual value (NCCL's own model of later years has 9.6 to 14 for networks).

| model | parameters | multiply-adds | step of one GPU | all-reduce | published | **predicted** | predicted without overlap |
|---|---:|---:|---:|---:|---:|---:|---:|
)";

constexpr const char* kHorovodSizes = R"(
With fewer GPUs, in percent: published / **predicted**. After the bar: predicted with four fifths of the bandwidth and
twice the latency, which were chosen after a look at the published numbers. Published for 16 GPUs: images/s in the
README of 2017 (NCCL over RDMA); for 128: the README from 17 October 2017 to 10 May 2018.

| GPUs | Inception V3 | ResNet-101 | VGG-16 |
|---:|---|---|---|
)";

constexpr const char* kHorovodOtherInputs = R"(
512 GPUs with other inputs. A P100 of a DGX-1 makes 142 images/s with Inception V3 and 154 with VGG-16 (TensorFlow's
benchmarks of May 2017, 64 images, synthetic data). ResNet-101 is not among them: 129 lies between the 219 of ResNet-50
and the 91.8 of ResNet-152, by multiply-adds.

| inputs | Inception V3 | ResNet-101 | VGG-16 |
|---|---:|---:|---:|
)";

constexpr const char* kHorovodWords = R"(
Where they differ, and the likely reasons:

- **Published efficiencies lie between the predictions with and without overlap**, and VGG-16 scales worst in both. Its
  sums take 394 ms and its backward pass 326 ms, so they cannot all be hidden.
- **Inception V3 and ResNet-101**: 94 and 93 % against 90. Only the last bucket is not hidden, as its gradients are
  complete only when the backward pass is. Not simulated: the slowest of 512 GPUs, for which all others wait; the 5 ms
  between two rounds in which Horovod of May 2018 asked every process what is complete; copies into buckets and back.
- **VGG-16**: 88 % against 68. Here all that the network falls short of lengthens the step. With 16 GPUs, where
  latencies cost little, 85 % were measured and 93 predicted, as if the ring had 20 of the 25 Gb/s. Headers take a
  part of them. A maintainer describes servers with two GPUs per CPU (Horovod's issue 979), so the ring probably crossed
  between CPUs. The transport matters: over TCP the same 16 GPUs reached only 62 %.
- **From 16 to 512 GPUs** VGG-16 loses 17 points in the measurements and 5 in the prediction. The number of steps of a
  ring grows with the number of GPUs, so a step probably took longer than 10 µs. With 20 Gb/s and 20 µs all nine
  predictions are within 5 points. Two numbers were chosen for that, so it explains and does not confirm.
- **Times of layers**: multiply-adds leave out batch norms, pooling and memory traffic. That moves the time at which a
  bucket is complete, little for VGG-16: 89 % of its gradients are complete after 1 % of the backward pass.
- **Unknown inputs** matter as much: in Horovod's issue 425 a maintainer says 32 images per GPU, in its instructions
  it is 64. With 32, the prediction for VGG-16 would be 51 %, with the GPUs of a DGX-1 78 %.
)";

}  // namespace pipetrain
