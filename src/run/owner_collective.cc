#include "run/owner_collective.h"

#include <utility>

#include "base/secure_random.h"
#include "channel/keys.h"
#include "run/mailbox.h"
#include "runtime/file.h"

namespace dcr {

Result<std::unique_ptr<ChannelCollective>> open_owner_collective(ProcessContext& context,
                                                                 std::uint32_t rank) {
  const RunConfig& config = context.config();
  const PeerConfig& own = config.owner_peers[rank];
  ChannelCollectiveOptions options;
  options.run = context.run();
  options.rank = rank;
  options.repeat_ms = config.waits.repeat_ms;
  options.clock = context.options().clock;
  ChannelOptions channel;
  channel.name = own.name;
  channel.listen = own.collective;
  channel.clock = options.clock;
  channel.report = [log = context.options().log, name = own.name](const Status& status) {
    log(name, "collective: " + status.message());
  };
  DCR_ASSIGN(const PublicKey own_key, parse_key(own.public_key));
  DCR_ASSIGN(channel.keys, endpoint_keys(config, own.name, own_key));
  auto owners = std::make_shared<AllowList>();
  channel.peers = owners;
  for (const PeerConfig& peer : config.owner_peers) {
    DCR_ASSIGN(const PublicKey key, parse_key(peer.public_key));
    DCR_TRY(owners->add(peer.name, key));
    options.peers.push_back({peer.name, peer.collective});
  }
  DCR_ASSIGN(std::unique_ptr<Channel> opened, Channel::open(std::move(channel)));
  return std::make_unique<ChannelCollective>(std::move(options), std::move(opened),
                                             random_number(kCounterMax));
}

}  // namespace dcr
