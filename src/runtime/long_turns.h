// How long a thread runs before others may.
#pragma once

namespace dcr {

// For threads of bulk work: those that only pass something on, as the steps of a message do, need
// not wait until this thread has finished its turn. Says so of the calling thread to systems that
// can be told, and does nothing elsewhere, nor for threads of a policy of their own.
void take_long_turns();

}  // namespace dcr
