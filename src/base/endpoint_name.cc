#include "base/endpoint_name.h"

#include <string>

namespace dcr {

Status check_endpoint_name(std::string_view name) {
  if (name.empty()) return {Code::kInvalidArgument, "an endpoint has an empty name"};
  if (name.size() > kEndpointNameBytesMax) {
    return {Code::kInvalidArgument, "a name of " + std::to_string(name.size()) +
                                        " bytes is longer than the limit of " +
                                        std::to_string(kEndpointNameBytesMax)};
  }
  for (const char letter : name) {
    const bool allowed = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                         (letter >= '0' && letter <= '9') || letter == '.' || letter == '_' ||
                         letter == '-';
    if (allowed) continue;
    return {Code::kInvalidArgument, "a name has the byte " +
                                        std::to_string(static_cast<unsigned char>(letter)) +
                                        ": names are letters, digits, '.', '_' and '-'"};
  }
  return {};
}

}  // namespace dcr
