/* The refit protocol: the control plane's records, attempts, fences, retries, candidates and
 * baselines of owners, restarts, restores, joins and request gates. What it abstracts and how it is
 * run: README.md. Each MUTANT_… drops one rule, and the search must find where that goes wrong;
 * each WITHOUT_… drops a check behind which another stands, and the search must find nothing.
 *
 * Messages are never taken away: what was sent once may arrive at any time, any number of times,
 * in any order, or never. What is lost is what never arrives. One d_step is one transaction of the
 * control plane, or one step of one endpoint.
 */

/* Sizes. */
#ifndef ENGINES
#define ENGINES 1
#endif
#ifndef PER_ENGINE
#define PER_ENGINE 1 /* receivers of an engine; ENGINES * PER_ENGINE is at most 2 */
#endif
#ifndef OWNERS
#define OWNERS 1 /* each owns one word of every receiver; at most 2 */
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2 /* at most 4 */
#endif
#ifndef VERSIONS
#define VERSIONS 1
#endif
/* How often each fault may strike. */
#ifndef RESTARTS
#define RESTARTS 0 /* of receivers, without being retired first */
#endif
#ifndef SUSPICIONS
#define SUSPICIONS 0 /* engines retired because they do not answer; all are alive in truth */
#endif
#ifndef CLAIMS
#define CLAIMS 0 /* of leadership, from a leader that lives in truth */
#endif
#ifndef OWNER_RESTARTS
#define OWNER_RESTARTS 0
#endif
#ifndef CHANGES
#define CHANGES 0 /* of an owner's candidate, whatever became of the attempt that sent it */
#endif
#ifndef ABORTS
#define ABORTS 0 /* by the operator */
#endif
/* Attempts that fail for no reason that the model knows: lost messages, deadlines. For safety any
 * attempt may; for liveness only so many do. */
#ifdef LIVENESS
#ifndef FAILURES
#define FAILURES 0
#endif
#endif

#define RECEIVERS (ENGINES * PER_ENGINE)
#define ENGINE_OF(r) ((r) / PER_ENGINE)
#define NONE 255    /* no version */
#define UNKNOWN 254 /* several candidates */
#define JUNK 253    /* bits that nobody asked for */

/* The word that candidate c gives each of its owner's elements. Base and candidate 2 agree, so that
 * an owner may have nothing to send while its receivers hold something else. */
#define WORD_OF(c) (((c) % 2) -> ((c) + 1) / 2 : 0)

/* Scratch of d_steps, no part of the state. */
hidden byte i, j, k;

/* ------------------------------------------------------------------ the control plane's records */

/* K: the version, and the attempt that committed it; 0 is the base. */
byte committed_version = 0;
byte committed = 0;

/* The transition record. */
#define STATE_NONE 0
#define ACTIVE 1
#define OBSOLETE 2
#define COMMITTED 3
byte attempt = 0;
byte state = STATE_NONE;
byte written[OWNERS]; /* a candidate that may lie on receivers; 0: none */
byte token = 0;       /* of the leader */

/* The members' rows; an incarnation that is not in its row is barred. */
#define ENROLLED 0
#define WAITING 1
#define MEMBER 2
byte row_incarnation[RECEIVERS] = 1;
byte row_state[RECEIVERS] = MEMBER;
byte row_restored[RECEIVERS]; /* of a waiting one; NONE: it waits, or is a member, without a version */

/* What each attempt bound, as the record and the messages of the attempt carry it. Of attempt 0
 * there is only what its owners' candidate 0 says: the base. */
#define MIXED 0
#define OVERWRITE 1
byte mode[ATTEMPTS + 1];
byte base[ATTEMPTS + 1];
byte base_version[ATTEMPTS + 1];
byte token_of[ATTEMPTS + 1];
byte dense[ATTEMPTS + 1]; /* owners that must send everything, a bit each */
byte candidate_of[(ATTEMPTS + 1) * OWNERS];
byte bound[(ATTEMPTS + 1) * RECEIVERS]; /* incarnations; 0: not required */

/* ------------------------------------------------------------------------------------ messages */

bit open_sent[ATTEMPTS + 1]; /* open_apply */
bit commit_sent[ATTEMPTS + 1];
bit stop_sent[ATTEMPTS + 1]; /* the attempt was decided to have failed */
byte acknowledged = 0;       /* completion of `attempt`, a bit for each receiver */
byte stopped = 0;            /* stop_and_wait of `attempt` */

#define UNSENT 0
#define EMPTY 1    /* the owner's end, with no payload before it */
#define XOR 2      /* exact only where the word is payload_from */
#define ABSOLUTE 3
byte payload[(ATTEMPTS + 1) * OWNERS];
byte payload_from[(ATTEMPTS + 1) * OWNERS];
byte payload_to[(ATTEMPTS + 1) * OWNERS];

/* ----------------------------------------------------------------------------------- endpoints */

/* Owners. A candidate's number stands for its incarnation and counter: it is never used again. */
byte candidate[OWNERS] = 1;
byte weights[OWNERS] = 1;  /* the words that the trainer holds */
byte baseline[OWNERS];     /* the attempt whose weights it is; NONE: there is none */
byte baseline_words[OWNERS];

