#include "bench/report.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/assert.h"
#include "simd/kernels.h"

namespace dcr {
namespace {

std::string cell_text(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell.value)) return *text;
  if (const auto* whole = std::get_if<std::uint64_t>(&cell.value)) return fmt::format("{}", *whole);
  return fmt::format("{:.{}f}", std::get<double>(cell.value), cell.digits);
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string compiler_name() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

}  // namespace

Machine describe_machine() {
  return {cpu_name(), std::thread::hardware_concurrency(), kernels().name, compiler_name(),
          ZSTD_versionString()};
}

void Report::add_row(std::vector<Cell> cells) {
  DCR_ASSERT(cells.size() == keys_.size());
  rows_.push_back(std::move(cells));
}

void Report::add_figure(std::string name, double value, Aim aim, double bound) {
  figures_.push_back({std::move(name), value, true, aim, bound});
}

void Report::add_figure(std::string name, double value) {
  figures_.push_back({std::move(name), value, false, Aim::kAtMost, 0});
}

std::string Report::table() const {
  std::vector<std::vector<std::string>> lines{keys_};
  for (const std::vector<Cell>& row : rows_) {
    std::vector<std::string>& line = lines.emplace_back();
    for (const Cell& cell : row) line.push_back(cell_text(cell));
  }
  std::string text;
  for (const std::vector<std::string>& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      std::size_t width = 0;
      for (const std::vector<std::string>& other : lines) width = std::max(width, other[i].size());
      text += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", line[i], width);
    }
    text += '\n';
  }
  for (const Figure& figure : figures_) {
    text += fmt::format("{}: {:.3f}", figure.name, figure.value);
    if (figure.has_aim) {
      text +=
          fmt::format(" (aim: {} {:.3g}; {})", figure.aim == Aim::kAtMost ? "at most" : "at least",
                      figure.bound, figure.reached() ? "reached" : "missed");
    }
    text += '\n';
  }
  for (const std::string& note : notes_) text += note + '\n';
  return text;
}

std::string Report::json() const {
  nlohmann::ordered_json root;
  root["rows"] = nlohmann::ordered_json::array();
  for (const std::vector<Cell>& row : rows_) {
    nlohmann::ordered_json object;
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::visit([&](const auto& value) { object[keys_[i]] = value; }, row[i].value);
    }
    root["rows"].push_back(std::move(object));
  }
  const Machine machine = describe_machine();
  root["machine"] = {{"cpu", machine.cpu},
                     {"cores", machine.cores},
                     {"isa", machine.isa},
                     {"compiler", machine.compiler},
                     {"zstd", machine.zstd}};
  root["figures"] = nlohmann::ordered_json::array();
  for (const Figure& figure : figures_) {
    nlohmann::ordered_json object{{"name", figure.name}, {"value", figure.value}};
    if (figure.has_aim) {
      object[figure.aim == Aim::kAtMost ? "at_most" : "at_least"] = figure.bound;
      object["reached"] = figure.reached();
    }
    root["figures"].push_back(std::move(object));
  }
  root["notes"] = notes_;
  return root.dump(2) + "\n";
}

}  // namespace dcr
