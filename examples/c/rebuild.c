/* Rebuilds the model of a run from its log and compares every digest.

     cc -std=c11 -O2 -ffp-contract=off rebuild.c -o rebuild -lm
     ./rebuild run.dcl              a line for each digest, and what agrees; exit code 0, 1 (another model) or 2 (no whole log)
     ./rebuild --direction 0 deadbeef12345678 3 200      the bits of a direction: kind, key, number p, elements */
#include "decomfl.h"

/* The digests of the log that were compared. */
typedef struct { uint32_t count, last, agreed; int wrong; } digests;

static void compare(const decomfl *r, digests *all) {
    char found[33];
    decomfl_digest(r, found);
    int differs = strcmp(found, r->recorded) != 0;
    printf("%u %s %s%s\n", r->round, found, differs ? "DIFFERS from " : "agrees", differs ? r->recorded : "");
    if (!all->wrong) all->agreed = all->last, all->last = r->round;
    all->wrong |= differs;
    all->count++;
}

/* What decomfl replay says at its end, of the digests and of what no digest is of. */
static void print_closing(const decomfl *r, const digests *all) {
    if (all->wrong && !all->last)
        printf("the model does NOT agree: x_0 is not the run's (another model; or torch drew it, as before version 2 of "
               "the log, and draws other numbers on this processor), so no record was applied\n");
    else if (all->wrong)
        printf("the model does NOT agree: after %u rounds its bits are not those that the log has a digest of, as they "
               "were after %u\n", all->last, all->agreed);
    if (all->wrong) return;
    printf("the model after %u of %u rounds is rebuilt%s: x_0 and %u digest%s of the log agree, the last after round %u",
           r->round, r->round, all->last == r->round ? ", bit for bit" : "", all->count - 1, all->count == 2 ? "" : "s",
           all->last);
    if (all->last < r->round)
        printf("; rounds %u to %u have no digest, so they are not checked", all->last + 1, r->round);
    if (r->round < r->planned)
        printf("; the log ends before the %llu rounds that the run was to have", (unsigned long long)r->planned);
    printf("\n");
}

static int print_direction(char **words) {
    uint64_t d = strtoull(words[3], NULL, 10);
    float *z = malloc(d * sizeof *z);
    for (uint64_t j = 0; j < d; j++) z[j] = -0.0f; /* -0 + z is z, to the bit */
    uint32_t p = (uint32_t)strtoul(words[2], NULL, 10);
    decomfl_add_direction(z, d, 1.0f, atoi(words[0]), strtoull(words[1], NULL, 16), p);
    for (uint64_t j = 0; j < d; j++) printf("%08x\n", (unsigned)bits_of(z[j]));
    free(z);
    return 0;
}

int main(int count, char **words) {
    if (count == 6 && !strcmp(words[1], "--direction")) return print_direction(words + 2);
    FILE *file = count == 2 ? fopen(words[1], "rb") : NULL;
    if (!file || fseek(file, 0, SEEK_END)) {
        fprintf(stderr, "the log must be a file that can be read: rebuild run.dcl\n");
        return 2;
    }
    size_t size = (size_t)ftell(file);
    uint8_t *bytes = malloc(size + 1);
    rewind(file);
    size = fread(bytes, 1, size, file);
    fclose(file);
    decomfl r;
    int found = decomfl_open(&r, bytes, size);
    digests all = {0};
    if (!found) {
        compare(&r, &all); /* x_0; if it is another one, no record is applied */
        while (!(all.wrong && !r.round) && (found = decomfl_next(&r)) == 1) {
            if (*r.recorded) compare(&r, &all);
        }
    }
    if (!found) print_closing(&r, &all);
    if (r.left_out) fprintf(stderr, "the last %zu bytes are an entry that was not written whole\n", r.left_out);
    if (found) fprintf(stderr, "%s\n", r.error);
    decomfl_close(&r);
    free(bytes);
    return found ? 2 : all.wrong;
}
