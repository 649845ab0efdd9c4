#include "tests/control_conformance.h"

#include "tests/control_membership_conformance.h"

namespace dcr {

INSTANTIATE_TEST_SUITE_P(Memory, ControlConformanceTest, ::testing::Values(MakeControlStore{[] {
                           return std::unique_ptr<ControlStore>(std::make_unique<MemoryStore>());
                         }}));
INSTANTIATE_TEST_SUITE_P(Sqlite, ControlConformanceTest, ::testing::Values(MakeControlStore{[] {
                           return std::unique_ptr<ControlStore>(std::make_unique<SqliteStore>());
                         }}));

}  // namespace dcr
