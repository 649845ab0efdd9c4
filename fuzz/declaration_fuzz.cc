// A rank's declaration. Whatever is read must be written again as the same bytes; a declaration of
// one rank, about tensors that fit into memory, goes on to the geometry.
#include <algorithm>
#include <cstdint>
#include <span>

#include "api/owner_tasks.h"
#include "base/assert.h"
#include "dcr/owner.h"

namespace {

constexpr std::uint64_t kElementsTried = 1'000'000;

bool small(const dcr::RankDeclaration& declaration) {
  std::uint64_t elements = 0;
  for (const dcr::CanonicalTensor& tensor : declaration.tensors) {
    elements += dcr::tensor_elements(tensor.shape).value();
    if (elements > kElementsTried) return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> bytes(data, size);
  const auto declaration = dcr::decode_declaration(bytes);
  if (!declaration.ok()) {
    DCR_ASSERT(!declaration.status().message().empty());
    return 0;
  }
  const auto again = dcr::encode_declaration(*declaration);
  DCR_ASSERT(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  if (declaration->ranks != 1 || !small(*declaration)) return 0;
  const auto agreed = dcr::agree_on_tasks(std::span(&*declaration, 1));
  if (!agreed.ok()) return 0;
  dcr::HostStorages memory(declaration->tasks.size());
  dcr::EmbeddedOwnerOptions options;
  options.threads = 1;
  const auto owner = dcr::EmbeddedOwner::create(std::span(&bytes, 1), 0, memory, options);
  if (owner.ok()) DCR_ASSERT((*owner)->boxes().size() == 1);
  return 0;
}
