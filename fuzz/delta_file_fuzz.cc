// A delta file, as it is and with the digest of its footer mended; or, if it does not begin as one,
// 8 bytes for a delta's size and a footer. Whatever footer is accepted must survive being written.
#include <cstdint>
#include <string_view>

#include "base/assert.h"
#include "base/limits.h"
#include "delta/delta_file.h"
#include "tensor/text.h"
#include "tests/support/memory_file_system.h"

namespace dcr {
namespace {

void check_refused(const Status& status) {
  DCR_ASSERT(status.code() == Code::kCorrupt || status.code() == Code::kTooLarge ||
             status.code() == Code::kUnsupported || status.code() == Code::kMismatch);
  DCR_ASSERT(!status.message().empty() && valid_utf8(status.message()));
}

void check_footer(ByteSpan bytes, std::uint64_t delta_bytes) {
  const Result<DeltaFooter> footer = decode_footer(bytes, delta_bytes);
  if (!footer.ok()) {
    check_refused(footer.status());
    return;
  }
  const Bytes again = encode_footer(*footer);
  DCR_ASSERT(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
}

void check_delta(ByteSpan bytes) {
  MemoryFileSystem disk;
  disk.put("x.dcr", bytes);
  const Result<DeltaReader> reader = DeltaReader::open(disk, "x.dcr");
  if (!reader.ok()) {
    check_refused(reader.status());
    return;
  }
  const auto executor = make_executor(1);
  const Work work{&disk, executor.get(), 256 * kMiB, false, nullptr, {}};
  const Result<std::vector<ItemPlace>> places = reader->validate_all(work);
  if (!places.ok()) check_refused(places.status());
}

// The delta with the digest in its trailer that fits its footer, if it has room for both.
Bytes mended(ByteSpan bytes) {
  Bytes made(bytes.begin(), bytes.end());
  if (made.size() < kDeltaPrologueBytes + kDeltaTrailerBytes) return made;
  const std::size_t trailer = made.size() - kDeltaTrailerBytes;
  const std::uint64_t offset = load_little<std::uint64_t>(made.data() + trailer);
  if (offset < kDeltaPrologueBytes || offset > trailer) return made;
  Blake2b hash;
  hash.update(ByteSpan(made).first(kDeltaPrologueBytes));
  hash.update(ByteSpan(made).subspan(static_cast<std::size_t>(offset),
                                     trailer + 24 - static_cast<std::size_t>(offset)));
  const Digest digest = hash.finish();
  std::copy(digest.begin(), digest.end(), made.begin() + static_cast<std::ptrdiff_t>(trailer + 24));
  return made;
}

}  // namespace
}  // namespace dcr

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dcr::ByteSpan input(data, size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.starts_with("DCRDELTA")) {
    dcr::check_delta(input);
    dcr::check_delta(dcr::mended(input));
    return 0;
  }
  dcr::ByteReader reader(input);
  const std::uint64_t delta_bytes = reader.u64();
  dcr::check_footer(input.subspan(reader.position()), delta_bytes);
  return 0;
}
