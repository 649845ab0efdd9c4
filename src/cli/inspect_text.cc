#include "cli/inspect_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "cli/text.h"

namespace dcr {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string header_text(const InspectResult& result) {
  std::string encodings;
  for (const auto& [name, items] : result.encodings) {
    encodings += fmt::format("{}{} {}", encodings.empty() ? "" : ", ", name, count_text(items));
  }
  Rows rows = {
      {"format version", fmt::format("{}", result.format_version)},
      {"size", fmt::format("{} in {}, {}", bytes_text(result.delta_bytes),
                           counted(result.payloads, "payload"), counted(result.items, "item"))},
      {"base", printable(result.base_identity)},
      {"target", printable(result.target_identity)},
      {"tensors in both",
       fmt::format("{}, {}, {} changed ({})", counted(result.tensors, "tensor"),
                   counted(result.elements, "element"), count_text(result.changed),
                   percent_text(result.changed, result.elements))},
  };
  if (!encodings.empty()) rows.push_back({"items by encoding", encodings});
  return "Delta\n" + table_text(rows, {1});
}

std::string streams_text(const InspectResult& result) {
  if (result.streams.empty()) return {};
  Rows rows = {{"stream", "width", "raw", "stored", "share"}};
  std::uint64_t total = 0;
  for (const StreamInfo& stream : result.streams) total += stream.stored_bytes;
  for (const StreamInfo& stream : result.streams) {
    rows.push_back({stream.kind, stream.width == 0 ? "-" : fmt::format("{}", stream.width),
                    bytes_text(stream.raw_bytes), bytes_text(stream.stored_bytes),
                    percent_text(stream.stored_bytes, total)});
  }
  return "\nStreams of the payloads\n" + table_text(rows);
}

std::string groups_text(const InspectResult& result) {
  if (result.groups.empty()) return {};
  std::vector<GroupInfo> groups = result.groups;
  std::sort(groups.begin(), groups.end(), [](const GroupInfo& a, const GroupInfo& b) {
    return std::tie(b.raw_bytes, a.name) < std::tie(a.raw_bytes, b.name);
  });
  std::uint64_t total = 0;
  for (const GroupInfo& group : groups) total += group.raw_bytes;
  Rows rows = {{"group", "tensors", "elements", "changed", "rate", "raw", "share"}};
  for (const GroupInfo& group : groups) {
    rows.push_back({printable(group.name), count_text(group.tensors), count_text(group.elements),
                    count_text(group.changed), percent_text(group.changed, group.elements),
                    bytes_text(group.raw_bytes), percent_text(group.raw_bytes, total)});
  }
  return "\nTensor groups (raw: bytes in the streams before compression)\n" + table_text(rows);
}

std::string names_text(std::string_view title, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  std::string out = fmt::format("\n{}\n", title);
  for (const std::string& name : names) out += "  " + printable(name) + "\n";
  return out;
}

std::string files_text(const InspectResult& result) {
  if (result.files.empty()) return {};
  Rows rows = {{"file", "bytes", "stored", "from"}};
  for (const InspectResult::Carried& file : result.files) {
    rows.push_back({printable(file.name), bytes_text(file.bytes), bytes_text(file.stored_bytes),
                    printable(file.source)});
  }
  return "\nOther files and headers (from: \"base\" equals OLD's, \"carried\" is in the delta)\n" +
         table_text(rows, {3});
}

std::string left_out_text(const InspectResult& result) {
  if (result.left_out.empty()) return {};
  Rows rows;
  for (const LeftOut& file : result.left_out) {
    rows.push_back({printable(file.name), printable(file.reason)});
  }
  return "\nLeft out\n" + table_text(rows, {1});
}

}  // namespace

std::string inspect_text(const InspectResult& result) {
  return header_text(result) + streams_text(result) + groups_text(result) +
         names_text("Tensors added, carried whole", result.added) +
         names_text("Tensors removed", result.removed) +
         names_text("Tensors of another dtype or shape, carried whole", result.replaced) +
         files_text(result) + left_out_text(result);
}

}  // namespace dcr
