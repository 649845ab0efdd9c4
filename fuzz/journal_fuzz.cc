// A journal without its digest, which is put behind it so that the fields are looked at. Whatever
// is accepted must be written again as the same bytes.
#include <cstdint>

#include "base/assert.h"
#include "delta/journal.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dcr::Bytes bytes(data, data + size);
  const dcr::Digest digest = dcr::blake2b(bytes);
  bytes.insert(bytes.end(), digest.begin(), digest.end());
  const auto journal = dcr::decode_journal(bytes);
  if (journal.ok()) {
    DCR_ASSERT(dcr::encode_journal(*journal) == bytes);
  } else {
    DCR_ASSERT(journal.status().code() == dcr::Code::kCorrupt ||
               journal.status().code() == dcr::Code::kUnsupported);
    DCR_ASSERT(journal.status().message().starts_with("journal: "));
  }
  return 0;
}