/* Receivers. */
byte incarnation[RECEIVERS] = 1;
byte current[RECEIVERS];
byte fence[RECEIVERS];
byte applied[RECEIVERS];            /* owners' payloads of `current`, a bit each */
byte proof[RECEIVERS];              /* the attempt that it has finished, or version that it has
                                     * restored and joined with; NONE: any bits */
byte restoring[RECEIVERS] = NONE;   /* the version that a running restore brings */
byte restored[RECEIVERS] = NONE;    /* the version that it has restored but not joined with */
byte word[RECEIVERS * OWNERS];
#ifdef SLOW_WRITES
byte writing[RECEIVERS]; /* 1 + the payload that threads are writing; 0: none */
#define DRAINED(r) (writing[r] == 0)
#else
#define DRAINED(r) true
#endif

/* Gates. */
bit gate[ENGINES] = 1; /* open: requests run. What closes also drains. */
byte label[ENGINES];

/* The leading coordinator. */
#define READY 0
#define PREPARED 1
#define OPENED 2
#define COMMITTING 3
#define STOPPING 4
byte phase = READY;

#ifdef MUTANT_GATE_WAITS_FOR_COORDINATOR
byte told = 0;
#endif

byte restarts = RESTARTS;
byte suspicions = SUSPICIONS;
byte claims = CLAIMS;
byte owner_restarts = OWNER_RESTARTS;
byte changes = CHANGES;
byte aborts = ABORTS;
#ifdef LIVENESS
byte failures = FAILURES;
#endif

byte was_committed = 1; /* attempts that were, a bit each; for assertions only */

/* ------------------------------------------------------------------------------------ formulas */

#if OWNERS > 1
#define DIRTY (written[0] != 0 || written[1] != 0)
#define EVERY_OWNER(condition) (condition(0) && condition(1))
#else
#define DIRTY (written[0] != 0)
#define EVERY_OWNER(condition) condition(0)
#endif
#define ALL_OWNERS ((1 << OWNERS) - 1)

#if ENGINES * PER_ENGINE > 1
#define EVERY_RECEIVER(condition) (condition(0) && condition(1))
#define NOBODY_HAS_VERSION (!HAS_VERSION(0) && !HAS_VERSION(1))
#else
#define EVERY_RECEIVER(condition) condition(0)
#define NOBODY_HAS_VERSION (!HAS_VERSION(0))
#endif
/* Whom the next prepare binds: beside members those that wait with the committed version, and if
 * that is nobody with a version, those that wait without one. */
#define WITHOUT_VERSION(r) (row_state[r] != ENROLLED && row_restored[r] == NONE)
#define HAS_VERSION(r) (row_incarnation[r] != 0 && row_restored[r] != NONE && \
                        (row_state[r] == MEMBER || \
                         (row_state[r] == WAITING && row_restored[r] == committed)))
#define BOUND_NEXT(r) (row_incarnation[r] != 0 && \
                       (row_state[r] == MEMBER || ADMITTED(r) || \
                        (WITHOUT_VERSION(r) && NOBODY_HAS_VERSION)))
#define NOT_BOUND_NEXT(r) (!BOUND_NEXT(r))

#if PER_ENGINE > 1
#define EVERY_OF(e, condition) (condition(2 * (e), e) && condition(2 * (e) + 1, e))
#define ANY_OF(e, condition) (condition(2 * (e), e) || condition(2 * (e) + 1, e))
#else
#define EVERY_OF(e, condition) condition(e, e)
#define ANY_OF(e, condition) condition(e, e)
#endif
#define IN_ATTEMPT(r, e) (current[r] != 0)
#define PROVEN(r, e) (proof[r] == committed)
#define STILL_PROVEN(r, e) (proof[r] == label[e])
#define LIVING(r, e) (row_incarnation[r] == incarnation[r] && row_state[r] == MEMBER)

#define BOUND_TO(t, r) (bound[(t) * RECEIVERS + (r)])
#define ACKNOWLEDGED(r) (BOUND_TO(attempt, r) == 0 || ((acknowledged >> (r)) & 1))
/* It has stopped, or is gone: another incarnation has its row, or none. */
#define STOPPED(r) (BOUND_TO(attempt, r) == 0 || ((stopped >> (r)) & 1) || \
                    row_incarnation[r] != BOUND_TO(attempt, r))
#define NOT_STOPPED(r, e) (!STOPPED(r))
#define GONE(r) (BOUND_TO(attempt, r) != 0 && BOUND_TO(attempt, r) != incarnation[r])
#define HERE(r) (!GONE(r))
#define CANDIDATE_HERE(o) (candidate_of[attempt * OWNERS + (o)] == candidate[o])

/* Every word of the receiver is what attempt g made of it. */
inline assert_holds(r, g) {
  for (k : 0 .. OWNERS - 1) {
    assert(word[(r) * OWNERS + k] == WORD_OF(candidate_of[(g) * OWNERS + k]))
  }
}

/* -------------------------------------------------------------------------------- transactions */

#ifdef MUTANT_MIXED_RETRY
#define NEXT_MODE MIXED
#else
#define NEXT_MODE (DIRTY -> OVERWRITE : MIXED)
#endif

