# Helpers so that each folder's CMakeLists.txt reads as its row of the layer table.
include_guard(GLOBAL)

# dcr_library(<folder> SOURCES … DEPS …): the static library dcr_<folder>, all warnings on.
function(dcr_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(dcr_${folder} STATIC ${ARG_SOURCES})
  target_include_directories(dcr_${folder} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(dcr_${folder} PUBLIC ${ARG_DEPS} PRIVATE dcr_warnings)
endfunction()

# dcr_test(<name> SOURCES … DEPS … [LABELS …]): one GoogleTest program, run as one ctest test named <name>.
function(dcr_test name)
  if(NOT DCR_DEVELOPER_MODE)
    return()
  endif()
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} dcr_warnings GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if(ARG_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()
