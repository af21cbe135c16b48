// Runs a fuzz target over files instead of a fuzzer, so that the corpus is a test under any compiler.
//   replay FILE_OR_FOLDER...
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes);

namespace {

namespace fs = std::filesystem;

// Inputs end where their allocation ends, so that a sanitizer sees a read beyond it.
bool RunFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "%s cannot be read\n", path.c_str());
    return false;
  }
  std::vector<uint8_t> input((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  input.shrink_to_fit();
  LLVMFuzzerTestOneInput(input.data(), input.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  size_t num_files = 0;
  for (int i = 1; i < argc; ++i) {
    if (!fs::is_directory(argv[i])) {
      if (!RunFile(argv[i])) return 1;
      ++num_files;
      continue;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      if (!RunFile(entry.path())) return 1;
      ++num_files;
    }
  }
  if (num_files == 0) {
    std::fprintf(stderr, "no files to replay\n");
    return 1;
  }
  std::printf("replayed %zu files\n", num_files);
  return 0;
}
