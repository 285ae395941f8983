/* The image that reads a connection handed over to it. Usage: handed_over_reader IN OUT CONTROL SLOT BULK [stdio]
 * IN and OUT are descriptor numbers. IN -N: the connection arrives by SCM_RIGHTS over descriptor N, and OUT is ignored. stdio: it reads by
 * getc(stdin). */
#include "handed_over.h"

static void by_stdio(int out, int control, int slot, size_t bulk)
{
    static unsigned char data[512];
    struct counted counted = {0};
    say_hello(out);
    size_t held = 0;
    for (int c; (c = getc(stdin)) != EOF;) {
        data[held++] = (unsigned char)c;
        if (held < sizeof data) continue;
        count_bytes(&counted, data, held);
        note(control, slot, &counted);
        held = 0;
    }
    CHECK(!ferror(stdin));
    count_bytes(&counted, data, held);
    counted.words[SLOT_FINISHED] = 1;
    note(control, slot, &counted);
    answer(out, &counted, bulk);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 6);
    int in = atoi(argv[1]), out = atoi(argv[2]), control = open(argv[3], O_RDWR | O_CLOEXEC), slot = atoi(argv[4]);
    size_t bulk = (size_t)atol(argv[5]);
    CHECK(control >= 0);
    if (in < 0) in = out = passed(-in);
    if (argc > 6)
        by_stdio(out, control, slot, bulk);
    else
        serve(in, out, control, slot, bulk, 0);
    return 0;
}
