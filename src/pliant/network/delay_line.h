// When a packet goes on, and whether it does: the arithmetic of one queue of the delay relay, without any system call.
#ifndef PLIANT_DELAY_LINE_H
#define PLIANT_DELAY_LINE_H
#include <stdint.h>

typedef struct {
    int64_t delay_ns, jitter_ns;
    double loss;
    uint64_t random;  // state of the generator; never 0
    int64_t last_ns;  // when the latest packet goes on
} delay_line_t;

// An even number from 0 up to, but not including, 1 (xorshift64*, Vigna 2016, doi:10.1145/2845077).
static inline double draw(delay_line_t *line) {
    line->random ^= line->random >> 12;
    line->random ^= line->random << 25;
    line->random ^= line->random >> 27;
    return (double)((line->random * 0x2545F4914F6CDD1Dull) >> 11) / 9007199254740992.0;
}

static inline int is_lost(delay_line_t *line) {
    return line->loss > 0 && draw(line) < line->loss;
}

// The time at which a packet goes on that has arrived now: never before one that came earlier.
static inline int64_t due_ns(delay_line_t *line, int64_t now_ns) {
    int64_t due = now_ns + line->delay_ns;
    if (line->jitter_ns > 0) due += (int64_t)(draw(line) * (double)line->jitter_ns);
    if (due < line->last_ns) due = line->last_ns;
    line->last_ns = due;
    return due;
}
#endif
