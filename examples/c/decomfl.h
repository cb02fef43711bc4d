/* Rebuilds the model of a run from its log: x_0 from the noise stream, then the records, to the bit.
   docs/run-log.md and docs/noise-stream.md say all that is done here; rebuild.c shows how the names decomfl_ are used.

   C11 and its standard library. Compile with -ffp-contract=off: a fused multiply-add rounds once where the stream
   rounds twice, so its bits are others. GCC fuses where GNU extensions are on, Clang wherever the processor can. */
#ifndef DECOMFL_H
#define DECOMFL_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

_Static_assert(FLT_EVAL_METHOD == 0, "a float must be computed as a float, not as something longer");

enum { TILE = 128, GAUSSIAN = 0, SPHERE, RADEMACHER };

/* 1. Numbers in the file, and hashes. ----------------------------------------------------------------------------- */
static uint64_t number(const uint8_t *at, int bytes) {
    uint64_t found = 0;
    while (bytes--) found = found << 8 | at[bytes];
    return found;
}

static void put(uint8_t *at, uint64_t value, int bytes) {
    for (; bytes--; value >>= 8) *at++ = (uint8_t)value;
}

static float real(uint32_t bits) { return (union { uint32_t bits; float value; }){bits}.value; }
static uint32_t bits_of(float value) { return (union { float value; uint32_t bits; }){value}.bits; }

static uint32_t crc_32(const uint8_t *at, size_t size) {
    uint32_t crc = UINT32_MAX;
    while (size--) {
        crc ^= *at++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

/* BLAKE2b (RFC 7693). */
static const uint64_t IV[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

static uint64_t turned(uint64_t v, int by) { return v >> by | v << (64 - by); }

static void compress(uint64_t *h, const uint8_t *block, uint64_t done, int last) {
    static const char *orders[10] = {
        "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d",
        "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0"};
    uint64_t v[16], m[16];
    memcpy(v, h, 64);
    memcpy(v + 8, IV, 64);
    v[12] ^= done;
    if (last) v[14] = ~v[14];
    for (int n = 0; n < 16; n++) m[n] = number(block + 8 * n, 8);
    for (int round = 0; round < 12; round++) {
        const char *order = orders[round % 10];
        for (int n = 0; n < 8; n++) { /* four columns, then four diagonals */
            int i = n % 4, s = n / 4, p = 4 + (i + s) % 4, q = 8 + (i + 2 * s) % 4, t = 12 + (i + 3 * s) % 4;
            for (int half = 0; half < 2; half++, order++) {
                v[i] += v[p] + m[*order <= '9' ? *order - '0' : *order - 'a' + 10];
                v[t] = turned(v[t] ^ v[i], half ? 16 : 32);
                v[q] += v[t];
                v[p] = turned(v[p] ^ v[q], half ? 63 : 24);
            }
        }
    }
    for (int n = 0; n < 8; n++) h[n] ^= v[n] ^ v[n + 8];
}

/* "size" bytes of the hash of at least one byte; a key has 8 bytes, and the person "decomfl-v1" goes with it. */
static void blake2b(uint8_t *out, unsigned size, const uint8_t *key, const uint8_t *at, size_t count) {
    uint64_t h[8];
    uint8_t block[128] = {0};
    memcpy(h, IV, 64);
    h[0] ^= 0x01010000 ^ (key ? 0x800 : 0) ^ size;
    if (key) {
        h[6] ^= number((const uint8_t *)"decomfl-", 8);
        h[7] ^= number((const uint8_t *)"v1", 2);
        memcpy(block, key, 8);
        compress(h, block, 128, 0);
    }
    for (size_t done = 0, part; done < count; done += part) {
        part = count - done < 128 ? count - done : 128;
        memset(block, 0, 128);
        memcpy(block, at + done, part);
        compress(h, block, (key ? 128 : 0) + done + part, done + part == count);
    }
    for (unsigned n = 0; n < size; n++) out[n] = (uint8_t)(h[n / 8] >> 8 * (n % 8));
}

/* The seed at a path of "count" numbers below another one. */
static uint64_t derive(uint64_t seed, unsigned count, uint64_t first) {
    uint8_t key[8], path[16] = {0};
    put(key, seed, 8);
    put(path, first, 8);
    blake2b(path, 8, key, path, 8u * count);
    return number(path, 8);
}

/* 2. The noise stream: words, normal numbers, directions. --------------------------------------------------------- */
/* The words of a tile: element 32 w + lane is word w of block 32 tile + lane. */
static void tile_words(uint32_t *out, uint64_t key, uint64_t tile, uint32_t c2, uint32_t tag) {
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint64_t block = 32 * tile + lane;
        uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), c2, tag};
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
            uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
            c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
            c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
            c[1] = (uint32_t)b;
            c[3] = (uint32_t)a;
        }
        for (uint32_t w = 0; w < 4; w++) out[32 * w + lane] = c[w];
    }
}

