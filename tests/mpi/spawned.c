/* spawned.c: ranks that were started separately.
 *
 *   spawned spawn            each rank set spawns two more of itself; both sides exchange over the intercommunicator and merged
 *   spawned serve FILE       opens a port, writes its name to FILE (atomically, by rename), and accepts one job
 *   spawned call FILE        waits for FILE and connects to the job that it names
 *
 * Prints "ok WHAT RANKS, carried by CARRIED" on the first rank of all connected ones. */
#include "node.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHILDREN 2
#define LONG 300000

static void must(int fine, const char *what)
{
    if (fine) return;
    fprintf(stderr, "spawned: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

/* Short and long messages between all ranks of the merged groups. */
static void talk(MPI_Comm other, int high, const char *what)
{
    MPI_Comm all;
    int rank, ranks, node = has_node(), carried = 0;
    MPI_Intercomm_merge(other, high, &all);
    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &ranks);
    unsigned char *out = malloc(LONG), *in = malloc(LONG);
    must(out && in, "no memory");
    for (int length = 1; length <= LONG; length = length < 4096 ? 4096 : length < LONG ? LONG : LONG + 1)
        for (int step = 1; step < ranks; step++) {
            int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
            memset(out, rank * 16 + step, (size_t)length);
            memset(in, 0, (size_t)length);
            MPI_Sendrecv(out, length, MPI_BYTE, to, step, in, length, MPI_BYTE, from, step, all, MPI_STATUS_IGNORE);
            for (int at = 0; at < length; at++) must(in[at] == (unsigned char)(from * 16 + step), "other bytes came");
        }
    MPI_Reduce(&node, &carried, 1, MPI_INT, MPI_SUM, 0, all);
    if (rank == 0) {
        printf("ok %s %d, carried by %d\n", what, ranks, carried);
        fflush(stdout);
    }
    free(out);
    free(in);
    MPI_Comm_free(&all);
    MPI_Comm_disconnect(&other);
}

int main(int count, char **words)
{
    MPI_Comm other;
    char port[MPI_MAX_PORT_NAME] = "", fresh[4096];
    int rank;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_get_parent(&other);
    if (other != MPI_COMM_NULL) {
        talk(other, 1, "spawn");
    } else if (count > 1 && strcmp(words[1], "spawn") == 0) {
        int codes[CHILDREN];
        MPI_Comm_spawn(words[0], MPI_ARGV_NULL, CHILDREN, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other, codes);
        talk(other, 0, "spawn");
    } else if (count > 2 && strcmp(words[1], "serve") == 0) {
        if (rank == 0) {
            MPI_Open_port(MPI_INFO_NULL, port);
            snprintf(fresh, sizeof fresh, "%s.new", words[2]);
            FILE *file = fopen(fresh, "w");
            must(file && fputs(port, file) >= 0 && fclose(file) == 0 && rename(fresh, words[2]) == 0, "the port's name cannot be written");
        }
        MPI_Comm_accept(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other);
        talk(other, 0, "connect");
        if (rank == 0) MPI_Close_port(port);
    } else if (count > 2 && strcmp(words[1], "call") == 0) {
        FILE *file = NULL;
        for (int i = 0; rank == 0 && !file && i < 600; i++)
            if (!(file = fopen(words[2], "r"))) nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
        must(rank != 0 || (file && fgets(port, sizeof port, file)), "no port is published");
        MPI_Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other);
        talk(other, 1, "connect");
    } else {
        must(0, "spawn, serve FILE or call FILE");
    }
    MPI_Finalize();
    return 0;
}
