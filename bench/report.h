// What a benchmark prints: a table for people, or one JSON object {"rows", "machine", "figures",
// "notes"}.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace dcr {

// A cell of a row; `digits` behind the point for people (JSON has them all).
struct Cell {
  std::variant<std::string, std::uint64_t, double> value;
  int digits = 3;

  static Cell text(std::string value) { return {std::move(value), 0}; }
  static Cell whole(std::uint64_t value) { return {value, 0}; }
  static Cell number(double value, int digits = 3) { return {value, digits}; }
};

// The rows of a report all have the same keys, in the same order. Not thread-safe.
class Report {
 public:
  explicit Report(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  // REQUIRES: as many cells as keys.
  void add_row(std::vector<Cell> cells);

  enum class Aim : std::uint8_t { kAtMost, kAtLeast };
  // A named result that has an aim, and whether it was reached.
  void add_figure(std::string name, double value, Aim aim, double bound);
  // A named result without one.
  void add_figure(std::string name, double value);

  // Something that a reader must know about the rows, e.g. what is missing.
  void add_note(std::string text) { notes_.push_back(std::move(text)); }

  const std::vector<std::string>& keys() const { return keys_; }
  const std::vector<std::vector<Cell>>& rows() const { return rows_; }

  // An aligned table, then the figures and notes, one a line.
  std::string table() const;
  std::string json() const;

 private:
  struct Figure {
    std::string name;
    double value = 0;
    bool has_aim = false;
    Aim aim = Aim::kAtMost;
    double bound = 0;

    bool reached() const { return aim == Aim::kAtMost ? value <= bound : value >= bound; }
  };

  std::vector<std::string> keys_;
  std::vector<std::vector<Cell>> rows_;
  std::vector<Figure> figures_;
  std::vector<std::string> notes_;
};

// The machine that a report is about.
struct Machine {
  std::string cpu;       // as the operating system names it
  unsigned cores = 0;    // that this process may use
  std::string isa;       // of the kernels in use
  std::string compiler;  // that built this program
  std::string zstd;      // version of the library
};
Machine describe_machine();

}  // namespace dcr