static float horner(float x, const float *c, int count) {
    float sum = *c++;
    while (--count) sum = sum * x + *c++;
    return sum;
}

/* Numbers are moved to the right with their sign, as compilers do. */
static void gaussian_tile(float *z, uint64_t key, uint64_t tile, uint32_t c2, uint32_t tag) {
    static const float LOG[] = {-0.244219363f, 0.375654489f,  -0.409095138f, 0.497935861f,
                                -0.666320562f, 1.00002801f, -2.00000167f};
    static const float SINE[] = {-0.0043710256f, 0.0795006678f, -0.645925999f, 1.57079518f};
    static const float COSINE[] = {0.000870188756f, -0.0208331067f, 0.25366348f, -1.23370039f, 1.0f};
    uint32_t words[TILE];
    tile_words(words, key, tile, c2, tag);
    for (int n = 0; n < 64; n++) {
        int at = n + (n & 32);
        uint32_t w1 = words[at + 32], b = bits_of((float)(words[at] >> 8 | 1));
        int32_t e = (int32_t)(b - 0x3f3504f3u) >> 23;
        float x = real(b - ((uint32_t)e << 23)) - 1.0f;
        float rho = sqrtf((float)(24 - e) * 1.38629436f + x * horner(x, LOG, 7));
        float t = (float)((int32_t)w1 >> 8 | 1) * 0x1p-23f, u = t * t;
        z[at] = rho * real(bits_of(horner(u, COSINE, 5)) ^ w1 << 31);
        z[at + 32] = rho * (t * horner(u, SINE, 4));
    }
}

typedef struct {
    const uint8_t *bytes;              /* the file, which must stay where it is */
    size_t size, at, left_out;         /* where the next entry begins; bytes at the end of one not written whole */
    char *header, error[400];          /* JSON; what is wrong */
    char recorded[33];                 /* the digest that the log has of the model as it is now, empty if none */
    uint32_t round;                    /* rounds applied */
    uint64_t run_seed, private_key, d, clients, planned; /* planned: the rounds that the run was to have */
    int keyed;                         /* whether seeds are hashed with the private key */
    double beta, weight, decay;        /* of the update rule: sgd, with momentum where beta is not 0 */
    float *x, *momentum;               /* one after the other in memory */
    uint8_t *bytes_of_x;               /* room for the bytes of both */
} decomfl;

/* sqrt(d / sum of squares), added in the specified order. */
static float radius(uint64_t key, uint32_t p, uint64_t d) {
    double sum = 0, squares[TILE];
    float z[TILE];
    for (uint64_t start = 0; start < d; start += TILE) {
        gaussian_tile(z, key, start / TILE, p, 0);
        for (uint64_t j = 0; j < TILE; j++) squares[j] = start + j < d ? (double)z[j] * z[j] : 0;
        for (int half = 64; half; half /= 2)
            for (int j = 0; j < half; j++) squares[j] += squares[j + half];
        sum += squares[0];
    }
    return (float)sqrt((double)d / sum);
}

/* v += c z for direction p of a seed. */
static void decomfl_add_direction(float *v, uint64_t d, float c, int kind, uint64_t key, uint32_t p) {
    float z[TILE], scale = kind == SPHERE ? radius(key, p, d) : 1;
    uint32_t words[TILE];
    for (uint64_t start = 0; start < d; start += TILE) {
        if (kind == RADEMACHER) tile_words(words, key, start / TILE, p >> 5, 1);
        else gaussian_tile(z, key, start / TILE, p, 0);
        for (uint64_t n = 0; n < TILE && start + n < d; n++) {
            if (kind == RADEMACHER) z[n] = words[n] << (p & 31) >> 31 ? -1.0f : 1.0f;
            if (kind == SPHERE) z[n] *= scale;
            v[start + n] += c * z[n];
        }
    }
}

