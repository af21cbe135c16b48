// IDX, the format of MNIST: a magic number 0 0 8 D (unsigned bytes, D dimensions), D big-endian 32-bit lengths, and the
// elements in row-major order. Specified at the foot of http://yann.lecun.com/exdb/mnist/.
//
//   images  00 00 08 03 | count | 28 | 28 | count * 784 bytes       labels  00 00 08 01 | count | count bytes
#include <array>

#include "trainer/data_formats.h"

namespace gradlane {
namespace {

constexpr uint32_t kSide = 28;
constexpr uint32_t kMaxImages = 1'000'000;
constexpr int kNumClasses = 10;

uint32_t BigEndian(const std::vector<uint8_t>& bytes, size_t at) {
  return uint32_t(bytes[at]) << 24 | uint32_t(bytes[at + 1]) << 16 | uint32_t(bytes[at + 2]) << 8 | bytes[at + 3];
}

std::string Hex(uint32_t value) {
  std::string out = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) out += "0123456789abcdef"[value >> shift & 15];
  return out;
}

struct Idx {
  uint32_t count = 0;
  std::vector<uint8_t> elems;  // without the header
};

// item_dims: the lengths after the count.
template <size_t N>
Result<Idx> ReadIdx(const DataSource& source, const std::string& path, const std::array<uint32_t, N>& item_dims) {
  constexpr size_t kHeaderBytes = 8 + 4 * N;
  uint64_t item_bytes = 1;
  for (uint32_t length : item_dims) item_bytes *= length;
  ASSIGN_OR_RETURN(std::vector<uint8_t> bytes, ReadDataFile(source, path, kHeaderBytes + kMaxImages * item_bytes));
  const auto bad = [&](const std::string& complaint) { return BadDataFile(source, path, complaint); };

  const std::string length = std::to_string(bytes.size());
  if (bytes.size() < kHeaderBytes) {
    return bad("ends at byte " + length + ", inside its header of " + std::to_string(kHeaderBytes) + " bytes");
  }
  const uint32_t magic = 0x0801 + N;
  if (BigEndian(bytes, 0) != magic) {
    return bad("begins with " + Hex(BigEndian(bytes, 0)) + " where an IDX file of " + (N == 0 ? "labels" : "images") +
               " begins with " + Hex(magic));
  }
  Idx idx;
  idx.count = BigEndian(bytes, 4);
  if (idx.count == 0 || idx.count > kMaxImages) {
    return bad("promises " + std::to_string(idx.count) + " items at byte 4 where 1 to " + std::to_string(kMaxImages) +
               " are possible");
  }
  for (size_t i = 0; i < N; ++i) {
    const uint32_t found = BigEndian(bytes, 8 + 4 * i);
    if (found != item_dims[i]) {
      return bad("has images of " + std::to_string(found) + (i == 0 ? " rows" : " columns") + " at byte " +
                 std::to_string(8 + 4 * i) + " where " + source.name + " has " + std::to_string(item_dims[i]));
    }
  }
  const uint64_t expected_bytes = kHeaderBytes + idx.count * item_bytes;
  if (bytes.size() < expected_bytes) {
    return bad("is cut off at byte " + length + " of the " + std::to_string(expected_bytes) +
               " that its header promises");
  }
  if (bytes.size() > expected_bytes) {
    return bad("has " + length + " bytes where its header promises " + std::to_string(expected_bytes));
  }
  bytes.erase(bytes.begin(), bytes.begin() + kHeaderBytes);
  idx.elems = std::move(bytes);
  return idx;
}

Result<Dataset> LoadSplit(const DataSource& source, const std::string& split) {
  const std::string images_path = source.dir + "/" + split + "-images-idx3-ubyte";
  const std::string labels_path = source.dir + "/" + split + "-labels-idx1-ubyte";
  ASSIGN_OR_RETURN(Idx images, ReadIdx<2>(source, images_path, {kSide, kSide}));
  ASSIGN_OR_RETURN(const Idx labels, ReadIdx<0>(source, labels_path, {}));
  if (labels.count != images.count) {
    return BadDataFile(source, labels_path,
                       "has " + std::to_string(labels.count) + " labels for the " + std::to_string(images.count) +
                           " images of " + images_path);
  }
  Dataset data;
  data.image = {1, kSide, kSide};
  data.num_classes = kNumClasses;
  data.pixels = std::move(images.elems);
  data.labels.reserve(labels.count);
  for (size_t i = 0; i < labels.elems.size(); ++i) {
    if (labels.elems[i] >= kNumClasses) {
      return BadDataFile(source, labels_path,
                         "has the label " + std::to_string(labels.elems[i]) + " at byte " + std::to_string(8 + i) +
                             " where 0 to 9 are possible");
    }
    data.labels.push_back(labels.elems[i]);
  }
  return data;
}

}  // namespace

Result<DataSplits> LoadIdx(const DataSource& source) {
  ASSIGN_OR_RETURN(Dataset train, LoadSplit(source, "train"));
  ASSIGN_OR_RETURN(Dataset test, LoadSplit(source, "t10k"));
  return DataSplits{std::move(train), std::move(test)};
}

}  // namespace gradlane
