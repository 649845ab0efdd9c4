#include "tensor/json.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/limits.h"
#include "tensor/text.h"

namespace dcr {

namespace {

// No number and no literal of JSON that we accept is longer; the library would hold any length.
constexpr std::size_t kTokenBytesMax = 64;

Status not_json(std::size_t position) {
  return Status(Code::kCorrupt, "not JSON at byte " + std::to_string(position));
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_structure(char c) {
  return c == '{' || c == '}' || c == '[' || c == ']' || c == ':' || c == ',';
}
bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '+' || c == '.';
}

// One past the closing quote of the string that begins at `begin`.
Result<std::size_t> end_of_string(std::string_view text, std::size_t begin) {
  std::size_t i = begin + 1;
  while (i < text.size() && text[i] != '"') {
    if (static_cast<unsigned char>(text[i]) < 0x20) return not_json(i);
    i += text[i] == '\\' ? std::size_t{2} : std::size_t{1};
    if (i - begin > kJsonStringBytesMax) {
      return Status(Code::kTooLarge, "the JSON string at byte " + std::to_string(begin) +
                                         " is above " + std::to_string(kJsonStringBytesMax) +
                                         " bytes");
    }
  }
  if (i >= text.size()) return not_json(text.size());
  return i + 1;
}

// The library collects each token whole (and, for an error message, in a longer spelling) before
// it tells us, and takes a NUL for the end of the input. So the lengths of tokens and the bytes
// between them are checked first; what passes here costs it a bounded amount of memory.
Status check_tokens(std::string_view text) {
  if (!valid_utf8(text)) return Status(Code::kCorrupt, "not UTF-8");
  std::size_t i = 0;
  while (i < text.size()) {
    const char c = text[i];
    if (c == '"') {
      DCR_ASSIGN(i, end_of_string(text, i));
    } else if (is_space(c) || is_structure(c)) {
      ++i;
    } else {
      const std::size_t begin = i;
      while (i < text.size() && is_word(text[i])) ++i;
      if (i == begin || i - begin > kTokenBytesMax) return not_json(begin);
    }
  }
  return {};
}

// Between the library's events and ours.
class SaxAdaptor {
 public:
  explicit SaxAdaptor(JsonVisitor* visitor) : visitor_(visitor) {}

  Status error() const { return own_.ok() ? visitor_->error() : own_; }

  bool null() { return visitor_->scalar({}); }
  bool boolean(bool) { return visitor_->scalar({JsonKind::kBoolean}); }
  bool number_integer(std::int64_t) { return visitor_->scalar({JsonKind::kNumber}); }
  bool number_unsigned(std::uint64_t value) {
    return visitor_->scalar({JsonKind::kUnsigned, value});
  }
  bool number_float(double, const std::string&) { return visitor_->scalar({JsonKind::kNumber}); }
  bool string(std::string& value) { return visitor_->scalar({JsonKind::kString, 0, &value}); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // not in JSON text
  bool start_object(std::size_t) { return open(true); }
  bool key(std::string& value) { return visitor_->key(value); }
  bool end_object() { return close(); }
  bool start_array(std::size_t) { return open(false); }
  bool end_array() { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    own_ = not_json(position);
    return false;
  }

 private:
  bool open(bool is_object) {
    if (++depth_ > kJsonDepthMax) {
      own_ = Status(Code::kTooLarge,
                    "JSON is nested deeper than " + std::to_string(kJsonDepthMax) + " levels");
      return false;
    }
    return visitor_->open(is_object);
  }
  bool close() {
    --depth_;
    return visitor_->close();
  }

  JsonVisitor* visitor_;
  std::uint64_t depth_ = 0;
  Status own_;
};

}  // namespace

Status parse_json(ByteSpan text, JsonVisitor& visitor) {
  const char* begin = reinterpret_cast<const char*>(text.data());
  DCR_TRY(check_tokens({begin, text.size()}));
  SaxAdaptor adaptor(&visitor);
  if (nlohmann::json::sax_parse(begin, begin + text.size(), &adaptor)) return {};
  return adaptor.error();
}

std::string json_string(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 0xf];
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace dcr
