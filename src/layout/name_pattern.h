// Names with captures: which canonical tensors a rule is for, and what its local tensor is called
// (docs/LAYOUT.md "Names").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dcr/status.h"

namespace dcr {

// A pattern over a name's parts, which dots separate. A part is literal, or "{x}": with a name of
// one letter it captures a number (digits without leading zeros, at most nine), with a longer name
// any one part.
class NamePattern {
 public:
  // Error kCorrupt: a brace anywhere else, a capture twice.
  static Result<NamePattern> parse(std::string_view text);

  const std::string& text() const { return text_; }
  const std::vector<std::string>& captures() const { return captures_; }  // in order

  // Whether it is the pattern of `name`; `values` gets what each capture took.
  bool match(std::string_view name, std::vector<std::string_view>* values) const;

 private:
  friend class PatternSet;
  enum class Kind : std::uint8_t { kLiteral, kNumber, kAny };
  struct Part {
    Kind kind = Kind::kLiteral;
    std::string text;
  };

  std::string text_;
  std::vector<Part> parts_;
  std::vector<std::string> captures_;
};

// A name to be made: captures in braces may stand anywhere ("experts.linear_fc1.weight{e}").
class NameTemplate {
 public:
  // Error kCorrupt: braces that do not pair or hold nothing.
  static Result<NameTemplate> parse(std::string_view text);

  const std::string& text() const { return text_; }
  std::vector<std::string> captures() const;
  // REQUIRES: `names` has every capture; `values` are theirs.
  std::string fill(const std::vector<std::string>& names,
                   const std::vector<std::string_view>& values) const;

 private:
  struct Piece {
    bool capture = false;
    std::string text;
  };
  std::string text_;
  std::vector<Piece> pieces_;
};

// Many patterns at once: a name is looked up in time that depends on its own parts, not on the
// number of patterns.
class PatternSet {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  // Two equal patterns are two patterns: a name of theirs has both.
  explicit PatternSet(const std::vector<NamePattern>& patterns);

  // Two patterns that match, by ascending index; kNone where there are fewer.
  struct Found {
    std::uint32_t first = kNone, second = kNone;
  };
  Found find(std::string_view name) const;

 private:
  struct Node {
    std::unordered_map<std::string, std::uint32_t> literal;
    std::uint32_t number = kNone, any = kNone;
    std::uint32_t first = kNone, second = kNone;  // patterns that end here
  };

  void search(std::uint32_t node, const std::vector<std::string_view>& parts, std::size_t at,
              Found* found) const;

  std::vector<Node> nodes_;
};

// Whether `text` is a number as a capture of one letter takes it.
bool is_capture_number(std::string_view text);

}  // namespace dcr