#ifdef MUTANT_ADMIT_ANY_VERSION
#define ADMITTED(r) (row_state[r] == WAITING)
#else
#define ADMITTED(r) (row_state[r] == WAITING && row_restored[r] == committed)
#endif

/* Whether an owner's receivers may hold other weights than the candidate's. */
#ifdef MUTANT_OTHER_CANDIDATE_NOT_DENSE
#define OTHER_WRITTEN(o, c) false
#else
#define OTHER_WRITTEN(o, c) (DIRTY && written[o] != (c))
#endif

#ifdef WITHOUT_ACTIVE_CHECK
#define MAY_PREPARE true
#else
#define MAY_PREPARE (state != ACTIVE)
#endif

/* prepare. `late` owners' candidates are those that they declared before they changed them. */
inline prepare(late) {
  attempt++;
  token_of[attempt] = token;
  base[attempt] = committed;
  base_version[attempt] = committed_version;
  mode[attempt] = NEXT_MODE;
  for (i : 0 .. OWNERS - 1) {
    k = candidate[i] - (((late) >> i) & 1);
    candidate_of[attempt * OWNERS + i] = k;
    if
    :: OTHER_WRITTEN(i, k) -> dense[attempt] = dense[attempt] | (1 << i)
    :: else -> skip
    fi
  }
  j = NOBODY_HAS_VERSION;
  for (i : 0 .. RECEIVERS - 1) {
    if
    :: row_incarnation[i] != 0 && (row_state[i] == MEMBER || ADMITTED(i) || (j && WITHOUT_VERSION(i))) ->
       bound[attempt * RECEIVERS + i] = row_incarnation[i];
       row_state[i] = MEMBER;
       if
#ifndef MUTANT_MIXED_FOR_NO_VERSION
       :: row_restored[i] == NONE -> dense[attempt] = ALL_OWNERS
#endif
       :: else -> row_restored[i] = 0
       fi
    :: else -> skip
    fi
  }
  state = ACTIVE;
  acknowledged = 0;
  stopped = 0
}

/* open, and open_apply right after it. */
inline open(t) {
#ifndef MUTANT_OPEN_UNNOTED
  for (i : 0 .. OWNERS - 1) {
    k = candidate_of[(t) * OWNERS + i];
    if
#ifdef MUTANT_WRITTEN_FORGOTTEN
    :: true -> written[i] = k
#endif
    :: written[i] == 0 || written[i] == k -> written[i] = k
    :: else -> written[i] = UNKNOWN
    fi
  }
#endif
  open_sent[t] = 1
}

/* Of an attempt that is over nobody counts acknowledgments, and its commit is refused: forgetting
 * both keeps states equal that differ in nothing else. */
inline end_attempt() {
  acknowledged = 0;
#ifndef MUTANT_COMMIT_OBSOLETE
  commit_sent[attempt] = 0;
#endif
}

inline make_obsolete() {
  if
  :: state == ACTIVE ->
     state = OBSOLETE;
     stop_sent[attempt] = 1;
     end_attempt()
  :: else -> skip
  fi
}

inline note_unknown() {
  if
  :: state == OBSOLETE -> for (i : 0 .. OWNERS - 1) { written[i] = UNKNOWN }
  :: else -> skip
  fi
}

#if defined(MUTANT_COMMIT_OBSOLETE)
#define MAY_COMMIT(t) (state != COMMITTED && committed == base[t])
#elif defined(WITHOUT_BASE_CHECK)
#define MAY_COMMIT(t) (attempt == (t) && state == ACTIVE)
#else
#define MAY_COMMIT(t) (attempt == (t) && state == ACTIVE && committed == base[t] && \
                       committed_version == base_version[t])
#endif

inline commit(t) {
  assert(!stop_sent[t]); /* whoever decided that it failed was right */
  assert(committed == base[t] && committed_version == base_version[t]);
  committed = t;
  committed_version = base_version[t] + 1;
  state = COMMITTED;
  was_committed = was_committed | (1 << (t));
  end_attempt();
  for (i : 0 .. OWNERS - 1) { written[i] = 0 }
  for (i : 0 .. RECEIVERS - 1) {
    if
    :: BOUND_TO(t, i) != 0 && BOUND_TO(t, i) == incarnation[i] -> assert_holds(i, t)
    :: else -> skip
    fi;
    if
    :: BOUND_TO(t, i) != 0 && BOUND_TO(t, i) == row_incarnation[i] -> row_restored[i] = 0
    :: else -> skip
    fi;
    /* No member serves another version. */
    assert(!(LIVING(i, 0) && gate[ENGINE_OF(i)] && label[ENGINE_OF(i)] != committed))
  };
  skip
}

proctype ControlPlane() {
  /* A commit may reach the store long after it was asked for. */
end:
  do
  :: d_step { commit_sent[1] && MAY_COMMIT(1) -> commit(1) }
  :: d_step { commit_sent[2] && MAY_COMMIT(2) -> commit(2) }
#if ATTEMPTS > 2
  :: d_step { commit_sent[3] && MAY_COMMIT(3) -> commit(3) }
#endif
#if ATTEMPTS > 3
  :: d_step { commit_sent[4] && MAY_COMMIT(4) -> commit(4) }
#endif
  od
}

