#include "trainer/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "tests/trainer/data_files.h"

namespace gradlane {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr ImageShape kMnistShape = {1, 28, 28};

Result<DataSplits> Load(const char* name, const std::string& dir) { return LoadData(name, dir, kMnistShape, 1); }

void ExpectRefused(const char* name, const TempFolder& folder, ErrorCode code, const std::string& file,
                   const std::string& what) {
  const Result<DataSplits> data = Load(name, folder.path());
  ASSERT_FALSE(data.has_value()) << what;
  EXPECT_EQ(data.error().code, code) << data.error().message;
  EXPECT_EQ(ExitCode(data.error()), 2);
  EXPECT_THAT(data.error().message, AllOf(HasSubstr(folder.path() + "/" + file), HasSubstr(what),
                                          HasSubstr(std::string("tools/get-data ") + name + " " + folder.path())));
  EXPECT_THAT(data.error().message, testing::Not(HasSubstr("\n")));
}

TEST(Mnist, GivenTheExcerpt_ExpectItsImagesLabelsAndMoments) {
  const Result<DataSplits> data = Load("mnist", GRADLANE_SOURCE_DIR "/tests/data/mnist");
  ASSERT_TRUE(data.has_value()) << data.error().message;
  EXPECT_EQ(data->train.image, kMnistShape);
  EXPECT_EQ(data->train.num_classes, 10);
  EXPECT_EQ(data->train.Count(), 512u);
  EXPECT_EQ(data->test.Count(), 256u);
  EXPECT_EQ(data->train.pixels.size(), 512u * 784);
  EXPECT_THAT(std::vector<int>(data->train.labels.begin(), data->train.labels.begin() + 8),
              testing::ElementsAre(5, 0, 4, 1, 9, 2, 1, 3))
      << "as published";
  EXPECT_THAT(std::vector<int>(data->test.labels.begin(), data->test.labels.begin() + 4),
              testing::ElementsAre(7, 2, 1, 0));
  EXPECT_NEAR(data->train.mean[0], 0.1307, 0.01) << "of all of MNIST";
  EXPECT_NEAR(data->train.stddev[0], 0.3081, 0.01);
  EXPECT_EQ(data->test.mean, data->train.mean) << "the test split is normalised as the training split is";
  EXPECT_EQ(data->test.stddev, data->train.stddev);
}

TEST(Mnist, GivenKnownPixels_ExpectExactMoments) {
  TempFolder folder;
  WriteMnist(folder, 256, 3);
  const Result<DataSplits> data = Load("fashion-mnist", folder.path());
  ASSERT_TRUE(data.has_value()) << data.error().message;
  EXPECT_FLOAT_EQ(data->train.mean[0], 0.5f);
  EXPECT_FLOAT_EQ(data->train.stddev[0], float(std::sqrt((256.0 * 256 - 1) / 12) / 255));
}

TEST(Mnist, GivenOneValueEverywhere_ExpectFiniteNormalisedPixels) {
  TempFolder folder;
  WriteMnist(folder, 1, 1);
  const Result<DataSplits> data = Load("mnist", folder.path());
  ASSERT_TRUE(data.has_value());
  std::vector<float> image(784);
  NormalizeInto(data->train, 0, 1, image);
  EXPECT_EQ(image[0], 0.0f);
}

TEST(Mnist, GivenNoFiles_ExpectTheCommandThatFetchesThem) {
  TempFolder folder;
  ExpectRefused("mnist", folder, ErrorCode::kUnavailable, "train-images-idx3-ubyte", "does not exist");
  folder.Write("train-images-idx3-ubyte", IdxImages(2));
  ExpectRefused("mnist", folder, ErrorCode::kUnavailable, "train-labels-idx1-ubyte", "does not exist");
}

TEST(Mnist, GivenCompressedFiles_ExpectHowToUnpackThem) {
  TempFolder folder;
  folder.Write("train-images-idx3-ubyte.gz", "x");
  const Result<DataSplits> data = Load("mnist", folder.path());
  ASSERT_FALSE(data.has_value());
  EXPECT_THAT(data.error().message, HasSubstr("gunzip"));
}

TEST(Mnist, GivenAFolderInPlaceOfAFile_ExpectASentence) {
  TempFolder folder;
  std::filesystem::create_directory(folder.path() + "/train-images-idx3-ubyte");
  ExpectRefused("mnist", folder, ErrorCode::kInvalidArgument, "train-images-idx3-ubyte", "not a regular file");
}

TEST(Mnist, GivenFilesCutOffAnywhere_ExpectWhere) {
  const FileBytes images = IdxImages(3);
  const FileBytes labels = IdxLabels(3);
  for (size_t length :
       {size_t{0}, size_t{1}, size_t{4}, size_t{15}, size_t{16}, size_t{17}, size_t{800}, images.size() - 1}) {
    TempFolder folder;
    WriteMnist(folder, 3, 3);
    folder.Write("t10k-images-idx3-ubyte", images.substr(0, length));
    ExpectRefused("mnist", folder, ErrorCode::kInvalidArgument, "t10k-images-idx3-ubyte",
                  "at byte " + std::to_string(length));
  }
  for (size_t length = 0; length < labels.size(); ++length) {
    TempFolder folder;
    WriteMnist(folder, 3, 3);
    folder.Write("train-labels-idx1-ubyte", labels.substr(0, length));
    ExpectRefused("mnist", folder, ErrorCode::kInvalidArgument, "train-labels-idx1-ubyte",
                  "at byte " + std::to_string(length));
  }
}

TEST(Mnist, GivenMalformedFiles_ExpectWhatWasFoundAndExpected) {
  const std::string images = "train-images-idx3-ubyte", labels = "train-labels-idx1-ubyte";
  const auto patched = [](FileBytes bytes, size_t at, const FileBytes& patch) {
    return bytes.replace(at, patch.size(), patch);
  };
  struct Case {
    std::string file;
    FileBytes bytes;
    std::string what;
  };
  const Case cases[] = {
      {images, patched(IdxImages(3), 0, BigEndian(0x801)),
       "begins with 0x00000801 where an IDX file of images begins with 0x00000803"},
      {images, "\x1f\x8b" + FileBytes(30, 'z'), "begins with 0x1f8b7a7a"},
      {images, patched(IdxImages(3), 4, BigEndian(0)), "promises 0 items at byte 4"},
      {images, patched(IdxImages(3), 4, BigEndian(0xffffffff)), "promises 4294967295 items at byte 4"},
      {images, patched(IdxImages(3), 4, BigEndian(1'000'000)), "is cut off at byte 2368 of the 784000016"},
      {images, patched(IdxImages(3), 8, BigEndian(32)), "32 rows at byte 8 where mnist has 28"},
      {images, patched(IdxImages(3), 12, BigEndian(0)), "0 columns at byte 12"},
      {images, IdxImages(3) + "x", "has 2369 bytes where its header promises 2368"},
      {labels, patched(IdxLabels(3), 0, BigEndian(0x803)), "where an IDX file of labels begins with 0x00000801"},
      {labels, patched(IdxLabels(3), 10, "\x0a"), "has the label 10 at byte 10"},
      {labels, patched(IdxLabels(3), 8, "\xff"), "has the label 255 at byte 8"},
      {labels, IdxLabels(4), "has 4 labels for the 3 images"},
  };
  for (const Case& c : cases) {
    TempFolder folder;
    WriteMnist(folder, 3, 3);
    folder.Write(c.file, c.bytes);
    ExpectRefused("mnist", folder, ErrorCode::kInvalidArgument, c.file, c.what);
  }
}

void WriteCifar10(const TempFolder& folder, const std::string& below = "") {
  for (int i = 1; i <= 5; ++i) {
    folder.Write(below + "data_batch_" + std::to_string(i) + ".bin",
                 CifarRecord(FileBytes(1, char(i)), 10 * i) + CifarRecord(FileBytes(1, char(0)), 0));
  }
  folder.Write(below + "test_batch.bin", CifarRecord("\x09", 77));
}

TEST(Cifar10, GivenFiveBatches_ExpectThemInOrder) {
  for (const char* below : {"", "cifar-10-batches-bin/"}) {
    TempFolder folder;
    WriteCifar10(folder, below);
    const Result<DataSplits> data = Load("cifar10", folder.path());
    ASSERT_TRUE(data.has_value()) << data.error().message;
    EXPECT_EQ(data->train.image, (ImageShape{3, 32, 32}));
    EXPECT_EQ(data->train.num_classes, 10);
    EXPECT_THAT(data->train.labels, testing::ElementsAre(1, 0, 2, 0, 3, 0, 4, 0, 5, 0));
    EXPECT_EQ(data->train.pixels[2 * 3072], 20) << "red of the second batch's first image";
    EXPECT_EQ(data->train.pixels[2 * 3072 + 2 * 1024], 22) << "its blue";
    EXPECT_FLOAT_EQ(data->train.mean[0], 15.0f / 255);
    EXPECT_FLOAT_EQ(data->train.mean[2], 17.0f / 255);
    EXPECT_THAT(data->test.labels, testing::ElementsAre(9));
  }
}

TEST(Cifar10, GivenMissingOrMalformedFiles_ExpectASentence) {
  {
    TempFolder folder;
    WriteCifar10(folder);
    std::filesystem::remove(folder.path() + "/data_batch_3.bin");
    ExpectRefused("cifar10", folder, ErrorCode::kUnavailable, "data_batch_3.bin", "does not exist");
  }
  for (size_t length : {0, 1, 3072, 3074, 6145}) {
    TempFolder folder;
    WriteCifar10(folder);
    folder.Write("data_batch_2.bin", FileBytes(length, '\0'));
    ExpectRefused("cifar10", folder, ErrorCode::kInvalidArgument, "data_batch_2.bin",
                  "cut off at byte " + std::to_string(length));
  }
  TempFolder folder;
  WriteCifar10(folder);
  folder.Write("test_batch.bin", CifarRecord("\x01", 0) + CifarRecord("\x0a", 0));
  ExpectRefused("cifar10", folder, ErrorCode::kInvalidArgument, "test_batch.bin", "has the label 10 at byte 3073");
}

TEST(Cifar100, GivenBothLabels_ExpectTheFineOne) {
  TempFolder folder;
  folder.Write("train.bin", CifarRecord("\x07\x63", 5));
  folder.Write("test.bin", CifarRecord(FileBytes("\x00\x2a", 2), 5));
  const Result<DataSplits> data = Load("cifar100", folder.path());
  ASSERT_TRUE(data.has_value()) << data.error().message;
  EXPECT_EQ(data->train.num_classes, 100);
  EXPECT_THAT(data->train.labels, testing::ElementsAre(99));
  EXPECT_THAT(data->test.labels, testing::ElementsAre(42));

  folder.Write("test.bin", CifarRecord(FileBytes("\x00\x64", 2), 5));
  ExpectRefused("cifar100", folder, ErrorCode::kInvalidArgument, "test.bin", "has the label 100 at byte 1");
}

TEST(Data, GivenAnUnknownName_ExpectTheNames) {
  const Result<DataSplits> data = Load("imagenet", "/");
  ASSERT_FALSE(data.has_value());
  EXPECT_EQ(data.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(data.error().message, HasSubstr("mnist, fashion-mnist, cifar10, cifar100 or synthetic"));
}

TEST(Synthetic, GivenASeed_ExpectTheSameImages) {
  const DataSplits a = LoadData("synthetic", "", kMnistShape, 3).value();
  const DataSplits b = LoadData("synthetic", "", kMnistShape, 3).value();
  const DataSplits other = LoadData("synthetic", "", kMnistShape, 4).value();
  EXPECT_EQ(a.train.pixels, b.train.pixels);
  EXPECT_EQ(a.test.labels, b.test.labels);
  EXPECT_NE(a.train.pixels, other.train.pixels);
  EXPECT_EQ(a.train.Count(), 4096u);
  EXPECT_EQ(a.test.Count(), 1024u);
  EXPECT_GT(*std::max_element(a.train.labels.begin(), a.train.labels.end()), 8);
}

// Learnable: the class whose mean image is nearest is the right one far more often than one time in ten.
TEST(Synthetic, GivenClassMeansOfTheTrainingSplit_ExpectTheTestSplitToFollowThem) {
  const DataSplits data = LoadData("synthetic", "", kMnistShape, 1).value();
  std::vector<std::array<double, 784>> sums(10);
  std::vector<double> counts(10);
  for (size_t i = 0; i < data.train.Count(); ++i) {
    const size_t label = size_t(data.train.labels[i]);
    counts[label] += 1;
    for (size_t p = 0; p < 784; ++p) sums[label][p] += data.train.pixels[i * 784 + p];
  }
  size_t correct = 0;
  for (size_t i = 0; i < data.test.Count(); ++i) {
    size_t best = 0;
    double best_distance = 1e300;
    for (size_t label = 0; label < 10; ++label) {
      double distance = 0;
      for (size_t p = 0; p < 784; ++p) {
        const double d = sums[label][p] / counts[label] - data.test.pixels[i * 784 + p];
        distance += d * d;
      }
      if (distance < best_distance) best_distance = distance, best = label;
    }
    correct += best == size_t(data.test.labels[i]);
  }
  EXPECT_GT(double(correct) / double(data.test.Count()), 0.9);
}

TEST(Synthetic, GivenLargeImages_ExpectFewOfThem) {
  const DataSplits data = LoadData("synthetic", "", {3, 224, 224}, 1).value();
  EXPECT_EQ(data.train.image, (ImageShape{3, 224, 224}));
  EXPECT_EQ(data.train.Count(), 512u);
  EXPECT_EQ(data.train.mean.size(), 3u);
  EXPECT_EQ(data.train.pixels.size(), 512u * 3 * 224 * 224);
}

TEST(NormalizeInto, GivenARange_ExpectPixelsLessMeanOverDeviation) {
  TempFolder folder;
  WriteMnist(folder, 256, 3);
  const DataSplits data = Load("mnist", folder.path()).value();
  std::vector<float> out(2 * 784);
  NormalizeInto(data.train, 254, 2, out);
  EXPECT_FLOAT_EQ(out[0], (254 / 255.0f - data.train.mean[0]) / data.train.stddev[0]);
  EXPECT_FLOAT_EQ(out[784], (1 - data.train.mean[0]) / data.train.stddev[0]);
}

}  // namespace
}  // namespace gradlane
