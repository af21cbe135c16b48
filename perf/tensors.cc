#include "perf/tensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <system_error>

namespace gradlane::perf {
namespace {

static_assert(std::endian::native == std::endian::little, "files hold fp32 in little-endian order");

constexpr float kScale = 0.01f;

// The distributions of <random> differ from one library to the next; its engines do not.
class Draw {
 public:
  double Uniform() { return (static_cast<double>(random_()) + 0.5) / 4294967296.0; }  // above 0, below 1
  double Gaussian() { return std::sqrt(-2 * std::log(Uniform())) * std::cos(6.283185307179586 * Uniform()); }
  double Laplace() {
    const double centred = Uniform() - 0.5;
    return std::copysign(std::log(1 - 2 * std::abs(centred)), centred);
  }
  double StudentT3() {
    double chi_squared = 0;
    for (int i = 0; i < 3; ++i) chi_squared += std::pow(Gaussian(), 2);
    return Gaussian() / std::sqrt(chi_squared / 3);
  }

 private:
  std::mt19937 random_{1};
};

std::vector<float> Drawn(double (Draw::*next)(), size_t num_elems) {
  Draw draw;
  std::vector<float> values(num_elems);
  for (float& value : values) value = kScale * static_cast<float>((draw.*next)());
  return values;
}

Result<std::vector<float>> ReadFile(const std::string& path) {
  const auto refuse = [&](const std::string& what) {
    return Fail(ErrorCode::kInvalidArgument, "--distribution: the file " + path + " " + what);
  };
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return Fail(
        ErrorCode::kInvalidArgument,
        "--distribution: '" + path + "' is neither gaussian, laplace nor heavy-tail, nor is there such a file.");
  }
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return refuse("cannot be read: " + error.message() + ".");
  if (bytes == 0 || bytes % sizeof(float) != 0) {
    return refuse("has " + std::to_string(bytes) +
                  " bytes, which is not a multiple of 4 above 0: it holds no raw fp32.");
  }
  std::vector<float> values(bytes / sizeof(float));
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(bytes))) {
    return refuse("cannot be read.");
  }
  const auto bad = std::ranges::find_if_not(values, [](float value) { return std::isfinite(value); });
  if (bad != values.end()) {
    return refuse("holds a NaN or infinity, first at element " + std::to_string(bad - values.begin()) + ".");
  }
  return values;
}

}  // namespace

Result<std::vector<float>> MakePattern(const std::string& distribution, size_t num_elems) {
  const size_t num_drawn = std::min(num_elems, kPatternElems);
  if (distribution == "gaussian") return Drawn(&Draw::Gaussian, num_drawn);
  if (distribution == "laplace") return Drawn(&Draw::Laplace, num_drawn);
  if (distribution == "heavy-tail") return Drawn(&Draw::StudentT3, num_drawn);
  return ReadFile(distribution);
}

Gradients::Gradients(std::span<const float> pattern, size_t num_elems)
    : num_elems_(num_elems), values_(num_elems + kMaxShiftElems) {
  Repeat(pattern, values_.span());
}

std::span<const float> Gradients::At(size_t step) const {
  constexpr size_t kAlignElems = 16;
  constexpr size_t kStride = 619;  // a prime, so that all shifts come before one returns
  const size_t shift = step * kStride % (kMaxShiftElems / kAlignElems + 1) * kAlignElems;
  return values_.span().subspan(shift, num_elems_);
}

void Repeat(std::span<const float> part, std::span<float> whole) {
  for (size_t first = 0; first < whole.size(); first += part.size()) {
    const auto to = whole.subspan(first, std::min(part.size(), whole.size() - first));
    std::ranges::copy(part.first(to.size()), to.begin());
  }
}

float MagnitudeQuantile(std::span<const float> values, double share) {
  std::vector<float> magnitudes(values.size());
  std::ranges::transform(values, magnitudes.begin(), [](float value) { return std::abs(value); });
  const auto count = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto wanted = magnitudes.begin() + static_cast<ptrdiff_t>(std::clamp<size_t>(count, 1, values.size()) - 1);
  std::ranges::nth_element(magnitudes, wanted, std::ranges::greater{});
  return *wanted;
}

}  // namespace gradlane::perf
