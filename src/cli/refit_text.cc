#include "cli/refit_text.h"

#include <fmt/format.h>

#include <vector>

#include "cli/text.h"

namespace dcr {
namespace {

std::string stages_text(const RefitResult& result) {
  std::vector<std::vector<std::string>> rows = {{"stage", "wall", "busy"}};
  for (const RefitStage& stage : result.stages) {
    rows.push_back({stage.name, seconds_text(stage.wall), seconds_text(stage.busy)});
  }
  return table_text(rows);
}

std::string paths_text(const RefitResult& result) {
  std::string text = "paths of tensors on receivers:";
  for (const auto& [path, count] : result.paths) {
    text += fmt::format(" {} {},", count_text(count), path);
  }
  text.back() = '\n';
  for (const RefitPath& path : result.not_traced) {
    text += fmt::format("  {} on receiver {}: {} ({})\n", printable(path.tensor), path.rank,
                        path.path, printable(path.reason));
  }
  for (const RefitUneven& found : result.uneven) {
    text += fmt::format("  {}: {}\n", printable(found.tensor), found.reason);
  }
  return text;
}

}  // namespace

std::string refit_text(bool verify, const RefitResult& result, double seconds) {
  std::string text = stages_text(result) + paths_text(result);
  text += fmt::format("owned per owner: {} at most, {:.2f} of the mean\n",
                      bytes_text(result.owned_bytes_max),
                      result.owned_bytes_mean > 0
                          ? static_cast<double>(result.owned_bytes_max) / result.owned_bytes_mean
                          : 0.0);
  text +=
      fmt::format("working memory at its peak: owners {}, receivers {}\n",
                  bytes_text(result.owner_memory_bytes), bytes_text(result.receiver_memory_bytes));
  for (const std::string& name : result.differing) {
    text += fmt::format("differs: {}\n", printable(name));
  }
  text += fmt::format("{} to {}: {} of {} changed, {} in {}, {}; ", counted(result.owners, "owner"),
                      counted(result.receivers, "receiver"),
                      percent_text(result.changed, result.elements),
                      counted(result.elements, "element"), bytes_text(result.payload_bytes),
                      counted(result.payloads, "payload"), seconds_text(result.refit_seconds));
  if (verify) {
    text += result.resident_different == 0
                ? std::string("receivers hold the new weights")
                : fmt::format("{} of receivers are not the new weights'",
                              counted(result.resident_different, "word"));
    text += ", nothing was written";
  }
  text += result.differing_bytes == 0
              ? fmt::format("{}{} equal to a dense load", verify ? ": " : "",
                            bytes_text(result.compared_bytes))
              : fmt::format("{}{} of {} differ from a dense load", verify ? ": " : "",
                            bytes_text(result.differing_bytes), bytes_text(result.compared_bytes));
  return text + fmt::format(", {} in all\n", seconds_text(seconds));
}

}  // namespace dcr
