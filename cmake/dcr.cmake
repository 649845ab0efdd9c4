# Helpers so that each folder's CMakeLists.txt reads as its row of the layer table.
include_guard(GLOBAL)

# dcr_headers(<name> LIBRARIES … HEADERS …): the precompiled headers <name>, which targets of the same
# flags take by REUSE_FROM.
function(dcr_headers name)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;HEADERS" ${ARGN})
  set(source ${CMAKE_BINARY_DIR}/generated/${name}.cc)
  file(GENERATE OUTPUT ${source} CONTENT "// Carries the precompiled header.\n")
  add_library(${name} OBJECT ${source})
  target_link_libraries(${name} PRIVATE dcr_warnings ${ARG_LIBRARIES})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()

# What most files of the libraries include; it is most of what they compile.
set(DCR_STANDARD_HEADERS <algorithm> <array> <cstring> <functional> <map> <memory> <optional> <span>
  <string> <utility> <vector>)
dcr_headers(dcr_standard_headers HEADERS ${DCR_STANDARD_HEADERS})
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  # Those of one level of optimisation cannot be read at another.
  set(DCR_OPTIMIZED_HEADERS dcr_optimized_headers)
  dcr_headers(${DCR_OPTIMIZED_HEADERS} HEADERS ${DCR_STANDARD_HEADERS})
  target_compile_options(${DCR_OPTIMIZED_HEADERS} PRIVATE -O1)
else()
  set(DCR_OPTIMIZED_HEADERS dcr_standard_headers)
endif()

