// Which kernels run. The choice is made once per process, so each is made in a child.
#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "simd/kernels.h"
#include "tests/support/forked.h"

namespace dcr {
namespace {

std::string select_and_tell() {
  const Result<const Kernels*> selected = select_kernels();
  if (!selected.ok()) {
    return std::string(code_name(selected.status().code())) + ": " + selected.status().message();
  }
  return &kernels() == *selected ? (*selected)->name : "kernels() is another";
}

std::string supported_names() {
  std::string names;
  for (const Kernels* one : supported_kernels()) {
    names += (names.empty() ? "" : ", ") + std::string(one->name);
  }
  return names;
}

TEST(SelectKernels, SupportedSetsHaveDistinctNamesScalarFirst) {
  const std::vector<const Kernels*> all = supported_kernels();
  std::printf("kernel sets of this CPU and build: %s\n", supported_names().c_str());
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all[0], &scalar_kernels());
  EXPECT_STREQ(all[0]->name, "scalar");
  std::set<std::string> names;
  for (const Kernels* one : all) names.insert(one->name);
  EXPECT_EQ(names.size(), all.size());
}

TEST(SelectKernels, BestOfTheVectorSetsByDefault) {
  if (!can_fork()) GTEST_SKIP() << "no children under emulation";
  const std::vector<const Kernels*> all = supported_kernels();
  const std::string best = all[all.size() > 1 ? 1 : 0]->name;
  const std::string chosen = run_with_isa(nullptr, select_and_tell);
  std::printf("in use by default: %s\n", chosen.c_str());
  EXPECT_EQ(chosen, best);
  EXPECT_EQ(run_with_isa("", select_and_tell), best);
}

TEST(SelectKernels, EachSupportedOneCanBeForced) {
  if (!can_fork()) GTEST_SKIP() << "no children under emulation";
  for (const Kernels* one : supported_kernels()) {
    const std::string chosen = run_with_isa(one->name, select_and_tell);
    std::printf("DCR_FORCE_ISA=%s ran %s\n", one->name, chosen.c_str());
    EXPECT_EQ(chosen, one->name);
  }
}

TEST(SelectKernels, AnUnsupportedOneIsRefusedNamingTheSupportedOnes) {
  if (!can_fork()) GTEST_SKIP() << "no children under emulation";
  for (const std::string forced : {"Z14", "avx2", "AVX2 ", "scalar,"}) {
    EXPECT_EQ(run_with_isa(forced.c_str(), select_and_tell),
              "unsupported: DCR_FORCE_ISA=" + forced +
                  " is not supported by this CPU and build; supported: " + supported_names());
  }
}

}  // namespace
}  // namespace dcr
