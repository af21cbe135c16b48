// Small data files for the tests of the readers, in a folder that is removed at the end of the test.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace gradlane {

using FileBytes = std::string;

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gradlane-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, const FileBytes& bytes) const {
    const std::string path = path_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  std::string path_;
};

inline FileBytes BigEndian(uint32_t value) {
  FileBytes bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += char(value >> shift & 255);
  return bytes;
}

// Image i is filled with the value i; its label is i % 10.
inline FileBytes IdxImages(uint32_t count) {
  FileBytes bytes = BigEndian(0x803) + BigEndian(count) + BigEndian(28) + BigEndian(28);
  for (uint32_t i = 0; i < count; ++i) bytes += FileBytes(784, char(i));
  return bytes;
}

inline FileBytes IdxLabels(uint32_t count) {
  FileBytes bytes = BigEndian(0x801) + BigEndian(count);
  for (uint32_t i = 0; i < count; ++i) bytes += char(i % 10);
  return bytes;
}

inline void WriteMnist(const TempFolder& folder, uint32_t num_train, uint32_t num_test) {
  folder.Write("train-images-idx3-ubyte", IdxImages(num_train));
  folder.Write("train-labels-idx1-ubyte", IdxLabels(num_train));
  folder.Write("t10k-images-idx3-ubyte", IdxImages(num_test));
  folder.Write("t10k-labels-idx1-ubyte", IdxLabels(num_test));
}

// A CIFAR record: labels, then three planes filled with `value`, `value` + 1 and `value` + 2.
inline FileBytes CifarRecord(const FileBytes& labels, int value) {
  FileBytes bytes = labels;
  for (int c = 0; c < 3; ++c) bytes += FileBytes(1024, char(value + c));
  return bytes;
}

}  // namespace gradlane
