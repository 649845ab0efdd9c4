/* Staging on rollout nodes: asynchronous attempts, which stage while the old version serves, and
 * node agents, which take, decode and pass on each payload once for all receivers of their node.
 * refit.pml has what this leaves out (README.md says why that is enough); here an attempt is known
 * to bind nodes and receivers, an obsolete one is known never to be committed, and weights are the
 * numbers of the payloads that were applied.
 *
 * As there: what was sent may arrive at any time, again, or never. One d_step is one step.
 */

#ifndef NODES
#define NODES 2 /* at most 2 */
#endif
#ifndef PER_NODE
#define PER_NODE 1 /* receivers of a node; NODES * PER_NODE is at most 2 */
#endif
#ifndef OWNERS
#define OWNERS 2 /* at most 2 */
#endif
#ifndef PAYLOADS
#define PAYLOADS 1 /* at most, of an owner in an attempt; it may end with fewer */
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2 /* at most 2; the last one is not given up without a cause */
#endif
#ifndef SLOTS
#define SLOTS 4 /* payloads that a node stages; OWNERS * PAYLOADS and more never fill it */
#endif
#ifndef DECODED
#define DECODED 1 /* payloads that a node holds decoded */
#endif
#ifndef NODE_RESTARTS
#define NODE_RESTARTS 0 /* each ends the attempt that bound the node */
#endif

#define RECEIVERS (NODES * PER_NODE)
#define NODE_OF(r) ((r) / PER_NODE)
/* Payloads go by (number, owner), the number first. */
#define PLACES (OWNERS * PAYLOADS)
#define ALL_PLACES ((1 << PLACES) - 1)
#define OWNER_OF(p) ((p) % OWNERS)
#define NUMBER_OF(p) ((p) / OWNERS)
#define HAS(set, p) (((set) >> (p)) & 1)

hidden byte i, j, k;

/* ----------------------------------------------------------------------- what owners have sent */

#define OPEN_ENDED 255
byte sent[(ATTEMPTS + 1) * OWNERS]; /* payloads so far, in the order of their numbers */
byte count[(ATTEMPTS + 1) * OWNERS] = OPEN_ENDED; /* what the owner's end says */

/* Whether attempt t has such a payload, as far as ends say. */
#define ENDED(t, p) (count[(t) * OWNERS + OWNER_OF(p)] != OPEN_ENDED)
#define ABSENT(t, p) (ENDED(t, p) && NUMBER_OF(p) >= count[(t) * OWNERS + OWNER_OF(p)])
#define SENT(t, p) (NUMBER_OF(p) < sent[(t) * OWNERS + OWNER_OF(p)])

/* -------------------------------------------------------------------------- coordinator and gate */

byte attempt = 0;
byte bound[(ATTEMPTS + 1) * NODES]; /* incarnations of nodes */
bit open_sent[ATTEMPTS + 1];        /* open_apply */
bit stop_sent[ATTEMPTS + 1];
byte staged_by[ATTEMPTS + 1];       /* nodes that said that they hold all, a bit each */
bit filled[ATTEMPTS + 1];             /* a node said that its staging is full */
bit early = 0;                      /* the gate closed because of that: gate_closed_early */
byte done = 0;                      /* receivers' completions of `attempt` */
bit gate = 1;
bit committed = 0;
#define STAGING 0
#define APPLYING 1
#define STOPPING 2
byte phase = STOPPING;
byte node_restarts = NODE_RESTARTS;

/* ---------------------------------------------------------------------------------------- nodes */

byte incarnation[NODES] = 1;
byte node_current[NODES];
byte ends[NODES];    /* of `node_current`: owners whose end came, a bit each */
byte staged[NODES];  /* payloads that came and were validated, a bit each */
byte taken[NODES];   /* of these: decoded since, a bit each */
byte held[NODES];    /* of these: their decoded memory still stands, a bit each */

/* Over the local socket: which attempt's decoded payload, a bit each. */
byte passed[RECEIVERS * (ATTEMPTS + 1)];

/* ------------------------------------------------------------------------------------- receivers */

byte current[RECEIVERS];
byte next[RECEIVERS]; /* the place whose turn it is */
byte applied[RECEIVERS];