/* --------------------------------------------------------------------------------- coordinator */

#ifdef LIVENESS
/* It fails an attempt when it learns that the attempt cannot end, or for no reason. */
/* Trainers call for the next transition once they have other weights than those committed. For
 * safety they may call at any time. */
#define OTHER_WEIGHTS(o) (candidate[o] != candidate_of[committed * OWNERS + (o)])
#define TRAINERS_CALLED EVERY_OWNER(OTHER_WEIGHTS)
#define MAY_FAIL ((phase != COMMITTING && !(EVERY_RECEIVER(HERE) && EVERY_OWNER(CANDIDATE_HERE))) \
                  || failures > 0)
#define SPEND_FAILURE \
  if \
  :: phase != COMMITTING && !(EVERY_RECEIVER(HERE) && EVERY_OWNER(CANDIDATE_HERE)) -> skip \
  :: else -> failures-- \
  fi
#else
#define TRAINERS_CALLED true
#define MAY_FAIL true
#define SPEND_FAILURE skip
#endif

#ifdef MUTANT_ONE_ACKNOWLEDGMENT
#define ALL_ACKNOWLEDGED (acknowledged != 0)
#else
#define ALL_ACKNOWLEDGED EVERY_RECEIVER(ACKNOWLEDGED)
#endif

#ifdef WITHOUT_STOP
#define ALL_STOPPED true
#else
#define ALL_STOPPED EVERY_RECEIVER(STOPPED)
#endif

inline after_decision() {
  if
  :: state == COMMITTED -> phase = READY
  :: else -> phase = STOPPING
  fi
}

inline retire(e) {
  suspicions--;
  for (i : (e) * PER_ENGINE .. (e) * PER_ENGINE + PER_ENGINE - 1) {
    if
    :: row_incarnation[i] <= BOUND_TO(attempt, i) ->
       row_incarnation[i] = 0;
       row_state[i] = ENROLLED;
       row_restored[i] = 0
    :: else -> skip
    fi
  };
  skip
}

/* The one that leads. What replaced ones may still do: process Replaced. */
proctype Coordinator() {
end:
  do
  :: d_step { phase == READY && MAY_PREPARE && attempt < ATTEMPTS && committed_version < VERSIONS &&
              !EVERY_RECEIVER(NOT_BOUND_NEXT) && TRAINERS_CALLED -> prepare(0); phase = PREPARED }
#if CHANGES > 0 && !defined(LIVENESS)
  :: d_step { phase == READY && MAY_PREPARE && attempt < ATTEMPTS && committed_version < VERSIONS &&
              !EVERY_RECEIVER(NOT_BOUND_NEXT) && candidate[0] > 1 ->
              prepare(1); phase = PREPARED }
#endif
  :: d_step { phase == PREPARED && state == ACTIVE -> open(attempt); phase = OPENED }
  :: d_step { phase == OPENED && state == ACTIVE && ALL_ACKNOWLEDGED ->
              commit_sent[attempt] = 1; phase = COMMITTING }
  :: d_step { phase == COMMITTING && state == COMMITTED ->
#ifdef MUTANT_GATE_WAITS_FOR_COORDINATOR
              told = committed;
#endif
              phase = READY }
  /* Whatever phase failed, and where commit's outcome is unknown: read_commit. */
  :: d_step { (phase == PREPARED || phase == OPENED || phase == COMMITTING) && MAY_FAIL &&
              state != COMMITTED ->
              SPEND_FAILURE;
#ifdef MUTANT_READ_WITHOUT_OBSOLETE
              stop_sent[attempt] = 1; phase = STOPPING
#else
              make_obsolete(); after_decision()
#endif
            }
#if ABORTS > 0
  :: d_step { aborts > 0 && attempt > 0 ->
              aborts--; make_obsolete(); note_unknown(); after_decision() }
#endif
#if SUSPICIONS > 0
  :: d_step { phase == STOPPING && suspicions > 0 && ANY_OF(0, NOT_STOPPED) -> retire(0) }
#if ENGINES > 1
  :: d_step { phase == STOPPING && suspicions > 0 && ANY_OF(1, NOT_STOPPED) -> retire(1) }
#endif
#endif
  :: d_step { phase == STOPPING && ALL_STOPPED -> phase = READY }
#if CLAIMS > 0
  /* Another coordinator takes its place. */
  :: d_step { claims > 0 ->
              claims--;
              token++;
#ifndef MUTANT_CLAIM_LEAVES_ACTIVE
              make_obsolete();
#endif
              if
              :: state == OBSOLETE -> phase = STOPPING
              :: else -> phase = READY
              fi }
#endif
  od
}

/* Coordinators that were replaced and do not know it: they go on with the attempt that they
 * prepared. (Ending an attempt that is over already changes nothing, and without a token there is
 * nothing else that the control plane would take.) */
