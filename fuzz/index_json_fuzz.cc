// The index of a sharded checkpoint, model.safetensors.index.json.
#include <cstdint>

#include "base/assert.h"
#include "base/limits.h"
#include "tensor/checkpoint.h"
#include "tensor/json.h"
#include "tensor/text.h"

namespace dcr {
namespace {

using WeightMap = std::map<std::string, std::string>;

void check_accepted(const WeightMap& map) {
  std::string json = "{\"weight_map\":{";
  for (const auto& [tensor, file] : map) {
    DCR_ASSERT(valid_utf8(tensor) && tensor.size() <= kTensorNameBytesMax);
    DCR_ASSERT(validate_file_name(file).ok() && file.ends_with(".safetensors"));
    if (json.back() != '{') json += ',';
    json += json_string(tensor) + ":" + json_string(file);
  }
  json += "}}";
  const Result<WeightMap> again =
      parse_index({reinterpret_cast<const std::uint8_t*>(json.data()), json.size()});
  DCR_ASSERT(again.ok() && *again == map);
}

}  // namespace
}  // namespace dcr

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto map = dcr::parse_index({data, size});
  if (map.ok()) {
    dcr::check_accepted(*map);
  } else {
    const dcr::Code code = map.status().code();
    DCR_ASSERT(code == dcr::Code::kCorrupt || code == dcr::Code::kTooLarge);
    DCR_ASSERT(!map.status().message().empty() && dcr::valid_utf8(map.status().message()));
  }
  return 0;
}
