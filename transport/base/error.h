// Errors are values: Result<T> carries either a T or an Error that already is the sentence for the user.
// Owned by value, safe to move between threads. Whoever first knows that something failed makes the Error, once;
// everyone above passes it on unchanged.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace gradlane {

enum class ErrorCode {
  kInvalidArgument,  // the user or a caller asked for something that cannot be: exit code 2
  kUnavailable,      // a backend, device or file that was asked for by name is missing: exit code 2
  kMalformed,        // bytes from a peer or a file that do not follow the format
  kUnauthenticated,  // a peer that does not know the job's secret
  kMismatch,         // two ranks disagree on version, layout or count
  kPeerFailed,       // a rank died, hung or left early
  kTimeout,          // nothing happened within the stated time
  kSystem,           // the operating system or a library refused; native_code says how
};

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kSystem;
  std::string message;   // one sentence: what, where, what to do
  int native_code = 0;   // errno, ucs_status_t, ...; 0 where there is none
};

template <typename T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> Fail(ErrorCode code, std::string message, int native_code = 0) {
  return tl::unexpected<Error>(Error{code, std::move(message), native_code});
}

// What a process exits with: 2 for what the user can correct on the command line, 1 for what went wrong on the way.
inline int ExitCode(const Error& error) {
  return error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kUnavailable ||
                 error.code == ErrorCode::kUnauthenticated || error.code == ErrorCode::kMismatch
             ? 2
             : 1;
}

}  // namespace gradlane

#define GRADLANE_CONCAT_INNER(a, b) a##b
#define GRADLANE_CONCAT(a, b) GRADLANE_CONCAT_INNER(a, b)

// Passes an error up: TRY(Expression()) for Result<void>, ASSIGN_OR_RETURN(auto x, Expression()) for the rest.
#define TRY(expression)                                              \
  do {                                                               \
    if (auto try_result = (expression); !try_result)                 \
      return tl::unexpected<::gradlane::Error>(try_result.error());  \
  } while (false)

#define ASSIGN_OR_RETURN(target, expression) \
  ASSIGN_OR_RETURN_INNER(GRADLANE_CONCAT(result_, __LINE__), target, expression)
#define ASSIGN_OR_RETURN_INNER(result, target, expression)                              \
  auto result = (expression);                                                           \
  if (!result) return tl::unexpected<::gradlane::Error>(std::move(result).error());     \
  target = std::move(*result)

// For our own bugs only, never for what the world sends.
#define CHECK(condition)                                                                    \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition);    \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)
