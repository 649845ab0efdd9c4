// Payloads (fuzz/payload_input.h) against a fixed tensor table. What is accepted is applied.
#include <cstdint>
#include <vector>

#include "base/assert.h"
#include "codec/item_reader.h"
#include "codec/payload.h"
#include "fuzz/payload_input.h"

namespace dcr {
namespace {

constexpr PayloadLimits kLimits = {1u << 20, 1u << 20};
constexpr std::size_t kTensorBytesMax = 1u << 16;

// Every width; one tensor takes overwrites only, one is larger than any item.
std::vector<TensorSpec> fuzz_specs() {
  return {{100, 2, false},
          {64, 4, false},
          {40, 1, true},
          {5000, 1, false},
          {30, 8, false},
          {4096, 2, false},
          {std::uint64_t{1} << 40, 1, false}};
}

// An accepted payload's items are in order, stay within their tensors, and have as many changes as
// they say; applying them writes as many words.
void check_accepted(const Payload& payload, const std::vector<TensorSpec>& specs) {
  DCR_ASSERT(payload.raw_bytes() <= kLimits.raw_bytes_max);
  for (const ItemView& item : payload.items()) {
    const ItemHeader& header = item.header;
    DCR_ASSERT(header.tensor < specs.size());
    const TensorSpec& spec = specs[header.tensor];
    DCR_ASSERT(header.width == spec.width && header.box.end() <= spec.words);
    DCR_ASSERT(!spec.overwrite_only || header.encoding == Encoding::kOverwrite);
    std::uint64_t count = 0;
    std::uint64_t next = 0;
    ItemReader reader(item);
    ChangeBlock block;
    while (reader.next(&block)) {
      for (std::size_t i = 0; i < block.count; ++i) {
        DCR_ASSERT(block.positions[i] >= next);
        next = block.positions[i] + std::uint64_t{1};
      }
      count += block.count;
    }
    DCR_ASSERT(count == header.changes && next <= header.box.words());
    const std::uint64_t bytes = (header.box.end() - header.box.offset) * header.width;
    if (bytes > kTensorBytesMax) continue;
    Bytes words(static_cast<std::size_t>(bytes), 0x5a);
    DCR_ASSERT(apply_item(item, words) == count);
  }
}

}  // namespace
}  // namespace dcr

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using dcr::Code;
  if (size == 0) return 0;
  const dcr::Bytes stored = dcr::payload_input(dcr::Digest{}, data, size);
  const std::vector<dcr::TensorSpec> specs = dcr::fuzz_specs();
  const auto payload = dcr::Payload::read(stored, dcr::Digest{}, specs, dcr::kLimits);
  if (payload.ok()) {
    dcr::check_accepted(*payload, specs);
  } else {
    const Code code = payload.status().code();
    DCR_ASSERT(code == Code::kCorrupt || code == Code::kTooLarge || code == Code::kUnsupported ||
               code == Code::kMismatch);
    DCR_ASSERT(payload.status().message().starts_with("payload: "));
  }
  return 0;
}