#if CLAIMS > 0 && !defined(LIVENESS)
proctype Replaced() {
end:
  do
  :: d_step { state == ACTIVE && token_of[attempt] != token && !open_sent[attempt] ->
              open(attempt) }
  :: d_step { state == ACTIVE && token_of[attempt] != token && open_sent[attempt] &&
              !commit_sent[attempt] && ALL_ACKNOWLEDGED -> commit_sent[attempt] = 1 }
#ifdef WITHOUT_TOKEN
  :: d_step { token > 0 && MAY_PREPARE && attempt < ATTEMPTS && committed_version < VERSIONS &&
              !EVERY_RECEIVER(NOT_BOUND_NEXT) -> prepare(0); token_of[attempt] = token - 1 }
  :: d_step { state == ACTIVE && token_of[attempt] != token -> make_obsolete() }
#endif
  od
}
#endif

/* -------------------------------------------------------------------------------------- owners */

#ifdef MUTANT_BASELINE_UNCHECKED
#define SENDS_ALL(t, o) (((dense[t] >> (o)) & 1) || baseline[o] == NONE)
#else
#define SENDS_ALL(t, o) (((dense[t] >> (o)) & 1) || baseline[o] != base[t])
#endif

inline send(t, o) {
  j = (t) * OWNERS + (o);
  if
  :: SENDS_ALL(t, o) -> payload[j] = ABSOLUTE
  :: !SENDS_ALL(t, o) && weights[o] == baseline_words[o] -> payload[j] = EMPTY
  :: !SENDS_ALL(t, o) && weights[o] != baseline_words[o] ->
     payload[j] = (mode[t] == MIXED -> XOR : ABSOLUTE)
  fi;
  if
  :: payload[j] == XOR -> payload_from[j] = baseline_words[o]
  :: else -> skip
  fi;
  if
  :: payload[j] != EMPTY -> payload_to[j] = weights[o]
  :: else -> skip
  fi
}

/* Payloads are of the candidate that the attempt bound, and none follows one of a later attempt. */
#if ATTEMPTS > 3
#define LATER_UNSENT(t, o) \
  (((t) >= 2 || payload[2 * OWNERS + (o)] == UNSENT) && \
   ((t) >= 3 || payload[3 * OWNERS + (o)] == UNSENT) && \
   ((t) >= 4 || payload[4 * OWNERS + (o)] == UNSENT))
#elif ATTEMPTS > 2
#define LATER_UNSENT(t, o) \
  (((t) >= 2 || payload[2 * OWNERS + (o)] == UNSENT) && \
   ((t) >= 3 || payload[3 * OWNERS + (o)] == UNSENT))
#else
#define LATER_UNSENT(t, o) ((t) >= 2 || payload[2 * OWNERS + (o)] == UNSENT)
#endif
#define SEND(t) \
  :: d_step { (t) <= attempt && payload[(t) * OWNERS + o] == UNSENT && LATER_UNSENT(t, o) && \
              candidate_of[(t) * OWNERS + o] == candidate[o] -> send(t, o) }

#ifdef MUTANT_BASELINE_BEFORE_COMMIT
#define UPDATED_TO (commit_sent[attempt] -> attempt : committed)
#else
#define UPDATED_TO committed
#endif

inline make_candidate(o) {
  candidate[o]++;
  weights[o] = WORD_OF(candidate[o])
}

proctype Owner(byte o) {
end:
  do
  SEND(1)
  SEND(2)
#if ATTEMPTS > 2
  SEND(3)
#endif
#if ATTEMPTS > 3
  SEND(4)
#endif
  /* It reads K, brings its baseline up to it, and the trainer goes on. */
  :: d_step { baseline[o] != UPDATED_TO &&
              candidate_of[UPDATED_TO * OWNERS + o] == candidate[o] ->
              baseline[o] = UPDATED_TO;
              baseline_words[o] = weights[o];
              assert((was_committed >> baseline[o]) & 1);
              assert(baseline_words[o] == WORD_OF(candidate_of[baseline[o] * OWNERS + o]));
              if
              :: committed_version < VERSIONS -> make_candidate(o)
              :: else -> skip
              fi }
#if CHANGES > 0
  /* The trainer goes on without knowing what became of its refit. Any one of the owners: the first,
   * for they are alike. The baseline may stay, which is more than owners allow themselves. */
  :: d_step { o == 0 && changes > 0 ->
              changes--;
#ifdef MUTANT_CANDIDATE_UNDECLARED
              weights[o] = WORD_OF(candidate[o] + 1)
#else
              make_candidate(o)
#endif
            }
#endif
#if OWNER_RESTARTS > 0
  /* It loses both; what it loads makes another candidate. */
  :: d_step { o == 0 && owner_restarts > 0 ->
              owner_restarts--;
              baseline[o] = NONE;
              baseline_words[o] = 0;
              make_candidate(o) }
#endif
  od
}

/* ----------------------------------------------------------------------------------- receivers */

