// How the gradients of replicas are put into buckets, which are summed one by one.
#pragma once

#include <cstddef>

namespace pipetrain {

/// About how many floats a bucket holds. A small first one leaves early.
struct BucketFloats {
  std::size_t first = std::size_t{1} << 20, others = std::size_t{1} << 20;
};

/// Buckets for a link: large enough that its latency costs little, and at most 4 MiB.
BucketFloats buckets_for(double latency_seconds, double bytes_per_second);

}  // namespace pipetrain
