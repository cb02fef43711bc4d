/* What the C reader makes of each log that is named: what it prints, a form feed, and its exit code. */
#define main rebuilt
#include "../../examples/c/rebuild.c"
#undef main

int main(int count, char **words) {
    for (int n = 1; n < count; n++) {
        char *own[] = {words[0], words[n], NULL};
        int code = rebuilt(2, own);
        fflush(stdout);
        fprintf(stderr, "\f%d\n", code);
    }
    return 0;
}