#if NODES > 1
#define EVERY_NODE(condition) (condition(0) && condition(1))
#else
#define EVERY_NODE(condition) condition(0)
#endif
#if NODES * PER_NODE > 1
#define EVERY_RECEIVER(condition) (condition(0) && condition(1))
#else
#define EVERY_RECEIVER(condition) condition(0)
#endif
#define SAID_STAGED(n) HAS(staged_by[attempt], n)
#define NODE_HERE(n) (bound[attempt * NODES + (n)] == incarnation[n])
#define NODE_STOPPED(n) (!NODE_HERE(n) || node_current[n] != attempt)
#define RECEIVER_STOPPED(r) (current[r] != attempt)
#define SAID_DONE(r) HAS(done, r)

/* Every payload that an end counts, and every end, is there. */
inline assert_staged(n) {
  for (j : 0 .. PLACES - 1) {
    assert(HAS(ends[n], OWNER_OF(j)));
    assert(ABSENT(attempt, j) || HAS(staged[n], j))
  };
  skip
}

#ifdef MUTANT_OPENS_BEFORE_ALL_NODES
#define ALL_STAGED (staged_by[attempt] != 0)
#else
#define ALL_STAGED EVERY_NODE(SAID_STAGED)
#endif
#ifdef MUTANT_FULL_UNHEEDED
#define FILLED false
#else
#define FILLED filled[attempt]
#endif

proctype Coordinator() {
end:
  do
  :: d_step { phase == STOPPING && attempt < ATTEMPTS && !committed &&
              (attempt == 0 || (EVERY_NODE(NODE_STOPPED) && EVERY_RECEIVER(RECEIVER_STOPPED))) ->
              attempt++;
              for (i : 0 .. NODES - 1) { bound[attempt * NODES + i] = incarnation[i] }
#ifdef MUTANT_CLOSES_WITH_PREPARE
              gate = 0;
#endif
              done = 0;
              early = 0;
              phase = STAGING }
  /* The gate closes and drains, and receivers are told. */
  :: d_step { phase == STAGING && (ALL_STAGED || FILLED) ->
              early = !ALL_STAGED;
              if
              :: !early ->
                 for (i : 0 .. NODES - 1) {
                   if
                   :: NODE_HERE(i) -> assert_staged(i)
                   :: else -> skip
                   fi
                 };
                 skip
              :: else -> skip
              fi;
              gate = 0;
              open_sent[attempt] = 1;
              phase = APPLYING }
  :: d_step { phase == APPLYING && EVERY_RECEIVER(SAID_DONE) ->
              for (i : 0 .. RECEIVERS - 1) {
                for (j : 0 .. PLACES - 1) {
                  assert(ENDED(attempt, j) && (ABSENT(attempt, j) || HAS(applied[i], j)));
                  assert(!(ABSENT(attempt, j) && HAS(applied[i], j)))
                }
              }
              committed = 1;
              gate = 1 }
  /* The attempt fails: for no reason that is known here, or because a node is gone. */
  :: d_step { phase != STOPPING && !committed &&
              (attempt < ATTEMPTS || !EVERY_NODE(NODE_HERE)) ->
#ifdef MUTANT_REOPENS_AFTER_FAILURE
              gate = 1;
#endif
              /* Serving went on if nothing was written, and does not if something was. */
              assert(gate == !(open_sent[attempt] || (attempt > 1 && open_sent[1])));
              stop_sent[attempt] = 1;
              phase = STOPPING }
  od
}

proctype Owner(byte o) {
  byte t = 1;
end:
  do
  :: d_step { t <= attempt && count[t * OWNERS + o] == OPEN_ENDED &&
              sent[t * OWNERS + o] < PAYLOADS && !stop_sent[t] -> sent[t * OWNERS + o]++ }
  :: d_step { t <= attempt && count[t * OWNERS + o] == OPEN_ENDED && !stop_sent[t] ->
              count[t * OWNERS + o] = sent[t * OWNERS + o] }
  :: d_step { t < attempt -> t++ }
  od
}

/* ---------------------------------------------------------------------------------- node agents */

#define BITS(set) (((set) & 1) + (((set) >> 1) & 1) + (((set) >> 2) & 1) + (((set) >> 3) & 1))
#define BELOW(p) ((1 << (p)) - 1)