#ifdef MUTANT_PREPARE_AT_FENCE
#define ABOVE_FENCE(t) ((t) > fence[r] || ((t) == fence[r] && current[r] == 0))
#else
#define ABOVE_FENCE(t) ((t) > fence[r])
#endif
#ifdef WITHOUT_RESTORE_REFUSAL
#define MAY_BEGIN true
#else
#define MAY_BEGIN (restoring[r] == NONE)
#endif
#ifdef WITHOUT_ADDRESSEE_CHECK
#define ADDRESSED(t) (BOUND_TO(t, r) != 0)
#else
#define ADDRESSED(t) (BOUND_TO(t, r) == incarnation[r])
#endif
#ifdef MUTANT_UNDRAINED
#define DRAINED_FIRST(r) true
#else
#define DRAINED_FIRST(r) DRAINED(r)
#endif

#define BEGIN(t) \
  :: d_step { (t) <= attempt && ADDRESSED(t) && ABOVE_FENCE(t) && MAY_BEGIN && DRAINED_FIRST(r) -> \
              current[r] = t; fence[r] = t; applied[r] = 0; \
              VOID_OVER_PREPARE; restored[r] = NONE }

#ifdef MUTANT_KEEP_PROOF_OVER_PREPARE
#define VOID_OVER_PREPARE skip
#else
#define VOID_OVER_PREPARE proof[r] = NONE
#endif
#ifdef MUTANT_KEEP_PROOF_OVER_RESTART
#define VOID_OVER_RESTART skip
#else
#define VOID_OVER_RESTART proof[r] = NONE
#endif

/* stop_and_wait. Of attempts before the last nobody waits for the answer. */
#define STOP(t) \
  :: d_step { stop_sent[t] && ADDRESSED(t) && \
              (((t) == attempt && !((stopped >> r) & 1)) || fence[r] < (t) || \
               (current[r] != 0 && current[r] <= (t))) && \
              (current[r] == 0 || current[r] > (t) || DRAINED_FIRST(r)) -> \
              stop(t) }

inline stop(t) {
#ifndef MUTANT_STOP_WITHOUT_FENCE
  if
  :: fence[r] < (t) -> fence[r] = t
  :: else -> skip
  fi;
#endif
  if
  :: current[r] != 0 && current[r] <= (t) -> current[r] = 0; applied[r] = 0
  :: else -> skip
  fi;
  if
  :: (t) == attempt -> stopped = stopped | (1 << r)
  :: else -> skip
  fi
}

/* Threads write the payload. */
inline write(p, o) {
  if
  :: payload[p] == ABSOLUTE -> word[r * OWNERS + (o)] = payload_to[p]
  :: payload[p] == XOR ->
     word[r * OWNERS + (o)] =
       (word[r * OWNERS + (o)] == payload_from[p] -> payload_to[p] : JUNK)
  :: else -> skip
  fi
}

inline acknowledge() {
  proof[r] = current[r];
  if
  :: current[r] == attempt && state == ACTIVE -> acknowledged = acknowledged | (1 << r)
  :: else -> skip
  fi
}

inline note_applied(o) {
  applied[r] = applied[r] | (1 << (o));
  if
  :: applied[r] == ALL_OWNERS -> acknowledge()
  :: else -> skip
  fi
}

#ifdef MUTANT_WRITE_UNGATED
#define MAY_WRITE true
#else
#define MAY_WRITE (!gate[ENGINE_OF(r)])
#endif
#ifdef MUTANT_APPLIED_TWICE
#define NOT_YET(o) (!((applied[r] >> (o)) & 1) || applied[r] != ALL_OWNERS)
#else
#define NOT_YET(o) (!((applied[r] >> (o)) & 1))
#endif
#ifdef MUTANT_OLD_PAYLOAD
/* The payload that comes is not looked at for its attempt. */
#define OF_ATTEMPT(o) (current[r] - (current[r] > 1 && \
                                     payload[(current[r] - 1) * OWNERS + (o)] != UNSENT))
#else
#define OF_ATTEMPT(o) current[r]
#endif

#define TAKEN(o) (current[r] != 0 && open_sent[current[r]] && \
                  payload[current[r] * OWNERS + (o)] != UNSENT && NOT_YET(o) && MAY_WRITE)
#define CHECK_WRITE \
  assert(!gate[ENGINE_OF(r)]); \
  assert(restoring[r] == NONE); \
  assert(!(current[r] == attempt && ((stopped >> r) & 1)))

/* Threads of an attempt write one payload at a time. Another attempt's would not wait for them. */
#ifdef SLOW_WRITES
#define APPLY(o) \
  :: d_step { TAKEN(o) && writing[r] == 0 -> \
              CHECK_WRITE; writing[r] = 1 + OF_ATTEMPT(o) * OWNERS + (o) } \
  :: d_step { TAKEN(o) && writing[r] != 0 && (writing[r] - 1) / OWNERS != current[r] -> \
              CHECK_WRITE; write(OF_ATTEMPT(o) * OWNERS + (o), o); note_applied(o) } \
  :: d_step { writing[r] != 0 && (writing[r] - 1) % OWNERS == (o) -> \
              j = writing[r] - 1; writing[r] = 0; write(j, o); \
              assert(!(j / OWNERS == attempt && ((stopped >> r) & 1))); \
              if \
              :: current[r] == j / OWNERS -> note_applied(o) \
              :: else -> skip \
              fi }
