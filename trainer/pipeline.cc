#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include "trainer/data.h"
#include "trainer/data_normalize.h"
#include "trainer/data_random.h"
#include "transport/base/memory.h"

namespace gradlane {
namespace {

constexpr uint32_t kPad = 4;  // black pixels around an image before it is cropped to its size again

// Fisher-Yates by our own generator: std::shuffle differs between standard libraries.
void ShuffleEpoch(uint64_t seed, int64_t epoch, std::vector<uint32_t>* order) {
  std::iota(order->begin(), order->end(), 0u);
  CounterRandom random(seed, RandomUse::kShuffle, uint64_t(epoch));
  for (size_t i = order->size(); i > 1; --i) std::swap((*order)[i - 1], (*order)[random.Below(uint32_t(i))]);
}

class ThreadedPipeline final : public Pipeline {
 public:
  // storage: the batches' images and labels, slot after slot.
  ThreadedPipeline(const Dataset& dataset, const PipelineOptions& options, TraceTrack* track, Memory storage)
      : dataset_(dataset),
        options_(options),
        track_(track),
        tables_(dataset),
        steps_per_epoch_(int64_t(dataset.Count() / (size_t(options.batch) * options.num_workers))),
        storage_(std::move(storage)),
        order_(dataset.Count()) {}

  ~ThreadedPipeline() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  Result<void> StartThread() {
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error& error) {
      return Fail(ErrorCode::kSystem,
                  std::string("the thread of the input pipeline cannot be started: ") + error.what(),
                  error.code().value());
    }
    return {};
  }

  int64_t StepsPerEpoch() const override { return steps_per_epoch_; }
  int64_t WaitNs() const override { return wait_ns_; }

  Batch Next() override {
    std::unique_lock lock(mutex_);
    if (taken_ > 0) {  // the last batch goes back
      released_ = taken_;
      changed_.notify_all();
    }
    if (produced_ == taken_) {
      const int64_t begin_ns = NowNs();
      changed_.wait(lock, [this] { return produced_ > taken_; });
      wait_ns_ += NowNs() - begin_ns;
    }
    const Slot slot = SlotOf(taken_++);
    return {slot.images, slot.labels};
  }

  // Of all slots: one is with the caller of Next, the others are filled ahead.
  static int64_t NumSlots(const PipelineOptions& options) { return int64_t{options.prefetch} + 1; }
  static size_t ImageBytes(const Dataset& dataset, const PipelineOptions& options) {
    return Aligned(size_t(options.batch) * dataset.image.NumElems() * sizeof(float));
  }
  static size_t SlotBytes(const Dataset& dataset, const PipelineOptions& options) {
    return ImageBytes(dataset, options) + Aligned(size_t(options.batch) * sizeof(int32_t));
  }

 private:
  struct Slot {
    std::span<float> images;
    std::span<int32_t> labels;
  };

  static size_t Aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }  // a cache line, and a vector of oneDNN

  Slot SlotOf(int64_t step) const {
    std::byte* at = storage_.bytes().data() + size_t(step % NumSlots(options_)) * SlotBytes(dataset_, options_);
    return {{reinterpret_cast<float*>(at), size_t(options_.batch) * dataset_.image.NumElems()},
            {reinterpret_cast<int32_t*>(at + ImageBytes(dataset_, options_)), size_t(options_.batch)}};
  }

