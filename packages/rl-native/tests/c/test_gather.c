/* Rows of every size around the copies that are one instruction, in memory of exactly the size that it needs, so that the
 * sanitizers see a step outside. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "gather.h"

RL_API int64_t rl_gather(const void *bytes);

typedef struct {
  rl_gather_job head;
  rl_gather_column column[2];
} job_of_two;

static void *exactly(int64_t bytes) { return malloc((size_t)(bytes > 0 ? bytes : 1)); }

static int is_right(int64_t bytes, int64_t count, int64_t capacity) {
  unsigned char *rows = exactly(capacity * bytes), *copies = exactly(count * bytes);
  int64_t *index = exactly(8 * count), *numbers = exactly(8 * capacity), *places = exactly(8 * count);
  for (int64_t i = 0; i < capacity * bytes; i++)
    rows[i] = (unsigned char)(i * 31 + i / 251);
  for (int64_t i = 0; i < capacity; i++)
    numbers[i] = i;
  for (int64_t i = 0; i < count; i++)
    index[i] = i * 7919 % capacity;
  const job_of_two job = {{2, count, 1, capacity, (int64_t)(intptr_t)index},
                          {{bytes, bytes, (int64_t)(intptr_t)rows, (int64_t)(intptr_t)copies},
                           {8, 8, (int64_t)(intptr_t)numbers, (int64_t)(intptr_t)places}}};
  int right = rl_gather(&job) == -1;
  for (int64_t i = 0; right && i < count; i++)
    right = !memcmp(copies + i * bytes, rows + index[i] * bytes, (size_t)bytes) && places[i] == index[i];
  memset(copies, 7, (size_t)(count * bytes));
  for (int64_t wrong = -1; count && wrong <= capacity; wrong += capacity + 1) {
    index[count - 1] = wrong; /* nothing is written when one is refused, even the last */
    right = right && rl_gather(&job) == count - 1;
  }
  for (int64_t i = 0; count && i < count * bytes; i++)
    right = right && copies[i] == 7;
  free(rows);
  free(copies);
  free(index);
  free(numbers);
  free(places);
  return right;
}

/* Runs of rows that lie `stride` bytes apart; the last row ends where memory does. */
static int runs_are_right(int64_t bytes, int64_t stride, int64_t steps, int64_t count) {
  const int64_t capacity = steps + 9, size = (capacity - 1) * stride + bytes;
  unsigned char *rows = exactly(size), *copies = exactly(count * steps * bytes);
  int64_t *index = exactly(8 * count), *numbers = exactly(8 * capacity), *places = exactly(8 * count * steps);
  for (int64_t i = 0; i < size; i++)
    rows[i] = (unsigned char)(i * 31 + i / 251);
  for (int64_t i = 0; i < capacity; i++)
    numbers[i] = i;
  for (int64_t i = 0; i < count; i++)
    index[i] = i * 7919 % 10;
  const job_of_two job = {{2, count, steps, 10, (int64_t)(intptr_t)index},
                          {{bytes, stride, (int64_t)(intptr_t)rows, (int64_t)(intptr_t)copies},
                           {8, 8, (int64_t)(intptr_t)numbers, (int64_t)(intptr_t)places}}};
  int right = rl_gather(&job) == -1;
  for (int64_t i = 0; right && i < count * steps; i++) {
    const int64_t row = index[i / steps] + i % steps;
    right = !memcmp(copies + i * bytes, rows + row * stride, (size_t)bytes) && places[i] == row;
  }
  free(rows);
  free(copies);
  free(index);
  free(numbers);
  free(places);
  return right;
}

int main(void) {
  const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 63, 64, 65, 128, 255, 256, 257, 1000};
  const int64_t counts[] = {0, 1, 2, 15, 16, 17, 33, 100};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
      for (int64_t capacity = 1; capacity < 60; capacity += 19)
        if (!is_right(sizes[s], counts[c], capacity)) {
          fprintf(stderr, "rows of %d bytes, %d of %d\n", (int)sizes[s], (int)counts[c], (int)capacity);
          return 1;
        }
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
      for (int64_t steps = 1; steps < 40; steps += 19)
        for (int64_t gap = 0; gap < 70; gap += 23)
          if (!runs_are_right(sizes[s], sizes[s] + gap, steps, counts[c])) {
            fprintf(stderr, "%d runs of %d rows of %d bytes, %d apart\n", (int)counts[c], (int)steps, (int)sizes[s],
                    (int)(sizes[s] + gap));
            return 1;
          }
  return 0;
}
