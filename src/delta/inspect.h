// What is in a delta.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "codec/payload.h"
#include "dcr/options.h"
#include "dcr/status.h"
#include "delta/delta_file.h"
#include "delta/work.h"

namespace dcr {

struct StreamTotals {
  std::uint64_t raw_bytes = 0, stored_bytes = 0;
};

// Tensors of the target whose names differ only in numbers.
struct TensorGroup {
  std::uint64_t tensors = 0, elements = 0;
  std::uint64_t changed = 0;    // words of common tensors with an entry
  std::uint64_t raw_bytes = 0;  // of its items in the streams, before compression; their records
                                // in the stream of items are not counted
};

struct DeltaContents {
  std::uint64_t items = 0;
  std::map<Encoding, std::uint64_t> encodings;                      // items of each
  std::map<std::pair<StreamKind, unsigned>, StreamTotals> streams;  // by kind and width
  std::map<std::string, TensorGroup> groups;                        // by group_name
};

// The name with "*" for each part between dots that is a number: "model.layers.*.mlp.up.weight".
std::string group_name(const std::string& tensor);

// Validates the delta whole and sums up what is in it. Errors: DeltaReader::validate_all's.
Result<DeltaContents> read_contents(const Work& work, const DeltaReader& delta);

}  // namespace dcr
