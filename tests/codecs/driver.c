// Call kernels with the arguments that standard input holds, and write what each call returns and leaves in its buffers.
// A call: its name, NUL; the number of arguments, int64; each argument: 'p', int64 length and bytes of a buffer, or 'n'
// and an int64, or 'f' and a float. All but floats travel in 8-byte registers or slots, so one type serves all kernels.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KERNELS(K) \
    K(minmax8_encode) K(minmax8_encode_feedback) K(minmax8_decode) K(sign_encode) K(sign_encode_feedback) \
    K(sign_decode) K(levels_encode) K(levels_decode) K(topk_encode) K(natural_encode) K(natural_decode) K(fp8_encode) \
    K(fp8_decode) K(add_at) K(clear_at) K(block_rms) K(randomk_gather) \
    K(randomk_add) K(randomk_clear) K(low_rank_left) K(low_rank_right) K(low_rank_split) K(all_finite) K(scale) \
    K(hash_bytes)
#define DECLARE(name) extern void name(void);
#define ENTRY(name) {#name, name},
KERNELS(DECLARE)
static const struct { const char *name; void (*call)(void); } table[] = {KERNELS(ENTRY)};
typedef uint64_t (*kernel)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
typedef uint64_t (*scaling)(int64_t, int64_t, float);

static void take(void *into, size_t size) {
    if (fread(into, 1, size, stdin) != size) exit(3);
}

int main(void) {
    for (int first; (first = getchar()) != EOF;) {
        char name[64] = {(char)first};
        for (int k = 1; name[k - 1] && k < 63; k++) take(name + k, 1);
        int64_t count, value[8] = {0}, length[8] = {0};
        float factor = 0;
        take(&count, 8);
        for (int64_t k = 0; k < count; k++) {
            char kind;
            take(&kind, 1);
            if (kind == 'f') {
                take(&factor, 4);
                continue;
            }
            take(kind == 'p' ? &length[k] : &value[k], 8);
            if (kind == 'p' && length[k]) {
                void *buffer = aligned_alloc(64, (size_t)(length[k] + 63) / 64 * 64);
                take(buffer, (size_t)length[k]);
                value[k] = (int64_t)(intptr_t)buffer;
            }
        }
        for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
            if (strcmp(name, table[k].name)) continue;
            uint64_t result = !strcmp(name, "scale")
                                  ? ((scaling)table[k].call)(value[0], value[1], factor)
                                  : ((kernel)table[k].call)(value[0], value[1], value[2], value[3], value[4], value[5],
                                                            value[6], value[7]);
            fwrite(&result, 8, 1, stdout);
        }
        for (int64_t k = 0; k < count; k++)
            if (length[k]) fwrite((void *)(intptr_t)value[k], 1, (size_t)length[k], stdout);
    }
    return 0;
}
