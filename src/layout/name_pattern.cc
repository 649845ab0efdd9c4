#include "layout/name_pattern.h"

#include <algorithm>

#include "base/assert.h"
#include "tensor/text.h"

namespace dcr {

namespace {

constexpr std::size_t kNumberDigitsMax = 9;

std::vector<std::string_view> split_parts(std::string_view name) {
  std::vector<std::string_view> parts;
  parts.reserve(12);
  for (;;) {
    const std::size_t dot = name.find('.');
    parts.push_back(name.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    name.remove_prefix(dot + 1);
  }
}

bool has_brace(std::string_view text) { return text.find_first_of("{}") != std::string_view::npos; }

}  // namespace

bool is_capture_number(std::string_view text) {
  if (text.empty() || text.size() > kNumberDigitsMax) return false;
  if (text.front() == '0' && text.size() > 1) return false;
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Result<NamePattern> NamePattern::parse(std::string_view text) {
  NamePattern made;
  made.text_ = text;
  const auto fail = [&](const std::string& what) {
    return Status(Code::kCorrupt, "pattern " + quoted_name(text) + ": " + what);
  };
  for (const std::string_view part : split_parts(text)) {
    if (!has_brace(part)) {
      made.parts_.push_back({Kind::kLiteral, std::string(part)});
      continue;
    }
    if (part.size() < 3 || part.front() != '{' || part.back() != '}' ||
        has_brace(part.substr(1, part.size() - 2))) {
      return fail("a capture is a whole part between dots, as {i}");
    }
    std::string name(part.substr(1, part.size() - 2));
    if (std::find(made.captures_.begin(), made.captures_.end(), name) != made.captures_.end()) {
      return fail("it captures " + quoted_name(name) + " twice");
    }
    made.parts_.push_back({name.size() == 1 ? Kind::kNumber : Kind::kAny, {}});
    made.captures_.push_back(std::move(name));
  }
  return made;
}

bool NamePattern::match(std::string_view name, std::vector<std::string_view>* values) const {
  values->clear();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::size_t dot = name.find('.');
    const bool last = i + 1 == parts_.size();
    if ((dot == std::string_view::npos) != last) return false;
    const std::string_view part = name.substr(0, dot);
    if (!last) name.remove_prefix(dot + 1);
    if (parts_[i].kind == Kind::kLiteral) {
      if (part != parts_[i].text) return false;
    } else {
      if (part.empty() || (parts_[i].kind == Kind::kNumber && !is_capture_number(part))) {
        return false;
      }
      values->push_back(part);
    }
  }
  return true;
}

Result<NameTemplate> NameTemplate::parse(std::string_view text) {
  NameTemplate made;
  made.text_ = text;
  while (!text.empty()) {
    const std::size_t open = text.find_first_of("{}");
    if (open != 0) made.pieces_.push_back({false, std::string(text.substr(0, open))});
    if (open == std::string_view::npos) break;
    const std::size_t close = text.find_first_of("{}", open + 1);
    if (text[open] != '{' || close == std::string_view::npos || text[close] != '}' ||
        close == open + 1) {
      return Status(Code::kCorrupt,
                    "name " + quoted_name(made.text_) + ": braces hold a capture's name, as {i}");
    }
    made.pieces_.push_back({true, std::string(text.substr(open + 1, close - open - 1))});
    text.remove_prefix(close + 1);
  }
  return made;
}

std::vector<std::string> NameTemplate::captures() const {
  std::vector<std::string> names;
  for (const Piece& piece : pieces_) {
    if (piece.capture) names.push_back(piece.text);
  }
  return names;
}

std::string NameTemplate::fill(const std::vector<std::string>& names,
                               const std::vector<std::string_view>& values) const {
  std::string made;
  made.reserve(text_.size() + 16);
  for (const Piece& piece : pieces_) {
    if (!piece.capture) {
      made += piece.text;
      continue;
    }
    const auto found = std::find(names.begin(), names.end(), piece.text);
    DCR_ASSERT(found != names.end());
    made += values[static_cast<std::size_t>(found - names.begin())];
  }
  return made;
}

PatternSet::PatternSet(const std::vector<NamePattern>& patterns) : nodes_(1) {
  for (std::uint32_t i = 0; i < patterns.size(); ++i) {
    std::uint32_t at = 0;
    for (const NamePattern::Part& part : patterns[i].parts_) {
      const auto fresh = static_cast<std::uint32_t>(nodes_.size());
      std::uint32_t next = fresh;
      if (part.kind == NamePattern::Kind::kLiteral) {
        next = nodes_[at].literal.emplace(part.text, fresh).first->second;
      } else {
        std::uint32_t& edge =
            part.kind == NamePattern::Kind::kNumber ? nodes_[at].number : nodes_[at].any;
        if (edge == kNone) edge = fresh;
        next = edge;
      }
      if (next == fresh) nodes_.emplace_back();
      at = next;
    }
    std::uint32_t& end = nodes_[at].first == kNone ? nodes_[at].first : nodes_[at].second;
    if (end == kNone) end = i;
  }
}

PatternSet::Found PatternSet::find(std::string_view name) const {
  Found found;
  search(0, split_parts(name), 0, &found);
  if (found.second < found.first) std::swap(found.first, found.second);
  return found;
}

// As deep as the longest pattern has parts.
void PatternSet::search(std::uint32_t node, const std::vector<std::string_view>& parts,
                        std::size_t at, Found* found) const {
  const Node& here = nodes_[node];
  if (found->second != kNone) return;
  if (at == parts.size()) {
    for (const std::uint32_t pattern : {here.first, here.second}) {
      if (pattern == kNone || found->second != kNone) continue;
      (found->first == kNone ? found->first : found->second) = pattern;
    }
    return;
  }
  if (!here.literal.empty()) {
    const auto next = here.literal.find(std::string(parts[at]));
    if (next != here.literal.end()) search(next->second, parts, at + 1, found);
  }
  if (here.number != kNone && is_capture_number(parts[at])) {
    search(here.number, parts, at + 1, found);
  }
  if (here.any != kNone && !parts[at].empty()) search(here.any, parts, at + 1, found);
}

}  // namespace dcr