/* What the ends that have come say is not to be waited for. */
#define ABSENT_BIT(p) ((HAS(ends[n], OWNER_OF(p)) && ABSENT(node_current[n], p)) << (p))
#if OWNERS * PAYLOADS > 2
#define ABSENT_AT_NODE (ABSENT_BIT(0) | ABSENT_BIT(1) | ABSENT_BIT(2) | ABSENT_BIT(3))
#else
#define ABSENT_AT_NODE (ABSENT_BIT(0) | ABSENT_BIT(1))
#endif

/* One slot is only for the payload that comes next in order. */
#define WAITING_AT_NODE BITS(staged[n] & ~taken[n])
#ifdef MUTANT_NO_SLOT_FOR_NEXT
#define ADMITTED(p) (WAITING_AT_NODE < SLOTS)
#else
#define ADMITTED(p) (WAITING_AT_NODE < SLOTS - 1 || \
                     (WAITING_AT_NODE < SLOTS && \
                      ((staged[n] | ABSENT_AT_NODE) & BELOW(p)) == BELOW(p)))
#endif

#ifdef MUTANT_STAGED_BEFORE_ENDS
#define HOLDS_ALL (staged[n] != 0)
#else
#define HOLDS_ALL (ends[n] == (1 << OWNERS) - 1 && \
                   ((staged[n] | ABSENT_AT_NODE) & ALL_PLACES) == ALL_PLACES)
#endif

#ifdef MUTANT_NODE_KEEPS_OLD
#define FORGET skip
#else
#define FORGET ends[n] = 0; staged[n] = 0; taken[n] = 0; held[n] = 0
#endif

#ifdef MUTANT_DECODED_FOR_EACH
#define UNTAKEN(p) (!HAS(taken[n], p) || !HAS(held[n], p))
#else
#define UNTAKEN(p) (!HAS(taken[n], p))
#endif

#define APPLIED_BY(r) (NODE_OF(r) != n || (current[r] == node_current[n] && HAS(applied[r], place)))
#ifdef MUTANT_RELEASED_AFTER_FIRST
#define MAY_RELEASE (HAS(applied[n * PER_NODE], place))
#else
#define MAY_RELEASE EVERY_RECEIVER(APPLIED_BY)
#endif

/* What a node does about the payload at `place`; each place has a process of its own, as a node
 * works on all of them at once. */
proctype NodePlace(byte n; byte place) {
end:
  do
  /* The transport gives what was sent under its exact key, as often as it is asked. */
  :: d_step { node_current[n] != 0 && SENT(node_current[n], place) && !HAS(staged[n], place) &&
              ADMITTED(place) ->
              staged[n] = staged[n] | (1 << place);
              assert(WAITING_AT_NODE <= SLOTS) }
  :: d_step { node_current[n] != 0 && SENT(node_current[n], place) && !HAS(staged[n], place) &&
              !ADMITTED(place) && !filled[node_current[n]] -> filled[node_current[n]] = 1 }
  /* In order, and once for all receivers of the node. */
  :: d_step { node_current[n] != 0 && open_sent[node_current[n]] && HAS(staged[n], place) &&
              UNTAKEN(place) && BITS(held[n]) < DECODED &&
              ((taken[n] | ABSENT_AT_NODE) & BELOW(place)) == BELOW(place) ->
              assert(!HAS(taken[n], place));
              taken[n] = taken[n] | (1 << place);
              held[n] = held[n] | (1 << place);
              for (i : n * PER_NODE .. n * PER_NODE + PER_NODE - 1) {
                passed[i * (ATTEMPTS + 1) + node_current[n]] =
                  passed[i * (ATTEMPTS + 1) + node_current[n]] | (1 << place)
              };
              skip }
  :: d_step { HAS(held[n], place) && MAY_RELEASE -> held[n] = held[n] & ~(1 << place) }
  od
}

