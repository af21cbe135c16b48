#include "trainer/data.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "trainer/data_formats.h"
#include "trainer/data_normalize.h"
#include "transport/base/socket.h"

namespace gradlane {
namespace {

std::string FetchCommand(const DataSource& source) { return "tools/get-data " + source.name + " " + source.dir; }

// Exact sums in integers: the same mean and deviation on every machine.
void SetMoments(Dataset* data) {
  const size_t plane = size_t(data->image.height) * data->image.width;
  const size_t num_channels = data->image.channels;
  const double num_pixels = double(data->Count()) * double(plane);
  data->mean.assign(num_channels, 0.0f);
  data->stddev.assign(num_channels, 1.0f);
  for (size_t c = 0; c < num_channels; ++c) {
    uint64_t sum = 0;
    uint64_t sum_of_squares = 0;
    for (size_t i = 0; i < data->Count(); ++i) {
      const uint8_t* pixels = data->pixels.data() + (i * num_channels + c) * plane;
      for (size_t p = 0; p < plane; ++p) {
        sum += pixels[p];
        sum_of_squares += uint32_t(pixels[p]) * pixels[p];
      }
    }
    const double mean = double(sum) / num_pixels;
    const double variance = double(sum_of_squares) / num_pixels - mean * mean;
    data->mean[c] = float(mean / 255);
    if (variance > 0) data->stddev[c] = float(std::sqrt(variance) / 255);
  }
}

}  // namespace

tl::unexpected<Error> BadDataFile(const DataSource& source, const std::string& path, const std::string& complaint) {
  return Fail(ErrorCode::kInvalidArgument, path + ": " + complaint + "; fetch it again: " + FetchCommand(source));
}

Result<std::vector<uint8_t>> ReadDataFile(const DataSource& source, const std::string& path, size_t max_bytes) {
  const auto unreadable = [&path] {
    const int code = errno;
    return Fail(ErrorCode::kUnavailable, path + ": cannot be read (" + std::strerror(code) + ")", code);
  };
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe of that name must not block
  if (!file) {
    if (errno != ENOENT && errno != ENOTDIR) return unreadable();
    if (access((path + ".gz").c_str(), F_OK) == 0) {
      return Fail(ErrorCode::kUnavailable,
                  path + " is there in compressed form only; unpack it: gunzip " + path + ".gz");
    }
    return Fail(ErrorCode::kUnavailable,
                path + " does not exist; fetch it: " + FetchCommand(source) + ", or give its folder with --data-dir");
  }
  struct stat status;
  if (fstat(file.get(), &status) != 0) return unreadable();
  if (!S_ISREG(status.st_mode)) return BadDataFile(source, path, "is not a regular file");
  if (uint64_t(status.st_size) > max_bytes) {
    return BadDataFile(source, path,
                       "has " + std::to_string(status.st_size) + " bytes where at most " + std::to_string(max_bytes) +
                           " are possible");
  }
  std::vector<uint8_t> bytes(size_t(status.st_size));
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return unreadable();
    if (got == 0) break;
    done += size_t(got);
  }
  bytes.resize(done);
  return bytes;
}

Result<DataSplits> LoadData(const std::string& name, const std::string& dir, ImageShape synthetic_image,
                            uint64_t seed) {
  const DataSource source = {name, dir};
  Result<DataSplits> loaded = Fail(ErrorCode::kInvalidArgument, "'" + name +
                                                                    "' is not a data set: say mnist, fashion-mnist, "
                                                                    "cifar10, cifar100 or synthetic.");
  if (name == "mnist" || name == "fashion-mnist")
    loaded = LoadIdx(source);
  else if (name == "cifar10")
    loaded = LoadCifar10(source);
  else if (name == "cifar100")
    loaded = LoadCifar100(source);
  else if (name == "synthetic")
    loaded = MakeSynthetic(synthetic_image, seed);
  if (!loaded) return loaded;
  SetMoments(&loaded->train);
  loaded->test.mean = loaded->train.mean;
  loaded->test.stddev = loaded->train.stddev;
  return loaded;
}

void NormalizeInto(const Dataset& dataset, size_t first, size_t count, std::span<float> out) {
  const size_t plane = size_t(dataset.image.height) * dataset.image.width;
  const size_t num_channels = dataset.image.channels;
  CHECK(first + count <= dataset.Count() && out.size() >= count * dataset.image.NumElems());
  const PixelTables tables(dataset);
  const uint8_t* pixels = dataset.pixels.data() + first * num_channels * plane;
  float* next = out.data();
  for (size_t i = 0; i < count; ++i) {
    for (size_t c = 0; c < num_channels; ++c) {
      const float* table = tables.Of(c);
      for (size_t p = 0; p < plane; ++p) *next++ = table[*pixels++];
    }
  }
}

}  // namespace gradlane