/* 3. The start. ---------------------------------------------------------------------------------------------------- */
static int refuse(decomfl *r, const char *text) {
    snprintf(r->error, sizeof r->error, "%s", text);
    return -1;
}

/* The elements of the tensor at "own", once what the header says of it is known to be sound; more than most is too many. */
static int size_of(decomfl *r, const char *own, unsigned t, uint64_t most, uint64_t *size) {
    char name[40];
    snprintf(name, sizeof name, "start.tensors[%u].", t);
    if (*own != '{') return refuse(r, "start.tensors in the header must be tables");
    if (check(r->error, sizeof r->error, own, TENSOR_RULES, name, "header")) return -1;
    *size = 1;
    for (const char *at = after_space(value(own, "shape") + 1); *at != ']'; at = after_space(after_value(at))) {
        uint64_t n;
        whole(at, 0, &n);
        *size = n && *size > UINT64_MAX / n ? UINT64_MAX : *size * n;
    }
    if (*value(own, "scale") == '-' && strtof(value(own, "scale"), NULL) < 0 && !is(value(own, "draw"), "constant"))
        return refuse(r, "scale must be 0 or more");
    if (*value(own, "cut") && *value(own, "cut") != 'n' && !is(value(own, "draw"), "normal")) return refuse(r, "cut must be left out unless draw is normal");
    return *size <= most ? 0 : refuse(r, "elements of the tensors of x_0 must be d in all, got more");
}

static void draw(const char *own, uint64_t key, uint32_t t, float *x, uint64_t size) {
    const char *how = value(own, "draw"), *cut = value(own, "cut");
    float scale = strtof(value(own, "scale"), NULL), most = *cut && *cut != 'n' ? strtof(cut, NULL) : INFINITY, z[TILE], next[TILE];
    uint32_t words[TILE];
    for (uint64_t start = 0; start < size; start += TILE) {
        uint64_t count = size - start < TILE ? size - start : TILE;
        if (is(how, "uniform")) tile_words(words, key, start / TILE, t, 4);
        if (is(how, "normal")) gaussian_tile(z, key, start / TILE, t, 4);
        for (uint32_t attempt = 1, left = 1; left && attempt < 65536 && is(how, "normal"); attempt++) {
            left = 0;
            for (uint64_t n = 0; n < count; n++) left += fabsf(z[n]) > most;
            if (left) gaussian_tile(next, key, start / TILE, t + 65536 * attempt, 4);
            for (uint64_t n = 0; n < count; n++) z[n] = fabsf(z[n]) > most ? next[n] : z[n];
        }
        for (uint64_t n = 0; n < count; n++) {
            if (is(how, "uniform")) z[n] = (float)((int32_t)words[n] >> 8 | 1) * 0x1p-23f;
            x[start + n] = is(how, "constant") ? scale : scale * z[n];
        }
    }
}

static int make_start(decomfl *r, const char *start) {
    const char *key = value(start, "key") + 1, *tensors = value(start, "tensors"), *own = after_space(tensors + 1);
    uint64_t done = 0, size = 0, seed = strtoull(key, NULL, 16);
    if (!is(value(start, "by"), "stream")) return refuse(r, "x_0 is not drawn from the noise stream: not known here");
    if (check(r->error, sizeof r->error, start, START_RULES, "start.", "header")) return -1;
    /* Sizes before values: all tensors are looked at before there is memory for any. */
    unsigned t = 0;
    for (const char *at = own; *at && *at != ']'; at = after_space(after_value(at)), done += size)
        if (size_of(r, at, t++, r->d - done, &size)) return -1;
    if (done != r->d) return refuse(r, "elements of the tensors of x_0 must be d in all, got less");
    r->x = r->d < SIZE_MAX / 16 ? calloc(r->d, 4 * sizeof(float)) : NULL;
    if (!r->x) return refuse(r, "d in the header must fit into the memory that is here");
    r->momentum = r->x + r->d;
    r->bytes_of_x = (uint8_t *)(r->momentum + r->d);
    done = t = 0;
    for (; *own == '{'; own = after_space(after_value(own)), done += size) {
        size_of(r, own, t, r->d, &size);
        draw(own, seed, t++, r->x + done, size);
    }
    return 0;
}

/* 4. The log. ------------------------------------------------------------------------------------------------------ */
static void decomfl_close(decomfl *r) {
    free(r->header);
    free(r->x);
}

