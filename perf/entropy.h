// The least bytes that an order-0 code could take for a tensor that FEC quantised: what its own bytes are compared
// with. For N elems of which S survive, d = S / N:
//
//   H = N * h(d) + S * H(signs) + S * H(codes)   bits
//
// h(d) = -d log2 d - (1 - d) log2(1 - d) is for the positions; H(signs) and H(codes) are the entropies of the signs and
// of the exponents, as they were counted over the whole tensor. Stateless; any thread.
#pragma once

#include <cstdint>
#include <span>

namespace gradlane::perf {

// Bits a symbol, of symbols that occur so many times each; 0 for none.
double Order0Entropy(std::span<const uint64_t> counts);

// decoded: (N,) fp32, zeros and signed powers of two, as fec::Decode writes them. H in bytes.
double QuantisedEntropyBytes(std::span<const float> decoded);

}  // namespace gradlane::perf
