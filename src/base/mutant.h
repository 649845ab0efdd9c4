// Faults that are built in on purpose, to show that the simulator finds them (docs/TESTING.md
// "Mutants"). `if (DCR_MUTANT("name")) …` does the wrong thing in a simulator that was told to run
// that mutant; in every other build it is a constant false and leaves no trace.
#pragma once

#ifdef DCR_SIMULATION

#include <cstddef>
#include <string_view>

#include "base/mutant_list.h"

namespace dcr {

inline constexpr std::size_t kMutantCount = sizeof(kMutants) / sizeof(kMutants[0]);
inline constexpr std::size_t kNoMutant = kMutantCount;

// By its place in kMutants. Not on the list: no constant expression, so it does not compile.
consteval std::size_t mutant_number(std::string_view name) {
  std::size_t number = 0;
  while (kMutants[number].name != name) ++number;
  return number;
}

// Set by the simulator only, while no machine runs.
inline std::size_t chosen_mutant = kNoMutant;

}  // namespace dcr

#define DCR_MUTANT(name) (::dcr::chosen_mutant == ::dcr::mutant_number(name))

#else

#define DCR_MUTANT(name) false

#endif
