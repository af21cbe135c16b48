#include "perf/dense_add.h"

#include <cstring>

namespace gradlane::perf {
namespace {

// One function for each width; the attributes hold for its body only.
#define GRADLANE_DENSE_ADD(NAME, ATTRIBUTES, VECTOR_BYTES)                \
  ATTRIBUTES void NAME(const float* grad, float* sum, size_t num_elems) { \
    using Vector [[gnu::vector_size(VECTOR_BYTES)]] = float;              \
    constexpr size_t kLanes = VECTOR_BYTES / sizeof(float);               \
    size_t i = 0;                                                         \
    for (; i + kLanes <= num_elems; i += kLanes) {                        \
      Vector added, to;                                                   \
      std::memcpy(&added, grad + i, sizeof added);                        \
      std::memcpy(&to, sum + i, sizeof to);                               \
      to += added;                                                        \
      std::memcpy(sum + i, &to, sizeof to);                               \
    }                                                                     \
    for (; i < num_elems; ++i) sum[i] += grad[i];                         \
  }

GRADLANE_DENSE_ADD(Add16, , 16)
#if defined(__x86_64__)
GRADLANE_DENSE_ADD(Add32, [[gnu::target("avx2")]], 32)
GRADLANE_DENSE_ADD(Add64, [[gnu::target("avx512f")]], 64)
#endif
#undef GRADLANE_DENSE_ADD

}  // namespace

DenseAdd::DenseAdd(std::string_view target, int num_threads) : loop_(Add16), team_(num_threads) {
#if defined(__x86_64__)
  if (target.starts_with("AVX3")) loop_ = Add64;
  if (target == "AVX2") loop_ = Add32;
#endif
}

void DenseAdd::Run(std::span<const float> grad, std::span<float> sum) {
  const auto parts = static_cast<size_t>(team_.num_threads());
  team_.Run([&](int index) {
    const size_t begin = grad.size() * static_cast<size_t>(index) / parts;
    const size_t end = grad.size() * (static_cast<size_t>(index) + 1) / parts;
    loop_(grad.data() + begin, sum.data() + begin, end - begin);
  });
}

}  // namespace gradlane::perf
