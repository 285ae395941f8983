/* The monitor: a third program, in C, that joins the running session late and watches.
 *   monitor REPORTS */
#include <motet_group.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TAG_REPORT = 3 };

struct report {
    uint32_t step;
    double fluid, solid;
};

static void check(int result, const char *what)
{
    if (result >= 0) return;
    fprintf(stderr, "monitor: %s: %s\n", what, strerror(-result));
    exit(1);
}

static int64_t in(int seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (t.tv_sec + seconds) * INT64_C(1000000000) + t.tv_nsec;
}

int main(int argc, char **argv)
{
    motet_node node;
    motet_membership membership;
    motet_group group;
    motet_circuit circuit;
    struct motet_view view = MOTET_INIT(struct motet_view);
    struct motet_member members[64] = {{.size = sizeof members[0]}};
    struct report report = {0, 0, 0};
    char name[32];
    int reports = argc > 1 ? atoi(argv[1]) : 10;
    check(motet_node_open(NULL, &node), "node");
    check(motet_session_attach(node, NULL, &membership), "session");
    check(motet_group_join(membership, "watch", -1, &group), "watch");
    check(motet_group_wait(group, 2, in(60)), "the fluid");
    check(motet_group_view(group, &view, members, 64), "view");
    if (view.rank < 0 || view.rank >= 64) return 1;
    printf("monitor: rank %d of %u in view %llu\n", view.rank, view.members, (unsigned long long)view.number);
    /* The circuit of the view in which this node has joined: the fluid opens it as well. */
    snprintf(name, sizeof name, "watch-%llu", (unsigned long long)members[view.rank].since);
    check(motet_circuit_open(group, name, in(60), &circuit), name);
    for (int i = 0; i < reports; i++) {
        check(motet_circuit_receive(circuit, MOTET_ANY_RANK, TAG_REPORT, &report, sizeof report, in(60), NULL), "report");
        if (i % (reports / 5 + 1) == 0) printf("monitor: step %u: gas %.2f K, wall %.2f K\n", report.step, report.fluid, report.solid);
    }
    printf("monitor: %d reports, the last one of step %u\n", reports, report.step);
    check(motet_circuit_close(circuit), "close");
    check(motet_group_leave(group), "leave");
    check(motet_session_detach(membership), "detach");
    check(motet_node_close(node), "node");
    return 0;
}