proctype Node(byte n) {
end:
  do
  /* prepare */
  :: d_step { attempt > node_current[n] && NODE_HERE(n) && !stop_sent[attempt] ->
              FORGET; node_current[n] = attempt }
  /* stop_and_wait */
  :: d_step { node_current[n] != 0 && stop_sent[node_current[n]] -> FORGET; node_current[n] = 0 }
  :: d_step { node_current[n] != 0 && count[node_current[n] * OWNERS] != OPEN_ENDED &&
              !HAS(ends[n], 0) -> ends[n] = ends[n] | 1 }
#if OWNERS > 1
  :: d_step { node_current[n] != 0 && count[node_current[n] * OWNERS + 1] != OPEN_ENDED &&
              !HAS(ends[n], 1) -> ends[n] = ends[n] | 2 }
#endif
  :: d_step { node_current[n] != 0 && HOLDS_ALL && !HAS(staged_by[node_current[n]], n) ->
              staged_by[node_current[n]] = staged_by[node_current[n]] | (1 << n) }
#if NODE_RESTARTS > 0
  /* Any one of them: the first, for they are alike. */
  :: d_step { n == 0 && node_restarts > 0 ->
              node_restarts--;
#ifndef MUTANT_NODE_KEEPS_INCARNATION
              incarnation[n]++;
#endif
              ends[n] = 0; staged[n] = 0; taken[n] = 0; held[n] = 0; node_current[n] = 0 }
#endif
  od
}

/* ------------------------------------------------------------------------------------ receivers */

#define PASSED(t, p) HAS(passed[r * (ATTEMPTS + 1) + (t)], p)
#ifdef MUTANT_PAYLOAD_OF_ANY_ATTEMPT
#define TAKEN_FROM_NODE(p) (PASSED(1, p) || PASSED(ATTEMPTS, p))
#else
#define TAKEN_FROM_NODE(p) PASSED(current[r], p)
#endif
#ifdef MUTANT_ORDER_OF_ARRIVAL
#define TURN(p) (!HAS(applied[r], p))
#else
#define TURN(p) (next[r] == (p))
#endif

#define APPLY(p) \
  :: d_step { current[r] != 0 && open_sent[current[r]] && TAKEN_FROM_NODE(p) && TURN(p) -> \
              assert(!gate); \
              assert(next[r] == (p)); \
              assert(PASSED(current[r], p)); \
              assert(node_current[NODE_OF(r)] != current[r] || HAS(held[NODE_OF(r)], p)); \
              applied[r] = applied[r] | (1 << (p)); \
              next[r] = (p) + 1 }

#ifdef MUTANT_DONE_BEFORE_ENDS
#define ALL_APPLIED (applied[r] != 0)
#else
#define ALL_APPLIED (next[r] == PLACES && node_current[NODE_OF(r)] == current[r] && \
                     ends[NODE_OF(r)] == (1 << OWNERS) - 1)
#endif

proctype Receiver(byte r) {
end:
  do
  :: d_step { attempt > current[r] && !stop_sent[attempt] ->
              current[r] = attempt; next[r] = 0; applied[r] = 0 }
  :: d_step { current[r] != 0 && stop_sent[current[r]] ->
              current[r] = 0; next[r] = 0; applied[r] = 0 }
  /* Its node has the owner's end, and there is no such payload. */
  :: d_step { current[r] != 0 && next[r] < PLACES && node_current[NODE_OF(r)] == current[r] &&
              HAS(ends[NODE_OF(r)], OWNER_OF(next[r])) && ABSENT(current[r], next[r]) ->
              next[r]++ }
  APPLY(0)
#if OWNERS * PAYLOADS > 1
  APPLY(1)
#endif
#if OWNERS * PAYLOADS > 2
  APPLY(2)
  APPLY(3)
#endif
  :: d_step { current[r] == attempt && current[r] != 0 && open_sent[attempt] && ALL_APPLIED &&
              !HAS(done, r) -> done = done | (1 << r) }
  od
}

/* When nothing can happen any more, the attempt is committed, unless the last one lost its node. */
proctype Watch() {
  timeout -> assert(committed || (attempt == ATTEMPTS && phase == STOPPING))
}

init {
  atomic {
    run Coordinator();
    run Watch();
    for (i : 0 .. OWNERS - 1) { run Owner(i) };
    for (i : 0 .. NODES - 1) {
      run Node(i);
      for (j : 0 .. PLACES - 1) { run NodePlace(i, j) }
    };
    for (i : 0 .. RECEIVERS - 1) { run Receiver(i) }
  }
}
