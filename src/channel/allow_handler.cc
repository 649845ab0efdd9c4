#include "channel/allow_handler.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace dcr {
namespace {

constexpr std::string_view kVersion = "1.0";
constexpr std::string_view kMechanism = "CURVE";
constexpr std::size_t kAddressLettersMax = 64;

// Frames of a question.
constexpr std::size_t kVersionAt = 0, kRequestAt = 1, kDomainAt = 2, kAddressAt = 3,
                      kMechanismAt = 5, kKeyAt = 6, kFrames = 7;

std::string_view text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

std::string printable_address(const Bytes& bytes) {
  std::string text(text_of(bytes).substr(0, kAddressLettersMax));
  for (char& letter : text) {
    const bool plain = (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'f') ||
                       letter == '.' || letter == ':';
    if (!plain) letter = '?';
  }
  return text;
}

}  // namespace

KeyAnswer answer_key_question(const std::vector<Bytes>& question, const PeerKeys& peers) {
  KeyAnswer answer;
  std::optional<std::string> name;
  if (question.size() == kFrames && text_of(question[kVersionAt]) == kVersion &&
      text_of(question[kDomainAt]) == kKeyDomain && text_of(question[kMechanismAt]) == kMechanism &&
      question[kKeyAt].size() == kKeyBytes) {
    PublicKey key;
    std::copy(question[kKeyAt].begin(), question[kKeyAt].end(), key.begin());
    answer.key = key_text(key);
    answer.address = printable_address(question[kAddressAt]);
    name = peers.name_of(key);
  }
  answer.allowed = name.has_value();
  answer.frames = {bytes_of(kVersion),
                   question.size() > kRequestAt ? question[kRequestAt] : Bytes(),
                   bytes_of(answer.allowed ? "200" : "400"),
                   bytes_of(answer.allowed ? "OK" : "not on the allow-list"),
                   bytes_of(answer.allowed ? *name : std::string()),
                   Bytes()};
  return answer;
}

}  // namespace dcr
