/* Addresses and strides of the elements of a job, in bytes, for numbers and flags. */
#ifndef RL_RETURNS_PLACES_H
#define RL_RETURNS_PLACES_H

#include "../common/dispatch.h"
#include "returns.h"

/* An address for each slot, or a distance; 0 where the slot is absent. */
typedef struct {
  int64_t of[RL_SLOTS];
} rl_slots;

typedef struct {
  rl_slots start, outer, time, inner; /* of the first element, and from one element to the next */
  int along_time, along_inner;        /* whether elements are contiguous there, in every tensor */
} rl_places;

RL_INLINE int is_flag(int slot) { return slot == RL_DONE || slot == RL_TERMINATED; }

enum {
  RL_SUM = RL_VTRACE + 1, /* TD(lambda) where nothing is bootstrapped */
  RL_EVEN                 /* V-trace where a trace is cut as a ratio is: its advantage is the target less the value */
};

RL_INLINE int kind_of(const rl_returns_job *job) {
  if (job->kind == RL_TD_LAMBDA && !job->data[RL_NEXT_VALUE])
    return RL_SUM;
  const int even = job->lambda == 1 && job->rho_bar == job->c_bar && !job->data[RL_GAMMA] && !job->data[RL_LAMBDA];
  return job->kind == RL_VTRACE && even ? RL_EVEN : (int)job->kind;
}

RL_INLINE int has_ratio(int kind) { return kind == RL_VTRACE || kind == RL_EVEN; }

RL_INLINE int has_value(int kind) { return kind == RL_GAE || has_ratio(kind); }

/* Whether nothing may follow the last step. GAE and V-trace multiply the zero that does; the others look at the weight,
 * which may not be there, or share it between what follows and the bootstrapped value. */
RL_INLINE int ends_itself(int kind) { return !has_value(kind); }

/* Whether outputs need the slot besides x and d. */
RL_INLINE int read_again(int kind, int slot) {
  if (slot == RL_VALUE)
    return has_value(kind);
  return kind == RL_VTRACE && (slot == RL_RATIO || slot == RL_GAMMA || slot == RL_DONE);
}

RL_INLINE rl_slots moved(rl_slots from, const rl_slots *step) {
  for (int slot = 0; slot < RL_SLOTS; slot++)
    from.of[slot] += step->of[slot];
  return from;
}

RL_INLINE rl_slots times(const rl_slots *step, int64_t count) {
  rl_slots all;
  for (int slot = 0; slot < RL_SLOTS; slot++)
    all.of[slot] = step->of[slot] * count;
  return all;
}

static rl_slots place_of(const rl_places *places, int64_t outer, int64_t time, int64_t inner) {
  const rl_slots o = times(&places->outer, outer), t = times(&places->time, time), i = times(&places->inner, inner);
  return moved(moved(moved(places->start, &o), &t), &i);
}

static rl_places places_of(const rl_returns_job *job) {
  rl_places places = {.along_time = 1, .along_inner = 1};
  for (int slot = 0; slot < RL_SLOTS; slot++) {
    const int64_t size = !job->data[slot] ? 0 : is_flag(slot) ? 1 : job->bits / 8;
    places.start.of[slot] = job->data[slot];
    places.outer.of[slot] = job->stride[slot][0] * size;
    places.time.of[slot] = job->stride[slot][1] * size;
    places.inner.of[slot] = job->stride[slot][2] * size;
    places.along_time &= places.time.of[slot] == size;
    places.along_inner &= places.inner.of[slot] == size;
  }
  return places;
}

#endif
