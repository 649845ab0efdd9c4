# Helpers so that each folder's CMakeLists.txt reads as its row of the layer table.
include_guard(GLOBAL)

# dcr_library(<folder> SOURCES … DEPS …): the static library dcr_<folder>, all warnings on.
function(dcr_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(dcr_${folder} STATIC ${ARG_SOURCES})
  target_include_directories(dcr_${folder} PUBLIC
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(dcr_${folder} PUBLIC ${ARG_DEPS} PRIVATE dcr_warnings)
endfunction()

# What the presets tsan, arm64 and fuzz build.
add_custom_target(dcr_thread_tests)
add_custom_target(dcr_arm64_tests)
add_custom_target(dcr_fuzzers)

# The precompiled header of all test programs: GoogleTest is most of what a test compiles.
if(DCR_DEVELOPER_MODE)
  file(WRITE ${CMAKE_BINARY_DIR}/generated/test_headers.cc.in "// Carries the precompiled header.\n")
  configure_file(${CMAKE_BINARY_DIR}/generated/test_headers.cc.in
    ${CMAKE_BINARY_DIR}/generated/test_headers.cc COPYONLY)
  add_library(dcr_test_headers OBJECT ${CMAKE_BINARY_DIR}/generated/test_headers.cc)
  target_link_libraries(dcr_test_headers PRIVATE dcr_warnings GTest::gtest)
  target_precompile_headers(dcr_test_headers PRIVATE
    <gtest/gtest.h> <algorithm> <functional> <map> <memory> <string> <vector>)
endif()

# dcr_test(<name> SOURCES … DEPS … [LABELS …] [TIMEOUT seconds] [SERIAL]): one GoogleTest program,
# run as one ctest test named <name>. LABELS threads: also run under ThreadSanitizer; the tests of
# base, simd and codec get the label arm64, being what differs by machine. The macro DCR_CAMPAIGN
# tells it by how much to thin out its random campaigns.
function(dcr_test name)
  if(NOT DCR_DEVELOPER_MODE)
    return()
  endif()
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} dcr_warnings GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE DCR_CAMPAIGN=${DCR_CAMPAIGN})
  target_precompile_headers(${name} REUSE_FROM dcr_test_headers)
  add_test(NAME ${name} COMMAND ${name})
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "/src/(base|simd|codec)$")
    list(APPEND ARG_LABELS arm64)
    add_dependencies(dcr_arm64_tests ${name})
  endif()
  if(threads IN_LIST ARG_LABELS)
    add_dependencies(dcr_thread_tests ${name})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if(ARG_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()