  void Run() {
    for (int64_t step = 0;; ++step) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || step - released_ < NumSlots(options_); });
        if (stop_) return;
      }
      const int64_t begin_ns = NowNs();
      Extract(step, SlotOf(step));
      // Steps count from 1 where they are shown, as in the training loop.
      if (track_ != nullptr) track_->Add({"extract", begin_ns, NowNs(), int32_t(step + 1)});
      {
        const std::lock_guard lock(mutex_);
        produced_ = step + 1;
      }
      changed_.notify_all();
    }
  }

  void Extract(int64_t step, const Slot& slot) {
    const int64_t epoch = step / steps_per_epoch_;
    const int64_t step_in_epoch = step % steps_per_epoch_;
    if (step_in_epoch == 0) ShuffleEpoch(options_.seed, epoch, &order_);
    const size_t batch = size_t(options_.batch);
    const size_t first = (size_t(step_in_epoch) * options_.num_workers + options_.rank) * batch;
    const size_t image_elems = dataset_.image.NumElems();
    for (size_t i = 0; i < batch; ++i) {
      const uint32_t sample = order_[first + i];
      slot.labels[i] = dataset_.labels[sample];
      ExtractImage(epoch, sample, slot.images.data() + i * image_elems);
    }
  }

  // Augmentation is a function of (seed, epoch, sample): which worker extracts the sample does not matter.
  void ExtractImage(int64_t epoch, uint32_t sample, float* out) const {
    const auto [channels, height, width] = dataset_.image;
    const uint8_t* pixels = dataset_.pixels.data() + sample * dataset_.image.NumElems();
    int down = 0, right = 0;
    bool flip = false;
    if (options_.augment) {
      CounterRandom random(options_.seed, RandomUse::kAugment, uint64_t(epoch), sample);
      down = int(random.Below(2 * kPad + 1)) - int(kPad);
      right = int(random.Below(2 * kPad + 1)) - int(kPad);
      flip = random.Below(2) == 1;
    }
    for (int c = 0; c < channels; ++c) {
      const float* table = tables_.Of(size_t(c));
      for (int y = 0; y < height; ++y) {
        const int from_y = y + down;
        const bool row_inside = from_y >= 0 && from_y < height;
        const uint8_t* row = pixels + (size_t(c) * height + size_t(row_inside ? from_y : 0)) * width;
        if (!options_.augment) {
          for (int x = 0; x < width; ++x) *out++ = table[row[x]];
          continue;
        }
        for (int x = 0; x < width; ++x) {
          const int from_x = (flip ? width - 1 - x : x) + right;
          *out++ = table[row_inside && from_x >= 0 && from_x < width ? row[from_x] : 0];
        }
      }
    }
  }

  const Dataset& dataset_;
  const PipelineOptions options_;
  TraceTrack* const track_;  // of the thread
  const PixelTables tables_;
  const int64_t steps_per_epoch_;
  const Memory storage_;         // a slot belongs to the thread until `produced_` passes it, then to the caller of Next
  std::vector<uint32_t> order_;  // (count,), of the thread: the samples in this epoch's order
  int64_t wait_ns_ = 0;          // of the caller of Next

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t produced_ = 0;  // batches filled; guarded by mutex_, as are the next three
  int64_t taken_ = 0;     // batches handed out
  int64_t released_ = 0;  // batches whose slot may be filled again
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Pipeline>> Pipeline::Start(const Dataset& dataset, const PipelineOptions& options,
                                                  TraceTrack* track) {
  CHECK(options.batch > 0 && options.num_workers > 0 && options.rank < options.num_workers && options.prefetch > 0);
  CHECK(dataset.pixels.size() == dataset.Count() * dataset.image.NumElems());
  CHECK(dataset.mean.size() == size_t(dataset.image.channels) && dataset.stddev.size() == dataset.mean.size());
  const size_t global_batch = size_t(options.batch) * options.num_workers;
  if (dataset.Count() < global_batch) {
    return Fail(ErrorCode::kInvalidArgument,
                "The training data has " + std::to_string(dataset.Count()) + " images, fewer than one step of " +
                    std::to_string(options.num_workers) + (options.num_workers == 1 ? " worker" : " workers") +
                    " with --batch " + std::to_string(options.batch) + " takes: give a smaller --batch.");
  }
  const size_t num_slots = size_t(ThreadedPipeline::NumSlots(options));
  ASSIGN_OR_RETURN(Memory storage, Memory::Map(num_slots * ThreadedPipeline::SlotBytes(dataset, options)));
  auto pipeline = std::make_unique<ThreadedPipeline>(dataset, options, track, std::move(storage));
  TRY(pipeline->StartThread());
  return std::unique_ptr<Pipeline>(std::move(pipeline));
}

}  // namespace gradlane
