// InitTensor: a counter-based generator, so that element i of tensor t is a function of (seed, t, i) alone.
//
// The bits must be the same on every machine, and libm's log, sin and cos are not. So the Box-Muller transform is
// computed here from +, -, *, / and sqrt of doubles, which IEEE 754 rounds in one way (this folder is compiled with
// -ffp-contract=off); the errors left are far below a float's half ulp.
#include <bit>
#include <cmath>

#include "trainer/model.h"

namespace gradlane {
namespace {

constexpr double kLn2 = 0.69314718055994530942;
constexpr double kPi = 3.14159265358979323846;

// The output function of SplitMix64 (Steele et al. 2014), a bijection that avalanches.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// x > 0 and normal. ln x = e ln 2 + 2 atanh((m-1)/(m+1)) with x = m 2^e, sqrt(1/2) <= m < sqrt(2), so |s| < 0.1716.
double Log(double x) {
  uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = int(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m >= 1.41421356237309504880) {
    m *= 0.5;
    exponent++;
  }
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double series = 0;
  for (int k = 19; k >= 1; k -= 2) series = series * s2 + 1.0 / k;
  return exponent * kLn2 + 2 * s * series;
}

// sin and cos of 2 pi turn, 0 <= turn < 1: reduced to an eighth of a turn about the nearest quarter, then Taylor.
void SinCosTurn(double turn, double* sin, double* cos) {
  const int quarter = int(turn * 4 + 0.5);
  const double a = (turn - quarter * 0.25) * (2 * kPi), a2 = a * a;  // |a| <= pi/4
  double s = 0, c = 0;
  for (int k = 8; k >= 1; k--) {
    s = (1 - s) * a2 / double((2 * k) * (2 * k + 1));
    c = (1 - c) * a2 / double((2 * k) * (2 * k - 1));
  }
  s = a * (1 - s);
  c = 1 - c;
  switch (quarter & 3) {
    case 0:
      *sin = s, *cos = c;
      break;
    case 1:
      *sin = c, *cos = -s;
      break;
    case 2:
      *sin = -s, *cos = -c;
      break;
    default:
      *sin = -c, *cos = s;
      break;
  }
}

}  // namespace

void InitTensor(const TensorSpec& spec, size_t tensor_index, uint64_t seed, std::span<float> out) {
  CHECK(out.size() == spec.NumElems());
  if (spec.init_stddev == 0) {
    for (float& x : out) x = spec.init_value;
    return;
  }
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
  const uint64_t key = Mix(Mix(seed + kGolden) ^ ((tensor_index + 1) * kGolden));
  for (size_t i = 0; i < out.size(); i += 2) {
    const uint64_t a = Mix(key + (i + 1) * kGolden), b = Mix(key + (i + 2) * kGolden);
    const double u = double((a >> 11) + 1) * 0x1p-53;  // (0, 1]
    const double radius = double(spec.init_stddev) * std::sqrt(-2 * Log(u));
    double sin, cos;
    SinCosTurn(double(b >> 11) * 0x1p-53, &sin, &cos);
    out[i] = float(radius * cos);
    if (i + 1 < out.size()) out[i + 1] = float(radius * sin);
  }
}

}  // namespace gradlane
