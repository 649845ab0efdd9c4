// The answers to libzmq's questions about keys (ZeroMQ RFC 27, "ZAP"): denied unless the key is on
// the allow-list. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "channel/keys.h"

namespace dcr {

// The domain of the sockets, which questions name.
inline constexpr std::string_view kKeyDomain = "dcr";

struct KeyAnswer {
  std::vector<Bytes> frames;  // of the reply; the name is the user id of an allowed peer
  bool allowed = false;
  std::string key;      // in text; empty if the question held none
  std::string address;  // that libzmq says the peer has; letters that such have, others as '?'
};

// `question`: the request's frames, whatever they hold.
KeyAnswer answer_key_question(const std::vector<Bytes>& question, const PeerKeys& peers);

}  // namespace dcr
