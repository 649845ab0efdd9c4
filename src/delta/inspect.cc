#include "delta/inspect.h"

#include <algorithm>

namespace dcr {
namespace {

std::uint64_t stream_bytes(const ItemView& item) {
  std::uint64_t bytes = item.locations.size() + item.gap_low.size() + item.symbols.size() +
                        item.escapes.size() + item.extra.size();
  for (const ByteSpan plane : item.planes) bytes += plane.size();
  return bytes;
}

}  // namespace

std::string group_name(const std::string& tensor) {
  std::string group;
  std::size_t start = 0;
  while (true) {
    const std::size_t dot = std::min(tensor.find('.', start), tensor.size());
    const std::string part = tensor.substr(start, dot - start);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    group += number ? "*" : part;
    if (dot == tensor.size()) return group;
    group += '.';
    start = dot + 1;
  }
}

Result<DeltaContents> read_contents(const Work& work, const DeltaReader& delta) {
  DeltaContents contents;
  const std::vector<DeltaTensor>& tensors = delta.footer().tensors;
  std::vector<TensorGroup*> group_of(tensors.size(), nullptr);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].target.present) continue;
    TensorGroup& group = contents.groups[group_name(tensors[i].name)];
    DCR_ASSIGN(const std::uint64_t elements, tensor_elements(tensors[i].target.shape));
    ++group.tensors;
    group.elements += elements;
    group_of[i] = &group;
  }
  const auto visit = [&](const Payload& payload) {
    for (const StreamEntry& entry : payload.streams()) {
      StreamTotals& totals = contents.streams[{entry.kind, entry.width}];
      totals.raw_bytes += entry.raw_bytes;
      totals.stored_bytes += entry.stored_bytes;
    }
    for (const ItemView& item : payload.items()) {
      TensorGroup& group = *group_of[item.header.tensor];
      ++contents.items;
      ++contents.encodings[item.header.encoding];
      group.raw_bytes += stream_bytes(item);
      if (tensors[item.header.tensor].common()) group.changed += item.header.changes;
    }
  };
  if (Result<std::vector<ItemPlace>> places = delta.validate_all(work, visit); !places.ok()) {
    return places.status();
  }
  return contents;
}

}  // namespace dcr
