// Reading one option's value from text. Each returns the value or a sentence (kInvalidArgument) that says what is
// possible. Stateless; any thread.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "transport/base/error.h"

namespace gradlane::option_values {

// What the user wrote, fit for a message.
inline std::string Quoted(std::string_view text) {
  std::string out = "'";
  for (char c : text.substr(0, 60)) out += (c >= 0 && c < ' ') || c == 127 ? '?' : c;  // UTF-8 passes
  return out + (text.size() > 60 ? "...'" : "'");
}

inline tl::unexpected<Error> Refuse(std::string_view text, const std::string& expected) {
  return Fail(ErrorCode::kInvalidArgument, Quoted(text) + " is not " + expected + ".");
}

template <typename T>
bool ReadWhole(std::string_view text, T* out) {
  const auto [stopped, status] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return status == std::errc{} && stopped == text.data() + text.size();
}

template <typename Integer>
Result<Integer> Whole(std::string_view text, Integer low, Integer high) {
  Integer value = 0;
  if (ReadWhole(text, &value) && value >= low && value <= high) return value;
  return Refuse(text, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
}

std::string Shortest(double value);

// Finite, in [low, high].
inline Result<double> Real(std::string_view text, double low, double high) {
  double value = 0;
  if (ReadWhole(text, &value) && value >= low && value <= high) return value;
  return Refuse(text, "a number from " + Shortest(low) + " to " + Shortest(high));
}

// "65536", "64K" or "1M"; K and M are 2^10 and 2^20.
inline Result<uint64_t> Bytes(std::string_view text, uint64_t low, uint64_t high) {
  const char unit = text.empty() ? ' ' : text.back();
  const int shift = unit == 'K' || unit == 'k' ? 10 : unit == 'M' || unit == 'm' ? 20 : 0;
  uint64_t value = 0;
  if (ReadWhole(text.substr(0, text.size() - (shift != 0)), &value) && value <= high >> shift &&
      value << shift >= low) {
    return value << shift;
  }
  return Refuse(
      text, "a number of bytes from " + std::to_string(low) + " to " + std::to_string(high) + " (64K and 1M also do)");
}

inline Result<bool> OnOff(std::string_view text) {
  if (text == "on" || text == "true") return true;
  if (text == "off" || text == "false") return false;
  return Fail(ErrorCode::kInvalidArgument, Quoted(text) + " is neither on nor off.");
}

inline Result<std::string> NotEmpty(const std::string& text, const std::string& what) {
  if (!text.empty()) return text;
  return Refuse(text, what);
}

template <size_t N>
Result<std::string> OneOf(const std::string& text, const std::string& what, const std::array<const char*, N>& names) {
  std::string list;
  for (size_t i = 0; i < N; ++i) {
    if (text == names[i]) return text;
    list += (i == 0 ? "" : i + 1 == N ? " or " : ", ") + std::string(names[i]);
  }
  return Fail(ErrorCode::kInvalidArgument, Quoted(text) + " is not " + what + ": say " + list + ".");
}

inline std::string Shortest(double value) {
  char text[32];
  const auto [end, status] = std::to_chars(text, text + sizeof text, value);
  return status == std::errc{} ? std::string(text, end) : "?";
}

// The double that looks like the float: 0.05 for 0.05f, for output.
inline double AsWritten(float value) {
  char text[32];
  const auto [end, status] = std::to_chars(text, text + sizeof text, value);
  double result = value;
  if (status == std::errc{}) ReadWhole(std::string_view(text, size_t(end - text)), &result);
  return result;
}

}  // namespace gradlane::option_values
