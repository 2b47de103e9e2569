// Networks for images as lists of layers, for published results whose authors give no profiles:
// torchvision's definitions, computed from the shapes of the kernels.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace pipetrain {

/// A convolution with its batch norm or bias, or a matrix product with its bias.
struct ImageLayer {
  double multiply_adds = 0;  // of a forward pass on one image
  std::int64_t parameters = 0;
};

/// The layers of a network for square images, in the order of their forward passes.
class ImageNetwork {
 public:
  /// The kernel of a convolution.
  struct Kernel {
    int channels;  // of the output
    int height = 1, width = 1, stride = 1;
    bool padded = true;  // otherwise the output is smaller by a border
    bool twins = false;  // also the transposed kernel on the same input; both outputs are joined
  };
  using Branches = std::vector<std::vector<Kernel>>;

  /// `norms`: convolutions have batch norms in place of biases.
  ImageNetwork(int extent, bool norms) : extent_(extent), norms_(norms) {}

  /// A convolution of the current channels.
  void convolve(const Kernel& kernel) {
    const std::int64_t weights =
        std::int64_t{kernel.height} * kernel.width * channels_ * kernel.channels;
    const int copies = kernel.twins ? 2 : 1;
    pool(kernel.height, kernel.stride, kernel.padded);
    for (int i = 0; i < copies; ++i) {
      layers_.push_back({static_cast<double>(weights) * extent_ * extent_,
                         weights + std::int64_t{norms_ ? 2 : 1} * kernel.channels});
    }
    channels_ = copies * kernel.channels;
  }
  /// Changes the extent alone.
  void pool(int window, int stride, bool padded) {
    extent_ = (padded ? extent_ - 1 : extent_ - window) / stride + 1;
  }
  /// One value for each channel.
  void average() { extent_ = 1; }
  /// A matrix product with all values of all channels.
  void multiply(int outputs) {
    const std::int64_t weights = std::int64_t{extent_} * extent_ * channels_ * outputs;
    layers_.push_back({static_cast<double>(weights), weights + outputs});
    channels_ = outputs;
    extent_ = 1;
  }
  /// Branches that read the same input; their outputs are added.
  void add(const Branches& branches) { run(branches); }
  /// Branches whose outputs are joined, the input's channels with them if it is pooled too.
  void join(const Branches& branches, bool pooled = false) {
    const int input = pooled ? channels_ : 0;
    channels_ = input + run(branches);
  }

  const std::vector<ImageLayer>& layers() const { return layers_; }
  double multiply_adds() const {
    double sum = 0;
    for (const ImageLayer& layer : layers_) sum += layer.multiply_adds;
    return sum;
  }
  std::int64_t parameters() const {
    std::int64_t sum = 0;
    for (const ImageLayer& layer : layers_) sum += layer.parameters;
    return sum;
  }

 private:
  /// Returns the sum of the branches' channels.
  int run(const Branches& branches) {
    const int channels = channels_, extent = extent_;
    int sum = 0;
    for (const std::vector<Kernel>& branch : branches) {
      channels_ = channels;
      extent_ = extent;
      for (const Kernel& kernel : branch) convolve(kernel);
      sum += channels_;
    }
    return sum;
  }

  std::vector<ImageLayer> layers_;
  int channels_ = 3, extent_;
  bool norms_;
};

/// ResNet of bottleneck blocks: {3, 4, 23, 3} of them are ResNet-101.
inline ImageNetwork resnet(std::initializer_list<int> blocks) {
  ImageNetwork net(224, true);
  net.convolve({64, 7, 7, 2});
  net.pool(3, 2, true);
  int width = 64;
  for (const int count : blocks) {
    for (int block = 0; block < count; ++block) {
      const int stride = block == 0 && width > 64 ? 2 : 1;
      ImageNetwork::Branches branches = {{{width}, {width, 3, 3, stride}, {4 * width}}};
      if (block == 0) branches.push_back({{4 * width, 1, 1, stride}});
      net.add(branches);
    }
    width *= 2;
  }
  net.average();
  net.multiply(1000);
  return net;
}

/// VGG-16 without batch norms.
inline ImageNetwork vgg16() {
  ImageNetwork net(224, false);
  for (const auto& [channels, count] : {std::pair(64, 2), {128, 2}, {256, 3}, {512, 3}, {512, 3}}) {
    for (int i = 0; i < count; ++i) net.convolve({channels, 3, 3});
    net.pool(2, 2, false);
  }
  for (const int outputs : {4096, 4096, 1000}) net.multiply(outputs);
  return net;
}

/// Inception V3 without the auxiliary classifier, which tf_cnn_benchmarks leaves out too.
inline ImageNetwork inception_v3() {
  ImageNetwork net(299, true);
  net.convolve({32, 3, 3, 2, false});
  net.convolve({32, 3, 3, 1, false});
  net.convolve({64, 3, 3});
  net.pool(3, 2, false);
  net.convolve({80});
  net.convolve({192, 3, 3, 1, false});
  net.pool(3, 2, false);
  for (const int pooled : {32, 64, 64})
    net.join({{{64}}, {{48}, {64, 5, 5}}, {{64}, {96, 3, 3}, {96, 3, 3}}, {{pooled}}});
  net.join({{{384, 3, 3, 2, false}}, {{64}, {96, 3, 3}, {96, 3, 3, 2, false}}}, true);
  for (const int c : {128, 160, 160, 192}) {
    net.join({{{192}},
              {{c}, {c, 1, 7}, {192, 7, 1}},
              {{c}, {c, 7, 1}, {c, 1, 7}, {c, 7, 1}, {192, 1, 7}},
              {{192}}});
  }
  net.join(
      {{{192}, {320, 3, 3, 2, false}}, {{192}, {192, 1, 7}, {192, 7, 1}, {192, 3, 3, 2, false}}},
      true);
  for (int i = 0; i < 2; ++i) {
    net.join({{{320}},
              {{384}, {384, 1, 3, 1, true, true}},
              {{448}, {384, 3, 3}, {384, 1, 3, 1, true, true}},
              {{192}}});
  }
  net.average();
  net.multiply(1000);
  return net;
}

}  // namespace pipetrain
