// The secret of a job, which every rank has to know. Stateless; any thread.
#pragma once

#include <string>

#include "transport/base/error.h"

namespace gradlane {

// kInvalidArgument if it is too short or too long; `where` begins the sentence.
Result<void> CheckSecret(const std::string& secret, const std::string& where);

// Reads a secret from a file: its first line, 16 to 4096 bytes. kInvalidArgument if it is shorter or the file is open
// to other users; kUnavailable if there is no such file.
Result<std::string> ReadSecretFile(const std::string& path);

// A fresh one: 32 random bytes as 64 hexadecimal digits.
std::string MakeSecret();

}  // namespace gradlane
