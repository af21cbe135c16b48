// FEC against the vectors of tests/golden/fec_golden.py, an encoder and decoder that shares no code with ours.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/fec.h"
#include "tests/kernels/random_tensor.h"

namespace gradlane {
namespace {

using Json = nlohmann::json;

const Json& Vectors(const char* key) {
  static const Json vectors = Json::parse(std::ifstream(GRADLANE_SOURCE_DIR "/tests/golden/fec_golden.json"));
  return vectors.at(key);
}

uint32_t HexBits(const std::string& hex) { return static_cast<uint32_t>(std::stoul(hex, nullptr, 16)); }

std::vector<std::byte> HexBytes(const std::string& hex) {
  std::vector<std::byte> bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

// make_input of fec_golden.py.
std::vector<float> MakeInput(const Json& vector) {
  std::vector<uint32_t> bits(vector.at("n"), HexBits(vector.at("background")));
  if (vector.contains("random")) {
    const Json& random = vector.at("random");
    uint32_t state = random[0];
    const uint32_t permille = random[1], exponents = random[3];
    const int lowest = random[2];
    auto next = [&state] { return (state = state * 1664525u + 1013904223u) >> 8; };
    for (uint32_t& value : bits) {
      const uint32_t keep = next(), exponent = next(), mantissa = next(), sign = next();
      if (keep % 1000 >= permille) continue;
      value =
          (sign & 1) << 31 | (static_cast<uint32_t>(lowest + 127) + exponent % exponents) << 23 | (mantissa & 0x7fffff);
    }
  }
  if (vector.contains("set")) {
    for (const Json& pair : vector.at("set")) bits[pair[0].get<size_t>()] = HexBits(pair[1]);
  }
  std::vector<float> values(bits.size());
  if (!bits.empty()) std::memcpy(values.data(), bits.data(), bits.size() * sizeof(float));
  return values;
}

fec::Params MakeParams(const Json& options) {
  const std::string rounding = options.value("rounding", "nearest");
  return {.threshold_exponent = options.value("exponent", -7),
          .threshold_mantissa = options.value("mantissa", 0u),
          .layout = options.value("layout", "") == "runs" ? fec::Layout::kRuns : fec::Layout::kSmallest,
          .rounding = rounding == "truncate"     ? fec::Rounding::kTruncate
                      : rounding == "stochastic" ? fec::Rounding::kStochastic
                                                 : fec::Rounding::kNearest,
          .rounding_seed = options.value("seed", 0u)};
}

std::string Digest(std::span<const float> values) {
  uint64_t state = 0xcbf29ce484222325u;
  for (uint32_t bits : Bits(values)) state = (state ^ bits) * 0x100000001b3u;
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(state));
  return text;
}

std::string EnumName(fec::DecodeStatus status) {
  using enum fec::DecodeStatus;
  switch (status) {
    case kOk:
      return "kOk";
    case kTruncated:
      return "kTruncated";
    case kTrailing:
      return "kTrailing";
    case kBadVersion:
      return "kBadVersion";
    case kBadCount:
      return "kBadCount";
  }
  return "?";
}

TEST(FecGolden, GivenAGoodVectorExpectEncodeToMakeTheSameBytes) {
  for (const Json& vector : Vectors("good")) {
    SCOPED_TRACE(vector.at("name").get<std::string>());
    const Encoded encoded = EncodeAll(MakeInput(vector), {}, MakeParams(vector.at("options")));
    EXPECT_EQ(encoded.bytes, HexBytes(vector.at("bytes")));
    EXPECT_EQ(encoded.stats.survivors, vector.at("survivors").get<size_t>());
    EXPECT_TRUE(encoded.stats.finite);
  }
}

TEST(FecGolden, GivenAGoodOrOddVectorExpectDecodeToMakeTheSameValues) {
  for (const char* key : {"good", "odd"}) {
    for (const Json& vector : Vectors(key)) {
      SCOPED_TRACE(vector.at("name").get<std::string>());
      const std::vector<std::byte> bytes = HexBytes(vector.at("bytes"));
      std::vector<float> decoded(vector.at("n"), 7.0f);
      ASSERT_EQ(fec::Decode(bytes, decoded), fec::DecodeStatus::kOk);
      EXPECT_EQ(Digest(decoded), vector.at("decoded").get<std::string>());
      std::vector<float> added(decoded.size(), 0.0f);
      ASSERT_EQ(fec::DecodeAdd(bytes, added), fec::DecodeStatus::kOk);
      EXPECT_EQ(Bits(added), Bits(decoded));
    }
  }
}

TEST(FecGolden, GivenABadVectorExpectItsStatusAndAnUntouchedDestination) {
  for (const Json& vector : Vectors("bad")) {
    SCOPED_TRACE(vector.at("name").get<std::string>());
    std::vector<std::byte> bytes = HexBytes(vector.at("bytes"));
    bytes.shrink_to_fit();
    std::vector<float> dst(vector.at("n"), 7.0f);
    EXPECT_EQ(EnumName(fec::Decode(bytes, dst)), vector.at("status").get<std::string>());
    EXPECT_EQ(EnumName(fec::DecodeAdd(bytes, dst)), vector.at("status").get<std::string>());
    EXPECT_TRUE(dst == std::vector<float>(dst.size(), 7.0f));
  }
}

TEST(FecGolden, GivenTheVectorsExpectEveryFormAndEveryStatusAmongThem) {
  std::vector<bool> kinds(8), tags(2);
  for (const Json& vector : Vectors("good")) {
    const std::vector<std::byte> bytes = HexBytes(vector.at("bytes"));
    if (bytes.size() < 3) continue;
    const unsigned entry = std::to_integer<unsigned>(bytes[2]);
    if (entry >= 0x80) kinds[entry >> 4 & 7] = true;
    if (entry < 0x80) tags[entry >> 6] = true;
  }
  EXPECT_THAT(kinds, testing::Each(true));
  EXPECT_THAT(tags, testing::Each(true));
  std::vector<std::string> statuses;
  for (const Json& vector : Vectors("bad")) statuses.push_back(vector.at("status"));
  for (const char* status : {"kTruncated", "kTrailing", "kBadVersion", "kBadCount"}) {
    EXPECT_THAT(statuses, testing::Contains(status));
  }
}

}  // namespace
}  // namespace gradlane