#else
#define APPLY(o) \
  :: d_step { TAKEN(o) -> \
              CHECK_WRITE; write(OF_ATTEMPT(o) * OWNERS + (o), o); note_applied(o) }
#endif

/* A new life, and the restore that it begins with. enrol answers with fence and K of its moment. */
inline enrol() {
  row_incarnation[r] = incarnation[r];
  row_state[r] = ENROLLED;
  row_restored[r] = 0;
#ifdef WITHOUT_RESTART_FENCE
  fence[r] = 0;
#else
  fence[r] = attempt;
#endif
  current[r] = 0;
  applied[r] = 0;
  VOID_OVER_RESTART;
  restored[r] = NONE;
  restoring[r] = committed;
  gate[ENGINE_OF(r)] = 0
}

inline restart() {
  restarts--;
  for (i : 0 .. OWNERS - 1) { word[r * OWNERS + i] = JUNK }
#ifdef MUTANT_KEEP_INCARNATION
  /* It goes on as the same endpoint: it keeps its place among the members too. */
  i = row_incarnation[r];
  j = row_state[r];
  enrol();
  row_incarnation[r] = i;
  row_state[r] = j
#else
  incarnation[r]++;
  enrol()
#endif
}

/* A restore takes what is committed from the owners' baselines. */
#ifdef MUTANT_RESTORE_FROM_CANDIDATE
#define RESTORE_WORD(o) weights[o]
#else
#define RESTORE_WORD(o) baseline_words[o]
#endif
#define HAS_SOURCE(o) (baseline[o] == restoring[r])
#ifdef MUTANT_SUCCESSOR_DOES_NOT_WAIT
#define PREDECESSOR_JOINED true
#else
#define PREDECESSOR_JOINED DRAINED(r)
#endif

#ifdef MUTANT_JOIN_ANY_VERSION
#define CURRENT_VERSION true
#else
#define CURRENT_VERSION (restored[r] == committed)
#endif
#ifdef MUTANT_JOIN_WHILE_ACTIVE
#define MAY_JOIN true
#else
#define MAY_JOIN (state != ACTIVE)
#endif

/* join; it asks again and again, which changes nothing until something else has changed. */
inline join() {
  if
  :: row_state[r] == MEMBER && MAY_JOIN ->
     assert_holds(r, restored[r]);
     proof[r] = restored[r];
     restored[r] = NONE
  :: row_state[r] != MEMBER && !CURRENT_VERSION -> begin_restore()
  :: row_state[r] != MEMBER && CURRENT_VERSION && MAY_JOIN ->
     row_state[r] = MEMBER;
     row_restored[r] = 0;
     assert_holds(r, restored[r]);
     proof[r] = restored[r];
     restored[r] = NONE
  :: row_state[r] == ENROLLED && CURRENT_VERSION && !MAY_JOIN ->
     row_state[r] = WAITING;
     row_restored[r] = restored[r]
  fi
}
/* K can be had from nobody: it waits without a version. When owners have it after all, it begins a
 * new life. */
#define HAS_COMMITTED(o) (baseline[o] == committed)
inline join_without_version() {
  restoring[r] = NONE;
  row_state[r] = WAITING;
  row_restored[r] = NONE
}
#define JOIN_CHANGES (row_state[r] == MEMBER -> MAY_JOIN : \
                      (!CURRENT_VERSION || MAY_JOIN || row_state[r] == ENROLLED))

inline begin_restore() {
#ifdef WITHOUT_RESTORE_INCARNATION
  current[r] = 0;
  applied[r] = 0;
  proof[r] = NONE;
  restored[r] = NONE;
  restoring[r] = committed
#else
  incarnation[r]++;
  enrol()
#endif
}

proctype Receiver(byte r) {
end:
  do
  BEGIN(1)
  BEGIN(2)
#if ATTEMPTS > 2
  BEGIN(3)
#endif
#if ATTEMPTS > 3
  BEGIN(4)
#endif
  APPLY(0)
#if OWNERS > 1
  APPLY(1)
#endif
#ifdef MUTANT_QUEUEING_ACKNOWLEDGED
#define QUEUED(o) (payload[current[r] * OWNERS + (o)] != UNSENT)
  :: d_step { current[r] != 0 && current[r] == attempt && state == ACTIVE &&
              EVERY_OWNER(QUEUED) && !((acknowledged >> r) & 1) ->
              acknowledged = acknowledged | (1 << r) }
#endif
  STOP(1)
  STOP(2)
#if ATTEMPTS > 2
  STOP(3)
#endif
#if ATTEMPTS > 3
  STOP(4)
#endif
#if RESTARTS > 0
  /* Its memory is lost, or kept as nobody knows what. Any one of them: the first, they are alike. */
  :: d_step { r == 0 && restarts > 0 -> restart() }
#endif
#ifndef MUTANT_BARRED_NEVER_LOOKS
  /* It learns that it was barred. */
  :: d_step { row_incarnation[r] != incarnation[r] && DRAINED(r) -> incarnation[r]++; enrol() }
#endif
  :: d_step { restoring[r] != NONE && EVERY_OWNER(HAS_SOURCE) && PREDECESSOR_JOINED ->
              assert(!gate[ENGINE_OF(r)]);
              for (i : 0 .. OWNERS - 1) { word[r * OWNERS + i] = RESTORE_WORD(i) }
              restored[r] = restoring[r];
              restoring[r] = NONE }
#ifndef MUTANT_NEVER_WITHOUT_VERSION
  :: d_step { restoring[r] != NONE && restoring[r] == committed && !EVERY_OWNER(HAS_COMMITTED) &&
              row_incarnation[r] == incarnation[r] && row_state[r] == ENROLLED ->
              join_without_version() }
#endif
  :: d_step { row_incarnation[r] == incarnation[r] && row_state[r] == WAITING &&
              row_restored[r] == NONE && EVERY_OWNER(HAS_COMMITTED) -> begin_restore() }
  /* K moved on under the restore. */
  :: d_step { restoring[r] != NONE && restoring[r] != committed -> begin_restore() }
  :: d_step { restored[r] != NONE && row_incarnation[r] == incarnation[r] && JOIN_CHANGES ->
              join() }
  od
}