/* Reads the header and makes x_0. 0, or -1 with r->error; decomfl_close(r) in both cases. */
static int decomfl_open(decomfl *r, const uint8_t *bytes, size_t size) {
    uint8_t chain[16];
    *r = (decomfl){.bytes = bytes, .size = size};
    if (size < 32 || memcmp(bytes, "\x89" "DCLOG\r\n", 8)) return refuse(r, "this is no log of a run");
    if (number(bytes + 8, 4) == 3) return refuse(r, "parameters in groups (version 3) are not known here");
    if (number(bytes + 8, 4) != 2) return refuse(r, "only logs of version 2 say how x_0 is made");
    uint64_t length = number(bytes + 12, 4), end = 16 + length, packed, seed;
    if (end + 16 > size) return refuse(r, "the header was changed or cut");
    r->header = calloc(end, 1);
    memcpy(r->header, bytes + 16, length);
    if (whole(value(value(r->header, "start"), "bytes"), 0, &packed) && packed < size) end += packed; /* x_0 may follow */
    if (end + 16 <= size) blake2b(chain, 16, NULL, bytes, end);
    if (end + 16 > size || memcmp(chain, bytes + end, 16)) return refuse(r, "the header was changed or cut");
    r->at = end + 16;
    int sound = is_json(r->header, length) && whole(value(r->header, "run_seed"), 0, &r->run_seed);
    if (!sound) return refuse(r, "run_seed in the header must be an integer in 0..18446744073709551615");
    const char *config = value(r->header, "config"), *method = value(config, "method"), *by = value(config, "rule");
    const char *form = value(config, "momentum_form"), *momentum = value(config, "momentum");
    const char *grid = value(config, "grid");
    if (check(r->error, sizeof r->error, r->header, HEADER_RULES, "", "header")) return -1;
    if (check(r->error, sizeof r->error, config, CONFIG_RULES, "", "log")) return -1;
    int known = is(method, "decomfl") || is(method, "decomfl-projection") || is(method, "feedsign");
    int plain = !*value(config, "precision") || is(value(config, "precision"), "float32");
    if (!known || !plain || (*by && !is(by, "sgd")) || (*grid && (!whole(grid, 0, &seed) || seed)))
        return refuse(r, "decomfl and feedsign are known here, with the rule sgd, in float32, on no grid");
    whole(value(r->header, "d"), 1, &r->d);
    if (!whole(value(config, "rounds"), 1, &r->planned)) return refuse(r, "config must have rounds");
    if (!whole(value(config, "clients"), 1, &r->clients)) return refuse(r, "config must have clients");
    r->beta = *momentum ? strtod(momentum, NULL) : 0;
    r->decay = *value(config, "weight_decay") ? strtod(value(config, "weight_decay"), NULL) : 0;
    r->weight = is(form, "paper") ? 1 - r->beta : 1;
    r->keyed = *value(config, "private_seeds") == 't';
    if (!whole(value(config, "seed"), 0, &seed) && r->keyed) return refuse(r, "config must have seed");
    r->private_key = derive(seed, 1, 11);
    snprintf(r->recorded, sizeof r->recorded, "%s", value(r->header, "x0") + 1);
    return make_start(r, value(r->header, "start"));
}

static void in_hex(char *out, const uint8_t *digest) {
    for (int n = 0; n < 16; n++) snprintf(out + 2 * n, 3, "%02x", digest[n]);
}

/* A local step along the directions number p of the seeds, all of one kind, with their scalars g. */
typedef struct { double eta; int kind; uint32_t P, *p; uint64_t *seed; float *g; } step;

/* v += (factor/P) sum of g_p z_p, term by term. */
static void add_estimate(const decomfl *r, float *v, double factor, const step *s) {
    for (uint32_t n = 0; n < s->P; n++)
        decomfl_add_direction(v, r->d, (float)(factor / s->P * s->g[n]), s->kind, s->seed[n], s->p[n]);
}

static void take_step(decomfl *r, const step *s) {
    float shrunk = (float)(1 - s->eta * r->decay), beta = (float)r->beta, pull = (float)(r->weight * r->decay);
    if (!r->beta) {
        for (uint64_t j = 0; j < r->d && r->decay; j++) r->x[j] *= shrunk;
        add_estimate(r, r->x, -s->eta, s);
        return;
    }
    for (uint64_t j = 0; j < r->d; j++) {
        r->momentum[j] *= beta;
        if (r->decay) r->momentum[j] += pull * r->x[j];
    }
    add_estimate(r, r->momentum, r->weight, s);
    for (uint64_t j = 0; j < r->d; j++) r->x[j] += (float)-s->eta * r->momentum[j];
}

