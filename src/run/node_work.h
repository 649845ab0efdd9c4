// Carries out a node's work (protocol/node.h): fetches payloads from the object store, decodes each
// once into sealed memory, and hands that over to receivers of this machine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "channel/descriptors.h"
#include "codec/payload.h"
#include "protocol/node.h"
#include "receiver/decoded.h"
#include "run/process_context.h"
#include "run/published_source.h"
#include "transport/object_transport.h"

namespace dcr {

class NodeWork {
 public:
  using Post = std::function<void(NodeEvent)>;

  NodeWork(ProcessContext& context, const PublishedSource& source);
  ~NodeWork();

  // Begins work; its answer goes to `post`. What is to be dropped is when it returns. Thread-safe.
  void begin(const NodeEffect& effect, const Post& post);

 private:
  using Key = std::tuple<StreamId, std::uint32_t, std::uint64_t>;  // owner, number

  // A payload in this process: as it came, then decoded.
  struct Held {
    Bytes stored;
    std::optional<Payload> read;                     // of it, while there is room for that
    std::shared_ptr<const OwnedDescriptor> decoded;  // sealed memory (receiver/decoded_memory.h)
  };

  NodeTransport& transport(const StreamId& stream);
  EndFetched fetch_end(const FetchEnd& work);
  PayloadFetched fetch(const FetchPayload& work);
  PayloadDecoded decode(const DecodePayload& work);
  void hand_over(const HandOver& work);
  void drop(const DropPayloads& work);
  void keep(const Key& key, Bytes stored, Payload read);
  // What keep() took, `read` made again if it was not kept. Error kNotFound: it was let go.
  Status take(const Key& key, Bytes* stored, std::optional<Payload>* read);
  void forget_read(Held* held);

  ProcessContext& context_;
  const PublishedSource& source_;
  std::vector<TensorSpec> specs_;
  ObjectNodeTransport payloads_;
  ObjectNodeTransport restores_;
  std::mutex mutex_;
  std::map<Key, Held> held_;      // guarded by mutex_
  std::uint64_t read_bytes_ = 0;  // of Held::read; guarded by mutex_
  std::unique_ptr<Executor> fetchers_;
  std::unique_ptr<Executor> decoder_;  // one thread: decodes and hands over in their order
};

}  // namespace dcr