/* --------------------------------------------------------------------------------------- gates */

#if defined(MUTANT_OPEN_ON_COMMIT_REQUEST)
/* It believes a message in place of reading K. */
#define HINTED(r, e) (proof[r] == attempt && commit_sent[attempt])
#define EVIDENCE(e) (EVERY_OF(e, PROVEN) || EVERY_OF(e, HINTED))
#define EVIDENT_VERSION(e) proof[(e) * PER_ENGINE]
#elif defined(MUTANT_ONE_RECEIVER_OPENS)
#define EVIDENCE(e) ANY_OF(e, PROVEN)
#define EVIDENT_VERSION(e) committed
#else
#define EVIDENCE(e) EVERY_OF(e, PROVEN)
#define EVIDENT_VERSION(e) committed
#endif
#ifdef MUTANT_ONE_RECEIVER_OPENS
#define MAY_OPEN(e) ANY_OF(e, STILL_PROVEN)
#else
#define MAY_OPEN(e) EVERY_OF(e, STILL_PROVEN)
#endif
#ifdef MUTANT_LABEL_BEFORE_COMMIT
#define FINISHED(r, e) (proof[r] == attempt)
#define MAY_LABEL(e) (EVERY_OF(e, FINISHED) || EVIDENCE(e))
#define LABEL_OF(e) proof[(e) * PER_ENGINE]
#elif defined(MUTANT_GATE_WAITS_FOR_COORDINATOR)
#define MAY_LABEL(e) (EVIDENCE(e) && told == committed)
#define LABEL_OF(e) committed
#else
#define MAY_LABEL(e) EVIDENCE(e)
#define LABEL_OF(e) EVIDENT_VERSION(e)
#endif

inline open_gate(e) {
  gate[e] = 1;
  assert((was_committed >> label[e]) & 1);
  for (i : (e) * PER_ENGINE .. (e) * PER_ENGINE + PER_ENGINE - 1) {
    assert_holds(i, label[e]);
    current[i] = 0;
    applied[i] = 0
  }
  /* A barred one may serve an old version until it learns so; a member never does. */
  assert(!EVERY_OF(e, LIVING) || label[e] == committed)
}

proctype Gate(byte e) {
end:
  do
  /* With the attempt's beginning, or only when the attempt is staged: any time. */
  :: d_step { gate[e] && ANY_OF(e, IN_ATTEMPT) -> gate[e] = 0 }
  /* A read of K and what its receivers have finished or restored; label, caches, gate. A join's
   * answer is such a read. */
  :: d_step { !gate[e] && MAY_LABEL(e) && label[e] != LABEL_OF(e) ->
              label[e] = LABEL_OF(e);
              assert((was_committed >> label[e]) & 1) }
  :: d_step { !gate[e] && MAY_OPEN(e) -> open_gate(e) }
  od
}

init {
  atomic {
    run ControlPlane();
    run Coordinator();
#if CLAIMS > 0 && !defined(LIVENESS)
    run Replaced();
#endif
    for (i : 0 .. OWNERS - 1) { run Owner(i) }
    for (i : 0 .. RECEIVERS - 1) { run Receiver(i) }
    for (i : 0 .. ENGINES - 1) { run Gate(i) }
  }
}

/* ------------------------------------------------------------------------------------ liveness */

#ifdef LIVENESS
/* Once faults have stopped: all versions are committed and every gate is open under the last one.
 * This is asked of every run, not only of fair ones: the model has none that is endless, as every
 * step uses up something, and one that cannot go on counts as staying where it is. */
#define OPEN_UNDER_LAST(e) (gate[e] && label[e] == committed)
#if ENGINES > 1
#define ALL_OPEN (OPEN_UNDER_LAST(0) && OPEN_UNDER_LAST(1))
#else
#define ALL_OPEN OPEN_UNDER_LAST(0)
#endif
#if OWNER_RESTARTS > 0
/* What an owner has lost after the last commit, no receiver gets before another. */
#define SERVED (ALL_OPEN || !EVERY_OWNER(HAS_COMMITTED))
#else
#define SERVED ALL_OPEN
#endif
ltl ends { <>[] (committed_version == VERSIONS && SERVED) }
#endif
