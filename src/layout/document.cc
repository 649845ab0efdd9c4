#include "layout/document.h"

#include <algorithm>
#include <unordered_set>

#include "base/bytes.h"
#include "tensor/json.h"
#include "tensor/text.h"

namespace dcr {

namespace {

class TreeBuilder final : public JsonVisitor {
 public:
  TreeBuilder(DocumentValue* root, std::uint64_t values_max)
      : root_(root), values_max_(values_max) {}

  bool open(bool is_object) override {
    DocumentValue* value = add();
    if (value == nullptr) return false;
    value->kind = is_object ? DocumentValue::Kind::kObject : DocumentValue::Kind::kArray;
    // While a container is open nothing is added to those around it, so the pointers stay.
    open_.push_back(value);
    keys_.emplace_back();
    return true;
  }

  bool close() override {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  bool key(std::string& key) override {
    if (!keys_.back().insert(key).second) {
      return fail(Code::kCorrupt, "key " + quoted_name(key) + " stands twice in one object");
    }
    next_key_ = key;
    return true;
  }

  bool scalar(const JsonScalar& scalar) override {
    DocumentValue* value = add();
    if (value == nullptr) return false;
    if (scalar.kind == JsonKind::kString) {
      value->kind = DocumentValue::Kind::kString;
      value->text = std::move(*scalar.string);
    } else if (scalar.kind == JsonKind::kUnsigned) {
      value->kind = DocumentValue::Kind::kUnsigned;
      value->number = scalar.number;
    }
    return true;
  }

 private:
  DocumentValue* add() {
    if (++values_ > values_max_) {
      fail(Code::kTooLarge, "more than " + std::to_string(values_max_) + " values");
      return nullptr;
    }
    if (open_.empty()) return root_;
    DocumentValue& parent = *open_.back();
    if (parent.kind == DocumentValue::Kind::kObject) parent.keys.push_back(std::move(next_key_));
    return &parent.elements.emplace_back();
  }

  DocumentValue* root_;
  std::uint64_t values_max_;
  std::uint64_t values_ = 0;
  std::vector<DocumentValue*> open_;
  std::vector<std::unordered_set<std::string>> keys_;
  std::string next_key_;
};

// Insertions, deletions and exchanges of single letters between two short words.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t exchanged = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, exchanged});
    }
  }
  return row.back();
}

std::string range_text(std::uint64_t least, std::uint64_t most) {
  return "an integer from " + std::to_string(least) + " to " + std::to_string(most);
}

}  // namespace

std::string suggestion(std::string_view word, const std::vector<std::string>& words) {
  constexpr std::size_t kWordMax = 64;
  constexpr std::size_t kNear = 3;
  if (word.size() > kWordMax) return {};
  std::size_t best = kNear;
  const std::string* nearest = nullptr;
  for (const std::string& candidate : words) {
    const std::size_t far = distance(word, candidate);
    if (far < best && far < candidate.size()) {
      best = far;
      nearest = &candidate;
    }
  }
  return nearest == nullptr ? std::string() : " (did you mean \"" + *nearest + "\"?)";
}

Result<DocumentValue> parse_document(std::string_view text, std::uint64_t bytes_max,
                                     std::uint64_t values_max) {
  if (text.size() > bytes_max) {
    return Status(Code::kTooLarge, "more than " + std::to_string(bytes_max) + " bytes");
  }
  DocumentValue root;
  TreeBuilder builder(&root, values_max);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  DCR_TRY(parse_json(ByteSpan(bytes, text.size()), builder));
  return root;
}

DocumentFields::DocumentFields(const DocumentValue& value, std::string where)
    : value_(value), where_(std::move(where)) {
  if (value.kind != DocumentValue::Kind::kObject) fail(Code::kCorrupt, "is not an object");
}

void DocumentFields::fail(Code code, const std::string& what) {
  if (status_.ok()) status_ = Status(code, where_ + " " + what);
}

const DocumentValue* DocumentFields::find(std::string_view key) {
  known_.emplace_back(key);
  if (!ok()) return nullptr;
  const auto found = std::find(value_.keys.begin(), value_.keys.end(), key);
  if (found == value_.keys.end()) return nullptr;
  return &value_.elements[static_cast<std::size_t>(found - value_.keys.begin())];
}

const DocumentValue* DocumentFields::require(std::string_view key) {
  const DocumentValue* found = find(key);
  if (found == nullptr) fail(Code::kCorrupt, "has no \"" + std::string(key) + "\"");
  return found;
}

void DocumentFields::number(std::string_view key, std::uint64_t least, std::uint64_t most,
                            std::uint64_t* out) {
  const DocumentValue* found = find(key);
  if (found == nullptr) return;
  if (found->kind != DocumentValue::Kind::kUnsigned || found->number < least ||
      found->number > most) {
    fail(Code::kCorrupt, "\"" + std::string(key) + "\" is not " + range_text(least, most));
    return;
  }
  *out = found->number;
}

void DocumentFields::text(std::string_view key, std::string* out) {
  const DocumentValue* found = find(key);
  if (found == nullptr) return;
  if (found->kind != DocumentValue::Kind::kString) {
    fail(Code::kCorrupt, "\"" + std::string(key) + "\" is not a string");
    return;
  }
  *out = found->text;
}

void DocumentFields::each(std::string_view key, std::size_t count_max,
                          const std::function<Status(const DocumentValue&, std::size_t)>& visit) {
  const DocumentValue* found = find(key);
  if (found == nullptr) return;
  if (found->kind != DocumentValue::Kind::kArray) {
    fail(Code::kCorrupt, "\"" + std::string(key) + "\" is not an array");
    return;
  }
  if (found->elements.size() > count_max) {
    fail(Code::kTooLarge, "\"" + std::string(key) + "\" has " +
                              std::to_string(found->elements.size()) + " elements, more than " +
                              std::to_string(count_max));
    return;
  }
  for (std::size_t i = 0; i < found->elements.size() && ok(); ++i) {
    Status status = visit(found->elements[i], i);
    if (!status.ok()) status_ = std::move(status);
  }
}

void DocumentFields::numbers(std::string_view key, std::uint64_t most, std::size_t count_max,
                             std::vector<std::uint64_t>* out) {
  each(key, count_max, [&](const DocumentValue& value, std::size_t) {
    if (value.kind != DocumentValue::Kind::kUnsigned || value.number > most) {
      return Status(Code::kCorrupt, where_ + " \"" + std::string(key) +
                                        "\" has an element that is not " + range_text(0, most));
    }
    out->push_back(value.number);
    return Status();
  });
}

Status DocumentFields::finish() {
  if (!ok()) return status_;
  for (const std::string& name : value_.keys) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    fail(Code::kCorrupt, "has an unknown key " + quoted_name(name) + suggestion(name, known_));
    break;  // a file may have very many
  }
  return status_;
}

}  // namespace dcr
