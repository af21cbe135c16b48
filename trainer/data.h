// Data: labelled images in memory, and the pipeline that hands a rank its batches from a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/model.h"
#include "transport/base/error.h"
#include "transport/base/trace.h"

namespace gradlane {

// Immutable once loaded; may be read by any thread.
struct Dataset {
  ImageShape image;
  int num_classes = 10;
  std::vector<uint8_t> pixels;  // (count, C, H, W)
  std::vector<int32_t> labels;  // (count,)
  std::vector<float> mean;      // (C,) of pixel / 255
  std::vector<float> stddev;    // (C,)
  size_t Count() const { return labels.size(); }
};

struct DataSplits {
  Dataset train;
  Dataset test;
};

// name: mnist, fashion-mnist, cifar10, cifar100, synthetic. dir: where the files are. Every byte of a file is checked:
// magic, counts, length, labels in range. kUnavailable: a missing file, with the command that fetches it;
// kInvalidArgument: unknown name; kMalformed is given as kInvalidArgument too (exit code 2), naming the file and
// offset. synthetic needs no file: image gives its shape (1x28x28 by default, 3x224x224 for the big models).
Result<DataSplits> LoadData(const std::string& name, const std::string& dir, ImageShape synthetic_image, uint64_t seed);

struct PipelineOptions {
  uint32_t rank = 0;  // of this worker
  uint32_t num_workers = 1;
  int batch = 64;  // per worker
  uint64_t seed = 1;
  bool augment = false;  // pad by 4, random crop, random flip
  int prefetch = 4;      // batches
};

struct Batch {
  std::span<const float> images;    // (batch, C, H, W), normalised
  std::span<const int32_t> labels;  // (batch,)
};

// Batches of an endless, seeded sequence. Step t of W workers with batch B is made of the same samples (with the same
// augmentation) as step t of one worker with batch W * B: worker w has the w-th part of it. Each epoch is a fresh
// shuffle; the incomplete last global batch of an epoch is dropped.
class Pipeline {
 public:
  virtual ~Pipeline() = default;  // stops its thread
  // dataset must outlive the pipeline. kInvalidArgument: the data is smaller than one global batch.
  static Result<std::unique_ptr<Pipeline>> Start(const Dataset& dataset, const PipelineOptions& options,
                                                 TraceTrack* track);
  virtual int64_t StepsPerEpoch() const = 0;
  virtual Batch Next() = 0;            // valid until the next call; blocks if the thread is behind
  virtual int64_t WaitNs() const = 0;  // total time that Next blocked
};

// images[i] of a dataset without augmentation, for evaluation. out: (count, C, H, W) fp32.
void NormalizeInto(const Dataset& dataset, size_t first, size_t count, std::span<float> out);

}  // namespace gradlane