# dcr_library(<folder> SOURCES … DEPS … [OPTIMIZED]): the static library dcr_<folder>, all warnings
# on. OPTIMIZED: where sanitizers look for faults too, for its loops go over weights; most other code
# takes longer to optimise than to run there.
function(dcr_library folder)
  cmake_parse_arguments(ARG "OPTIMIZED" "" "SOURCES;DEPS" ${ARGN})
  add_library(dcr_${folder} STATIC ${ARG_SOURCES})
  if(ARG_OPTIMIZED)
    target_compile_options(dcr_${folder} PRIVATE $<$<CONFIG:Debug>:-O1>)
    target_precompile_headers(dcr_${folder} REUSE_FROM ${DCR_OPTIMIZED_HEADERS})
  else()
    target_precompile_headers(dcr_${folder} REUSE_FROM dcr_standard_headers)
  endif()
  target_include_directories(dcr_${folder} PUBLIC
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(dcr_${folder} PUBLIC ${ARG_DEPS} PRIVATE dcr_warnings)
endfunction()

# What the presets tsan, arm64, fuzz and sim build.
add_custom_target(dcr_thread_tests)
add_custom_target(dcr_arm64_tests)
add_custom_target(dcr_fuzzers)
add_custom_target(dcr_simulation)

# The same for all test programs: GoogleTest is most of what a test compiles. What the tests
# themselves do is optimised less than what they test: most of them take longer to compile than to
# run.
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(DCR_TEST_OPTIMIZATION -O0)
else()
  set(DCR_TEST_OPTIMIZATION -O1)
endif()
if(DCR_DEVELOPER_MODE)
  dcr_headers(dcr_test_headers
    LIBRARIES GTest::gtest
    HEADERS <gtest/gtest.h> <algorithm> <functional> <map> <memory> <string> <vector>)
  target_compile_options(dcr_test_headers PRIVATE ${DCR_TEST_OPTIMIZATION})
endif()

# dcr_test(<name> SOURCES … DEPS … [LABELS …] [TIMEOUT seconds] [LONG] [OPTIMIZED]): GoogleTest
# suites, run as one ctest test named <name>. The tests of a folder are one program, <folder>_tests
# (those of tests/ are system_tests), since most of a test's cost is to compile GoogleTest and link;
# where OPTIMIZED (its own loops are most of its time) the program is <name>. LONG: starts before the
# others. LABELS threads: also run under ThreadSanitizer; LABELS sim: part of preset sim; the tests
# of base, simd and codec get the label arm64, being what differs by machine. The macro DCR_CAMPAIGN
# tells it by how much to thin out its random campaigns, DCR_SOURCE_DIR where the repository is.
function(dcr_test name)
  if(NOT DCR_DEVELOPER_MODE)
    return()
  endif()
  cmake_parse_arguments(ARG "LONG;OPTIMIZED" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(DCR_SANITIZE STREQUAL "thread" AND NOT threads IN_LIST ARG_LABELS)
    return()
  endif()
  set(program ${name})
  set(arguments)
  if(NOT ARG_OPTIMIZED)
    get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
    if(folder STREQUAL "tests")
      set(folder system)
    endif()
    set(program ${folder}_tests)
    dcr_suites(suites ${program} ${ARG_SOURCES})
    list(TRANSFORM suites REPLACE "(.+)" "\\1.*:*/\\1.*")
    list(JOIN suites ":" suites)
    set(arguments --gtest_filter=${suites})
  endif()
  if(NOT TARGET ${program})
    dcr_test_program(${program} "${ARG_OPTIMIZED}")
  endif()
  target_sources(${program} PRIVATE ${ARG_SOURCES})
  target_link_libraries(${program} PRIVATE ${ARG_DEPS})
  add_test(NAME ${name} COMMAND ${program} ${arguments})
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "/src/(base|simd|codec)$")
    list(APPEND ARG_LABELS arm64)
    add_dependencies(dcr_arm64_tests ${program})
  endif()
  if(threads IN_LIST ARG_LABELS)
    add_dependencies(dcr_thread_tests ${program})
  endif()
  if(sim IN_LIST ARG_LABELS)
    add_dependencies(dcr_simulation ${program})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if(ARG_LONG)
    set_tests_properties(${name} PROPERTIES COST 100)
  endif()
endfunction()

# A program of tests without any yet.
function(dcr_test_program program optimized)
  add_executable(${program})
  target_link_libraries(${program} PRIVATE dcr_warnings GTest::gtest_main)
  target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${program} PRIVATE
    DCR_CAMPAIGN=${DCR_CAMPAIGN} DCR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  if(CMAKE_CROSSCOMPILING)
    target_compile_definitions(${program} PRIVATE DCR_EMULATED)
  endif()
  if(optimized)
    target_compile_options(${program} PRIVATE $<$<CONFIG:Debug>:-O1>)
  else()
    target_precompile_headers(${program} REUSE_FROM dcr_test_headers)
    target_compile_options(${program} PRIVATE ${DCR_TEST_OPTIMIZATION})
  endif()
endfunction()

# The suites that the sources define or instantiate, for the filter of a ctest test; read again when
# they change. A suite in two ctest tests of one program would run twice, and a source without one
# never.
function(dcr_suites out program)
  set(suites)
  foreach(source IN LISTS ARGN)
    if(NOT source MATCHES "_test\\.cc$")
      continue()
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    set(instantiate "INSTANTIATE_TEST_SUITE_P\\(")
    file(STRINGS ${source} lines REGEX
      "^(${instantiate}[A-Za-z0-9]+, [A-Za-z0-9]|(TEST|TEST_F|TEST_P|RC_GTEST_PROP)\\([A-Za-z0-9])")
    file(STRINGS ${source} broken REGEX "^${instantiate}([A-Za-z0-9]+,)?$")
    if(broken OR NOT lines)
      message(FATAL_ERROR "${CMAKE_CURRENT_SOURCE_DIR}/${source}: no tests, or a suite that is not "
        "on the line of its macro")
    endif()
    # Of a line only the suite: what follows may hold a list's separators.
    list(TRANSFORM lines REPLACE
      "^(${instantiate}[A-Za-z0-9]+, |[A-Z_]+\\()([A-Za-z0-9]+).*" "\\2")
    list(APPEND suites ${lines})
  endforeach()
  list(REMOVE_DUPLICATES suites)
  get_property(others GLOBAL PROPERTY dcr_suites_${program})
  foreach(suite IN LISTS suites)
    if(suite IN_LIST others)
      message(FATAL_ERROR "${suite} is in two tests of ${program}: make them one dcr_test()")
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY dcr_suites_${program} ${suites})
  set(${out} ${suites} PARENT_SCOPE)
endfunction()
