# Finds oneDNN: dnnl_FOUND, dnnl_VERSION and the target DNNL::dnnl.
#
# Used in place of the dnnl-config.cmake that oneDNN installs, since Debian's asks for the OpenCL headers, which neither the
# library's headers nor its users on the CPU need, and which its package does not depend on.
find_path(dnnl_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(dnnl_LIBRARY dnnl)
mark_as_advanced(dnnl_INCLUDE_DIR dnnl_LIBRARY)

set(dnnl_VERSION)
if(dnnl_INCLUDE_DIR AND EXISTS ${dnnl_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h)
  file(STRINGS ${dnnl_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h dnnl_numbers
    REGEX "^#define DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  list(TRANSFORM dnnl_numbers REPLACE "^.* ([0-9]+).*$" "\\1")
  list(JOIN dnnl_numbers "." dnnl_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(dnnl REQUIRED_VARS dnnl_LIBRARY dnnl_INCLUDE_DIR VERSION_VAR dnnl_VERSION)

if(dnnl_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES
    IMPORTED_LOCATION ${dnnl_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${dnnl_INCLUDE_DIR})
endif()