static int unreadable(decomfl *r, const char *text) {
    snprintf(r->error, sizeof r->error, "entry of round %u must be one that can be read: %s", r->round, text);
    return -1;
}

/* 0 where a number of a record keeps its rule; else -1, with r->error. */
static int keeps(decomfl *r, const char *name, uint64_t found, const char *hint) {
    const rule *own = RECORD_RULES;
    char text[200];
    while (strcmp(own->key, name)) own++;
    if (is_between(found, own)) return 0;
    snprintf(text, sizeof text, "%s of the message must %s%s", name, own->words, hint);
    return unreadable(r, text);
}

/* Applies a RECORDS message with the record of this round. */
static int apply(decomfl *r, const uint8_t *m, size_t size) {
    if (size < 12) return unreadable(r, "it ends too early");
    if (memcmp(m, "DC\2\4", 4)) return unreadable(r, "it is damaged");
    if (number(m + 4, 4) != size - 12) return unreadable(r, "it ends too early, or too late");
    if (number(m + 8, 4) != crc_32(m + 12, size - 12)) return unreadable(r, "it is damaged");
    if (size < 35) return unreadable(r, "it ends too early");
    uint64_t K = number(m + 28, 2), P = number(m + 30, 2), eta = number(m + 20, 8), count = K * P;
    int seeding = m[34] & 127, signs = m[34] >> 7, finite = 1;
    step s = {.kind = m[32], .P = (uint32_t)P};
    memcpy(&s.eta, &eta, 8);
    if (number(m + 12, 4) != 1) return unreadable(r, "records of the entry must be 1");
    if (number(m + 16, 4) != r->round) return unreadable(r, "record must be of this round");
    if (!(s.eta > 0) || !isfinite(s.eta)) return unreadable(r, "eta of the message must be a finite number above 0");
    if (keeps(r, "K", K, "") || keeps(r, "P", P, "")) return -1;
    if (keeps(r, "distribution", m[32], s.kind == LOW_RANK ? ", " NO_LOW_RANK : "")) return -1;
    if (keeps(r, "stream version", m[33], "") || keeps(r, "seeding", (uint64_t)seeding, "")) return -1;
    if (count > MOST_SCALARS) return unreadable(r, "K·P must be at most 1073741820, which fit into a reply");
    uint64_t sizes[5] = {8 * count, 8 * K, 8, 0, 2 * count}, sent = signs ? (count + 7) / 8 : 4 * count;
    uint64_t needed = 35 + sizes[seeding] + sent;
    if (size >= needed && signs && count % 8 && m[needed - 1] >> count % 8)
        return unreadable(r, "bits after the signs of the records message must be 0");
    if (size != needed) return unreadable(r, "seeds and scalars must have the bytes that K and P say");
    const uint8_t *seeds = m + 35, *scalars = seeds + sizes[seeding];
    uint64_t root = seeding == 2 ? number(seeds, 8) : derive(r->run_seed, 1, r->round);
    s.seed = calloc(P, sizeof *s.seed), s.p = calloc(P, sizeof *s.p), s.g = calloc(P, sizeof *s.g);
    for (uint64_t n = 0; n < count; n++) {
        uint64_t k = n / P, p = n % P;
        uint64_t seed = seeding == 0   ? number(seeds + 8 * n, 8) /* one for each direction, which is number 0 then */
                        : seeding == 1 ? number(seeds + 8 * k, 8) /* one for each step */
                        : seeding == 4 ? derive(r->run_seed, 2, 0) /* the pool's, and numbers of two bytes */
                                       : derive(root, 1, k);
        s.seed[p] = r->keyed ? derive(r->private_key, 1, seed) : seed;
        s.p[p] = (uint32_t)(seeding == 0 ? 0 : seeding == 4 ? number(seeds + 2 * n, 2) : p);
        s.g[p] = signs ? (scalars[n / 8] >> n % 8 & 1 ? 1.0f : -1.0f) : real((uint32_t)number(scalars + 4 * n, 4));
        finite &= isfinite(s.g[p]) != 0;
        if (p == P - 1 && finite) take_step(r, &s);
    }
    free(s.seed), free(s.p), free(s.g);
    return finite ? 1 : unreadable(r, "scalars of the round must be finite");
}

