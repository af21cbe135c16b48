// The binary version of CIFAR (https://www.cs.toronto.edu/~kriz/cifar.html): records without a header.
//
//   CIFAR-10   label | 1024 red | 1024 green | 1024 blue            CIFAR-100  coarse label | fine label | pixels
#include <unistd.h>

#include <span>

#include "trainer/data_formats.h"

namespace gradlane {
namespace {

constexpr size_t kPixelBytes = 3 * 32 * 32;
constexpr size_t kMaxRecordsPerFile = 1'000'000;

struct CifarFormat {
  int num_classes;
  size_t label_bytes;  // in front of the pixels; the last one is the label we use
};
constexpr CifarFormat kCifar10 = {10, 1};
constexpr CifarFormat kCifar100 = {100, 2};

Result<void> AppendFile(const DataSource& source, const CifarFormat& format, const std::string& path, Dataset* data) {
  const size_t record_bytes = format.label_bytes + kPixelBytes;
  ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, ReadDataFile(source, path, kMaxRecordsPerFile * record_bytes));
  const size_t num_records = bytes.size() / record_bytes;
  if (num_records == 0 || bytes.size() % record_bytes != 0) {
    return BadDataFile(source, path,
                       "is cut off at byte " + std::to_string(bytes.size()) + ", inside record " +
                           std::to_string(num_records) + ", where each has " + std::to_string(record_bytes) + " bytes");
  }
  data->pixels.reserve(data->pixels.size() + num_records * kPixelBytes);
  for (size_t i = 0; i < num_records; ++i) {
    const uint8_t* record = bytes.data() + i * record_bytes;
    const int label = record[format.label_bytes - 1];
    if (label >= format.num_classes) {
      return BadDataFile(source, path,
                         "has the label " + std::to_string(label) + " at byte " +
                             std::to_string(i * record_bytes + format.label_bytes - 1) + " where 0 to " +
                             std::to_string(format.num_classes - 1) + " are possible");
    }
    data->labels.push_back(label);
    data->pixels.insert(data->pixels.end(), record + format.label_bytes, record + record_bytes);
  }
  return {};
}

Result<Dataset> LoadSplit(const DataSource& source, const CifarFormat& format, const std::string& dir,
                          std::span<const char* const> files) {
  Dataset data;
  data.image = {3, 32, 32};
  data.num_classes = format.num_classes;
  for (const char* file : files) TRY(AppendFile(source, format, dir + "/" + file, &data));
  return data;
}

// The published archives unpack into a folder of their own: it may be named, or the one around it.
std::string FolderOf(const DataSource& source, const char* published_folder, const char* first_file) {
  const std::string inner = source.dir + "/" + published_folder;
  const bool only_inside = access((source.dir + "/" + first_file).c_str(), F_OK) != 0 &&
                           access((inner + "/" + first_file).c_str(), F_OK) == 0;
  return only_inside ? inner : source.dir;
}

}  // namespace

Result<DataSplits> LoadCifar10(const DataSource& source) {
  constexpr const char* kTrain[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                                    "data_batch_5.bin"};
  constexpr const char* kTest[] = {"test_batch.bin"};
  const std::string dir = FolderOf(source, "cifar-10-batches-bin", kTrain[0]);
  ASSIGN_OR_RETURN(Dataset train, LoadSplit(source, kCifar10, dir, kTrain));
  ASSIGN_OR_RETURN(Dataset test, LoadSplit(source, kCifar10, dir, kTest));
  return DataSplits{std::move(train), std::move(test)};
}

Result<DataSplits> LoadCifar100(const DataSource& source) {
  constexpr const char* kTrain[] = {"train.bin"};
  constexpr const char* kTest[] = {"test.bin"};
  const std::string dir = FolderOf(source, "cifar-100-binary", kTrain[0]);
  ASSIGN_OR_RETURN(Dataset train, LoadSplit(source, kCifar100, dir, kTrain));
  ASSIGN_OR_RETURN(Dataset test, LoadSplit(source, kCifar100, dir, kTest));
  return DataSplits{std::move(train), std::move(test)};
}

}  // namespace gradlane
