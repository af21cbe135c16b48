// The file formats behind LoadData, one function each, and what they share. Internal to trainer/data*.cc. Stateless;
// any thread. A reader leaves mean and stddev empty: LoadData computes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/data.h"
#include "transport/base/error.h"

namespace gradlane {

// Where a data set is, for its errors.
struct DataSource {
  std::string name;  // as given to --data
  std::string dir;
};

// MNIST and Fashion-MNIST: {train,t10k}-{images-idx3,labels-idx1}-ubyte.
Result<DataSplits> LoadIdx(const DataSource& source);
// data_batch_1..5.bin and test_batch.bin, in `dir` or in the folder of the published archive below it.
Result<DataSplits> LoadCifar10(const DataSource& source);
// train.bin and test.bin, likewise; the fine labels.
Result<DataSplits> LoadCifar100(const DataSource& source);
DataSplits MakeSynthetic(ImageShape image, uint64_t seed);

// All bytes of a regular file of at most `max_bytes`.
Result<std::vector<uint8_t>> ReadDataFile(const DataSource& source, const std::string& path, size_t max_bytes);

// kInvalidArgument: "PATH: <complaint>; fetch it again: ...".
tl::unexpected<Error> BadDataFile(const DataSource& source, const std::string& path, const std::string& complaint);

}  // namespace gradlane
