# What every target needs, the flags that it gets, and the optional parts. Configuring prints, for each optional part,
# what was found and what that means. Sets GRADLANE_HAVE_UCX.

# --- What must be there ---

# Stops with the name of Debian's package when a library is missing.
macro(gradlane_require name debian)
  find_package(${name} QUIET ${ARGN})
  if(NOT ${name}_FOUND)
    message(FATAL_ERROR "${name} was not found: install Debian's ${debian}, or name its folder with -D${name}_DIR=...; "
      "tools/test installs all that is needed.")
  endif()
endmacro()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
gradlane_require(PkgConfig pkg-config)
gradlane_require(tl-expected libexpected-dev)
gradlane_require(spdlog libspdlog-dev)
gradlane_require(nlohmann_json nlohmann-json3-dev)
gradlane_require(CLI11 libcli11-dev)
gradlane_require(dnnl libdnnl-dev)
pkg_check_modules(sodium QUIET IMPORTED_TARGET libsodium)
if(NOT sodium_FOUND)
  message(FATAL_ERROR "libsodium was not found: install Debian's libsodium-dev; tools/test installs all that is needed.")
endif()
pkg_check_modules(hwy QUIET IMPORTED_TARGET libhwy)
if(NOT hwy_FOUND)
  message(FATAL_ERROR "Highway was not found: install Debian's libhwy-dev; tools/test installs all that is needed.")
endif()
if(GRADLANE_TESTS)
  gradlane_require(GTest "libgtest-dev and libgmock-dev")
  if(NOT TARGET GTest::gmock)
    message(FATAL_ERROR "GoogleTest was found without GoogleMock: install Debian's libgmock-dev, or leave the tests out with "
      "-DGRADLANE_TESTS=OFF.")
  endif()
endif()

# --- Flags ---

add_library(gradlane_flags INTERFACE)
target_include_directories(gradlane_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_definitions(gradlane_flags INTERFACE GRADLANE_VERSION="${PROJECT_VERSION}")
target_compile_options(gradlane_flags INTERFACE -Wall -Wextra -Wno-missing-field-initializers)
target_link_libraries(gradlane_flags INTERFACE tl::expected Threads::Threads)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Checks GUARDED_BY and its like, which only clang knows.
  target_compile_options(gradlane_flags INTERFACE -Wthread-safety)
elseif(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12 AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 takes `"text" + a_string` for overlapping memory (GCC bug 105651, fixed in 13).
  target_compile_options(gradlane_flags INTERFACE -Wno-restrict)
endif()

if(GRADLANE_SANITIZE)
  string(REPLACE "," ";" gradlane_sanitizers "${GRADLANE_SANITIZE}")
  foreach(sanitizer IN LISTS gradlane_sanitizers)
    if(NOT sanitizer MATCHES "^(address|leak|thread|undefined)$")
      message(FATAL_ERROR "GRADLANE_SANITIZE is '${GRADLANE_SANITIZE}'; say one or several, with commas, of address, leak, "
        "undefined and thread.")
    endif()
  endforeach()
  if("thread" IN_LIST gradlane_sanitizers AND ("address" IN_LIST gradlane_sanitizers OR "leak" IN_LIST gradlane_sanitizers))
    message(FATAL_ERROR "GRADLANE_SANITIZE is '${GRADLANE_SANITIZE}'; thread goes with neither address nor leak.")
  endif()
  set(sanitizer_flags -fsanitize=${GRADLANE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_compile_options(gradlane_flags INTERFACE ${sanitizer_flags})
  target_link_options(gradlane_flags INTERFACE ${sanitizer_flags})
  message(STATUS "Sanitizers: ${GRADLANE_SANITIZE}; the first finding ends the program.")
endif()

find_program(GRADLANE_CCACHE ccache)
mark_as_advanced(GRADLANE_CCACHE)
if(GRADLANE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${GRADLANE_CCACHE})
endif()

# --- Optional parts ---

foreach(part UCX VERBS CUDA)
  set_property(CACHE GRADLANE_${part} PROPERTY STRINGS AUTO ON OFF)
  if(NOT GRADLANE_${part} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "GRADLANE_${part} is '${GRADLANE_${part}}'; say AUTO (take it if it is there), ON (stop if it is not) "
      "or OFF.")
  endif()
endforeach()

set(GRADLANE_HAVE_UCX OFF)
set(only_loopback "Only the loopback fabric is built: --local runs as threads of one process, and --role needs UCX.")
if(GRADLANE_UCX STREQUAL "OFF")
  message(STATUS "UCX: switched off. ${only_loopback}")
else()
  pkg_check_modules(ucx QUIET IMPORTED_TARGET ucx)
  if(ucx_FOUND)
    set(GRADLANE_HAVE_UCX ON)
    message(STATUS "UCX: found, version ${ucx_VERSION}. Processes talk over tcp, shared memory, and InfiniBand or RoCE where "
      "UCX sees it.")
  elseif(GRADLANE_UCX STREQUAL "ON")
    message(FATAL_ERROR "GRADLANE_UCX=ON, and UCX was not found: install Debian's libucx-dev, or say -DGRADLANE_UCX=OFF.")
  else()
    message(STATUS "UCX: not found (Debian's libucx-dev). ${only_loopback}")
  endif()
endif()

if(GRADLANE_VERBS STREQUAL "ON")
  message(FATAL_ERROR "GRADLANE_VERBS=ON: this version has no verbs fabric of its own yet; InfiniBand and RoCE are reached "
    "through UCX. Say AUTO or OFF.")
endif()
if(GRADLANE_HAVE_UCX)
  message(STATUS "verbs: this version has no verbs fabric of its own yet; InfiniBand and RoCE are reached through UCX.")
else()
  message(STATUS "verbs: this version has no verbs fabric of its own yet, and without UCX no InfiniBand or RoCE is used.")
endif()

if(GRADLANE_CUDA STREQUAL "ON")
  message(FATAL_ERROR "GRADLANE_CUDA=ON: this version computes on the CPU only; CUDA kernels and cuDNN layers do not exist "
    "yet. Say AUTO or OFF.")
endif()
message(STATUS "CUDA: this version computes on the CPU only, with oneDNN ${dnnl_VERSION}.")
