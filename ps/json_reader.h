// Reading JSON that others wrote: typed access to the members of an object, keeping the first complaint, so that
// hostile text is refused with a sentence that names the field. Nothing in it throws. Value types; any thread.
#pragma once

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "transport/base/error.h"

namespace gradlane {

// What the user or a peer wrote, fit for a message: short and printable.
inline std::string QuotedForMessage(std::string_view text) {
  std::string out = "'";
  for (char c : text.substr(0, 40)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > 40 ? "...'" : "'");
}

// How deep the brackets of a JSON text go, without parsing it: a text of brackets alone would cost the parser 40 times
// its length in memory. (The parser's own callback, which could tell, takes quadratic time on long arrays of objects.)
inline int JsonNesting(const std::string& text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// Reads the members of one JSON object, keeping the first complaint. Nothing in it throws: every access is typed.
class JsonReader {
 public:
  using Json = nlohmann::json;

  JsonReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) Complain("is not a JSON object");
  }

  template <typename Integer>
  JsonReader& Int(const char* key, Integer* out, Integer low, Integer high) {
    const Json* json = Get(key);
    if (!json) return *this;
    bool fits = false;
    if (const auto* positive = json->get_ptr<const Json::number_unsigned_t*>()) {
      fits = std::cmp_greater_equal(*positive, low) && std::cmp_less_equal(*positive, high);
      if (fits) *out = Integer(*positive);
    } else if (const auto* any = json->get_ptr<const Json::number_integer_t*>()) {
      fits = std::cmp_greater_equal(*any, low) && std::cmp_less_equal(*any, high);
      if (fits) *out = Integer(*any);
    }
    if (!fits) Complain(key, "is not an integer from " + std::to_string(low) + " to " + std::to_string(high));
    return *this;
  }

  // A finite number in [low, high].
  template <typename Float>
  JsonReader& Real(const char* key, Float* out, double low, double high) {
    const Json* json = Get(key);
    if (!json) return *this;
    const double value = json->is_number() ? json->get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(value >= low && value <= high)) {
      Complain(key, "is not a number from " + Json(low).dump() + " to " + Json(high).dump());
    } else {
      *out = Float(value);
    }
    return *this;
  }

  JsonReader& Bool(const char* key, bool* out) {
    if (const Json* json = Get(key)) {
      if (const auto* value = json->get_ptr<const Json::boolean_t*>())
        *out = *value;
      else
        Complain(key, "is neither true nor false");
    }
    return *this;
  }

  JsonReader& String(const char* key, std::string* out) {
    if (const Json* json = Get(key)) {
      if (const auto* value = json->get_ptr<const Json::string_t*>())
        *out = *value;
      else
        Complain(key, "is not a string");
    }
    return *this;
  }

  template <typename Enum, typename Parse>
  JsonReader& Name(const char* key, Enum* out, Parse parse) {
    std::string text;
    String(key, &text);
    if (!error_.empty()) return *this;
    if (Result<Enum> value = parse(text))
      *out = *value;
    else
      Complain(key, "holds an unknown name, " + QuotedForMessage(text));
    return *this;
  }

  const Json* Array(const char* key) {
    const Json* json = Get(key);
    if (json && !json->is_array()) Complain(key, "is not an array");
    return error_.empty() ? json : nullptr;
  }

  // Nothing but what was read may be there.
  JsonReader& NoMore() {
    if (error_.empty() && object_.size() != num_read_) Complain("has a field that this version does not know");
    return *this;
  }

  void Complain(const std::string& what) {
    if (error_.empty()) error_ = where_ + " " + what;
  }
  void Complain(const char* key, const std::string& what) {
    Complain("has a field '" + std::string(key) + "' that " + what);
  }
  const std::string& error() const { return error_; }  // empty: all is well

 private:
  const Json* Get(const char* key) {
    if (!error_.empty()) return nullptr;
    const auto found = object_.find(key);
    if (found == object_.end()) {
      Complain("lacks the field '" + std::string(key) + "'");
      return nullptr;
    }
    ++num_read_;
    return &*found;
  }

  const Json& object_;
  std::string where_;
  std::string error_;
  size_t num_read_ = 0;
};

}  // namespace gradlane