static int by_size(const void *a, const void *b) {
    return (*(const uint32_t *)a > *(const uint32_t *)b) - (*(const uint32_t *)a < *(const uint32_t *)b);
}

/* The numbers that stand there, in order; to be freed. */
static uint32_t *sorted(const uint8_t *at, size_t count) {
    uint32_t *all = malloc(count * sizeof *all + 1);
    for (size_t n = 0; n < count; n++) all[n] = (uint32_t)number(at + 4 * n, 4);
    qsort(all, count, sizeof *all, by_size);
    return all;
}

/* Whether an entry says of clients what can be: each was asked once, some of them answered, nobody was ahead. */
static int check_clients(decomfl *r, const uint8_t *at, size_t sampled, size_t answered, int held, int examples) {
    const uint8_t *rounds = at + 4 * (sampled + answered), *counts = rounds + (held ? 4 * sampled : 0);
    uint32_t *asked = sorted(at, sampled), *came = sorted(at + 4 * sampled, answered);
    int once = sampled && asked[sampled - 1] < r->clients, some = answered > 0;
    for (size_t n = 1; n < sampled; n++) once &= asked[n] != asked[n - 1];
    for (size_t n = 0, place = 0; n < answered && some; n++, place++) { /* each is found behind the one before */
        while (place < sampled && asked[place] < came[n]) place++;
        some = place < sampled && asked[place] == came[n];
    }
    free(asked), free(came);
    if (!once) return unreadable(r, "sampled clients must be some of the run's, each once");
    if (!some) return unreadable(r, "clients that answered must be some of those, each once");
    for (size_t n = 0; n < sampled && held; n++)
        if (number(rounds + 4 * n, 4) > r->round) return unreadable(r, "rounds held must be at most the round");
    for (size_t n = 0; n < answered && examples; n++)
        if (!number(counts + 4 * n, 4)) return unreadable(r, "numbers of examples must be at least 1");
    return 0;
}

/* Applies the next round: 1; 0 at the end of the log; -1 with r->error. */
static int decomfl_next(decomfl *r) {
    const uint8_t *entry = r->bytes + r->at, *body = entry + 12;
    size_t left = r->size - r->at;
    int sound = left >= 12 && crc_32(entry, 8) == number(entry + 8, 4);
    size_t length = sound ? number(entry + 4, 4) : 0, size = sound ? length + 28 : left;
    uint8_t chain[16] = {0};
    if (sound && size <= left) blake2b(chain, 16, NULL, entry - 16, size); /* with the chain value before it */
    if (!sound || size > left || number(entry, 4) != r->round || memcmp(chain, entry + size - 16, 16)) {
        const uint8_t *zero = sound && size <= left ? entry + size - 16 : entry;
        while (size == left && zero < entry + left && !*zero) zero++;
        if (left >= 12 && size <= left && zero < entry + left) {
            snprintf(r->error, sizeof r->error, "the entry of round %u was changed or moved", r->round);
            return -1;
        }
        r->left_out = left; /* a writer was stopped here */
        return 0;
    }
    uint64_t sampled = number(body, 4), answered = number(body + 4, 4), flags = length < 25 ? 0 : body[8];
    uint64_t head = 25 + 4 * (sampled + answered + (flags & 1 ? sampled : 0) + (flags & 4 ? answered : 0));
    if (length < head) return unreadable(r, "it ends too early");
    r->recorded[0] = 0;
    if (flags & 2) in_hex(r->recorded, body + 9);
    r->at += size;
    if (check_clients(r, body + 25, sampled, answered, flags & 1, (flags & 4) != 0)) return -1;
    int applied = apply(r, body + head, length - head);
    r->round += applied == 1;
    return applied;
}

/* The digest of x and of the momentum, if there is one. */
static void decomfl_digest(const decomfl *r, char *out) {
    uint64_t count = r->beta ? 2 * r->d : r->d;
    uint8_t found[16];
    for (uint64_t j = 0; j < count; j++) put(r->bytes_of_x + 4 * j, bits_of(r->x[j]), 4);
    blake2b(found, 16, NULL, r->bytes_of_x, 4 * count);
    in_hex(out, found);
}

#endif
