# Everything comes from the distribution's packages; tools/setup.sh installs them.
include_guard(GLOBAL)

# Compile flags. They stand before add_subdirectory so that every folder gets them.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Assertions stay on in release: DCR_ASSERT always, and those of the libraries' headers too.
foreach(type RELEASE RELWITHDEBINFO MINSIZEREL)
  string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_${type} "${CMAKE_CXX_FLAGS_${type}}")
endforeach()

add_library(dcr_warnings INTERFACE)
target_compile_options(dcr_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 and 13 see these in their own headers where std::vector is compared or copied at -O3
  # (GCC bug 105651 and its kin); AddressSanitizer looks for the real ones.
  target_compile_options(dcr_warnings INTERFACE
    -Wno-stringop-overread -Wno-stringop-overflow -Wno-array-bounds -Wno-restrict)
endif()
if(DCR_DEVELOPER_MODE)
  target_compile_options(dcr_warnings INTERFACE -Werror)
endif()
if(DCR_SIMULATION)
  add_compile_definitions(DCR_SIMULATION)
endif()
if(DCR_SANITIZE)
  add_compile_options(-fsanitize=${DCR_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DCR_SANITIZE})
endif()
if(DCR_FUZZ)
  # Coverage in the libraries; the fuzz targets themselves link libFuzzer's main.
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()

# Compilers' caches speed up the second build; ccache needs to be told about precompiled headers.
find_program(DCR_CCACHE ccache)
if(DCR_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${DCR_CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  endif()
endif()

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
if("control" IN_LIST DCR_FOLDERS)
  pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)
endif()
if("channel" IN_LIST DCR_FOLDERS)
  pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)
endif()
find_package(fmt REQUIRED)

if(DCR_DEVELOPER_MODE)
  enable_testing()
  if(CMAKE_CROSSCOMPILING)
    # Debian's libgtest.a can be installed for one architecture at a time; its sources are there.
    set(INSTALL_GTEST OFF)
    add_subdirectory(/usr/src/googletest ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
  else()
    find_package(GTest REQUIRED)
  endif()
endif()
