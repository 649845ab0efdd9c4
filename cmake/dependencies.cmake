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
  # AddressSanitizer reports what is read or written through a null pointer;
  # UndefinedBehaviorSanitizer would check it at each use of any pointer, which is a tenth of what
  # the compiler does. GNU's linker takes four times as long for these programs.
  add_compile_options(-fsanitize=${DCR_SANITIZE} -fno-sanitize=null -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DCR_SANITIZE} -fuse-ld=lld)
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

# dcr_needs(<found> <library> <package>): ends with what to install where <found> is false.
function(dcr_needs found library package)
  if(NOT found)
    message(FATAL_ERROR "${library} was not found: install the Debian package ${package} "
      "(tools/setup.sh installs all that is needed)")
  endif()
endfunction()

# Macros: what they find belongs to the caller's folder.
macro(dcr_find_package name package)
  find_package(${name} QUIET)
  dcr_needs("${${name}_FOUND}" ${name} ${package})
endmacro()
macro(dcr_find_module prefix module package)
  pkg_check_modules(${prefix} QUIET IMPORTED_TARGET ${module})
  dcr_needs("${${prefix}_FOUND}" ${module} ${package})
endmacro()

dcr_find_package(PkgConfig pkg-config)
find_package(Threads REQUIRED)
dcr_find_module(ZSTD libzstd libzstd-dev)
dcr_find_module(SODIUM libsodium libsodium-dev)
dcr_find_module(XXHASH libxxhash libxxhash-dev)
dcr_find_module(HWY libhwy libhwy-dev)
if("control" IN_LIST DCR_FOLDERS)
  dcr_find_module(SQLITE sqlite3 libsqlite3-dev)
endif()
if("channel" IN_LIST DCR_FOLDERS)
  dcr_find_module(ZMQ libzmq libzmq3-dev)
endif()
dcr_find_package(fmt libfmt-dev)

if(DCR_DEVELOPER_MODE)
  enable_testing()
  if(CMAKE_CROSSCOMPILING)
    # Debian's libgtest.a can be installed for one architecture at a time; its sources are there.
    set(INSTALL_GTEST OFF)
    add_subdirectory(/usr/src/googletest ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
  else()
    dcr_find_package(GTest libgtest-dev)
  endif()
endif()
