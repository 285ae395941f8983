/* circuits.c: every call of motet_group.h. `motet run --group` starts it.
 *   circuits calls     4 processes: all calls do what the header says
 *   circuits killed    4 processes: rank 2 is killed; the others get an error and a new view, and go on without it
 *   circuits invalid   1 process: calls that cannot work give the errors of the header */
#include "../messages/check.h"
#include <motet_group.h>
#include <signal.h>
#include <stdatomic.h>

static motet_node node;
static motet_membership membership;
static motet_group group;

static void join(void)
{
    CHECK(motet_node_open(NULL, &node), 0);
    CHECK(motet_session_attach(node, NULL, &membership), 0);
    CHECK(motet_group_join_own(membership, SOON, &group), 0);
}

static void leave(void)
{
    CHECK(motet_group_leave(group), 0);
    CHECK(motet_session_detach(membership), 0);
    CHECK(motet_node_close(node), 0);
}

/* ---- calls */

struct seen {
    _Atomic int count, long_ones;
    _Atomic uint32_t last_tag[4];
};

static void on_active(motet_circuit circuit, uint32_t from, uint32_t tag, const void *body, size_t length, void *user)
{
    struct seen *seen = user;
    CHECK(circuit != 0, 1);
    CHECK(is_filled(body, length, from + tag), 1);
    if (length < 100) { /* of each sender in order */
        CHECK(tag > seen->last_tag[from], 1);
        seen->last_tag[from] = tag;
    } else
        seen->long_ones++;
    CHECK(motet_circuit_close(circuit), -EDEADLK);
    CHECK(motet_circuit_send_active(circuit, from, 1, "", 0), -EDEADLK);
    seen->count++;
}

static void views(void)
{
    struct motet_view view = MOTET_INIT(struct motet_view), first = MOTET_INIT(struct motet_view);
    struct motet_member members[8];
    memset(members, 0, sizeof members);
    members[0].size = sizeof members[0];
    CHECK(motet_group_wait(group, 4, SOON), 0);
    CHECK(motet_group_view(group, &view, members, 8), 0);
    CHECK(view.members, 4);
    CHECK(members[view.rank].pid, getpid());
    CHECK(view.rank, atoi(getenv("MOTET_GROUP_RANK")));
    CHECK(strlen(members[0].host) > 0, 1);
    CHECK(members[3].since <= view.number, 1);
    /* The oldest view that is kept is the one in which this node joined. */
    CHECK(motet_group_next_view(group, 0, 0, &first, NULL, 0), 0);
    CHECK(first.number, members[view.rank].since);
    uint64_t number = first.number;
    while (number < view.number) {
        CHECK(motet_group_next_view(group, number, 0, &first, NULL, 0), 0);
        CHECK(first.number, ++number);
    }
    CHECK(motet_group_next_view(group, number, 0, &first, NULL, 0), -EAGAIN);
    CHECK(motet_group_next_view(group, number, in(0.01), &first, NULL, 0), -ETIMEDOUT);
}

static void messages(motet_circuit circuit, uint32_t rank, uint32_t size)
{
    static unsigned char bytes[300000], got[300000];
    struct motet_circuit_message message = MOTET_INIT(struct motet_circuit_message);
    uint32_t right = (rank + 1) % size, left = (rank + size - 1) % size;
    size_t lengths[] = {0, 1, 64, 5000, sizeof bytes};
    for (int i = 0; i < 5; i++) {
        fill(bytes, lengths[i], rank);
        if (rank % 2 == 0) CHECK(motet_circuit_send(circuit, right, 7, bytes, lengths[i]), 0);
        CHECK(motet_circuit_receive(circuit, left, 7, got, sizeof got, SOON, &message), 0);
        if (rank % 2 == 1) CHECK(motet_circuit_send(circuit, right, 7, bytes, lengths[i]), 0);
        CHECK(message.length, lengths[i]);
        CHECK(message.from, left);
        CHECK(is_filled(got, lengths[i], left), 1);
    }
    /* From any member, by tag: the later tag first. */
    if (rank != 0) {
        CHECK(motet_circuit_send(circuit, 0, 1, &rank, sizeof rank), 0);
        CHECK(motet_circuit_send(circuit, 0, 2, &rank, sizeof rank), 0);
    } else
        for (uint32_t tag = 2; tag >= 1; tag--)
            for (uint32_t n = 1; n < size; n++) {
                uint32_t from;
                CHECK(motet_circuit_receive(circuit, MOTET_ANY_RANK, tag, &from, sizeof from, SOON, &message), 0);
                CHECK(message.from, from);
            }
    CHECK(motet_circuit_receive(circuit, left, 9, got, 1, 0, NULL), -EAGAIN);
    CHECK(motet_circuit_receive(circuit, left, 9, got, 1, in(0.01), NULL), -ETIMEDOUT);
    CHECK(motet_circuit_send(circuit, right, 10, bytes, 100), 0);
    CHECK(motet_circuit_receive(circuit, left, 10, got, 99, SOON, NULL), -EMSGSIZE);
    CHECK(motet_circuit_barrier(circuit), 0);
}

static void active_messages(motet_circuit circuit, uint32_t rank, uint32_t size)
{
    static unsigned char bytes[200000];
    static struct seen seen;
    CHECK(motet_circuit_handle(circuit, on_active, &seen), 0);
    for (uint32_t to = 0; to < size; to++) {
        if (to == rank) continue;
        for (uint32_t tag = 1; tag <= 50; tag++) {
            size_t length = tag % 10 == 0 ? sizeof bytes : tag;
            fill(bytes, length, rank + tag);
            CHECK(motet_circuit_send_active(circuit, to, tag, bytes, length), 0);
        }
    }
    while (seen.count < (int)(size - 1) * 50)
        CHECK(motet_node_progress(node) >= 0, 1);
    CHECK(seen.long_ones, (size - 1) * 5);
    CHECK(motet_circuit_barrier(circuit), 0);
    CHECK(motet_circuit_handle(circuit, NULL, NULL), 0);
    CHECK(motet_circuit_barrier(circuit), 0);
    CHECK(motet_circuit_send_active(circuit, (rank + 1) % size, 99, "x", 1), 0);
    CHECK(motet_circuit_barrier(circuit), 0);
    CHECK(seen.count, (size - 1) * 50);
}

struct arrived {
    _Atomic uint32_t count, closed;
    uint32_t left;
    motet_end_point own;
};

static void on_point(uint32_t from, uint32_t tag, const void *body, size_t length, void *user)
{
    struct arrived *arrived = user;
    CHECK(from, arrived->left);
    CHECK(is_filled(body, length, tag), 1);
    CHECK(motet_circuit_send_to(1, &(struct motet_start_point){0}, 1, "", 0), -EDEADLK);
    if (tag == 99) {
        CHECK(motet_end_point_close(arrived->own), 0);
        arrived->closed++;
    }
    arrived->count++;
}

enum { POINTS = 100 };

static void end_points(motet_circuit circuit, uint32_t rank, uint32_t size)
{
    static struct arrived arrived[POINTS];
    static unsigned char bytes[200000];
    struct motet_start_point own[POINTS], theirs[POINTS], chosen = {.number = 5};
    uint32_t right = (rank + 1) % size, left = (rank + size - 1) % size;
    uint64_t dropped;
    motet_end_point other;
    for (int i = 0; i < POINTS; i++) {
        uint64_t number = i < 50 ? (uint64_t)i : MOTET_ANY_NUMBER;
        arrived[i].left = left;
        CHECK(motet_end_point_open(circuit, number, on_point, &arrived[i], &own[i], &arrived[i].own), 0);
        CHECK(own[i].rank, rank);
    }
    CHECK(motet_end_point_open(circuit, 5, on_point, NULL, NULL, &other), -EINVAL);
    CHECK(other, 0);
    CHECK(motet_end_point_open(circuit, UINT64_C(1) << 63, on_point, NULL, NULL, &other), -EINVAL);
    CHECK(motet_end_point_open(circuit, 1000, NULL, NULL, NULL, &other), -EINVAL);
    CHECK(motet_end_point_open(0, 1000, on_point, NULL, NULL, &other), -EBADF);
    /* Start points are plain data. */
    if (rank % 2 == 0) CHECK(motet_circuit_send(circuit, left, 20, own, sizeof own), 0);
    CHECK(motet_circuit_receive(circuit, right, 20, theirs, sizeof theirs, SOON, NULL), 0);
    if (rank % 2 == 1) CHECK(motet_circuit_send(circuit, left, 20, own, sizeof own), 0);
    for (uint32_t i = 0; i < POINTS; i++) {
        size_t length = i % 50 == 10 ? sizeof bytes : i;
        fill(bytes, length, i);
        CHECK(motet_circuit_send_to(circuit, &theirs[i], i, bytes, length), 0);
    }
    CHECK(motet_circuit_barrier(circuit), 0);
    for (int i = 0; i < POINTS; i++)
        while (arrived[i].count != 1) CHECK(motet_node_progress(node) >= 0, 1);
    CHECK(arrived[99].closed, 1);
    CHECK(motet_end_point_close(arrived[99].own), -EBADF);
    CHECK(motet_circuit_barrier(circuit), 0);
    CHECK(motet_end_point_close(arrived[5].own), 0);
    CHECK(motet_circuit_barrier(circuit), 0);
    /* Closed, and never there. */
    chosen.rank = right;
    CHECK(motet_circuit_send_to(circuit, &chosen, 1, "x", 1), 0);
    chosen.number = UINT64_C(1) << 62;
    CHECK(motet_circuit_send_to(circuit, &chosen, 1, bytes, sizeof bytes), 0);
    CHECK(motet_circuit_send_to(circuit, NULL, 1, "x", 1), -EINVAL);
    chosen.rank = size;
    CHECK(motet_circuit_send_to(circuit, &chosen, 1, "x", 1), -EINVAL);
    CHECK(motet_circuit_dropped(circuit, NULL), -EINVAL);
    do {
        CHECK(motet_node_progress(node) >= 0, 1);
        CHECK(motet_circuit_dropped(circuit, &dropped), 0);
    } while (dropped < 2);
    CHECK(dropped, 2);
    CHECK(motet_circuit_barrier(circuit), 0);
    for (int i = 0; i < 99; i++)
        if (i != 5) CHECK(motet_end_point_close(arrived[i].own), 0);
}

/* Rank 0 is late in everything: the others' calls end by their deadline. */
static void deadlines(uint32_t rank)
{
    motet_circuit late, after;
    static unsigned char bytes[32 << 20];
    uint64_t value = rank;
    CHECK(motet_circuit_open(group, "late", SOON, &late), 0);
    CHECK(motet_circuit_open(group, "after", SOON, &after), 0);
    CHECK(motet_circuit_set_deadline(0, INT64_MAX), -EBADF);
    CHECK(motet_circuit_set_deadline(after, in(60)), 0);
    CHECK(motet_circuit_barrier(after), 0);
    if (rank != 0) {
        CHECK(motet_circuit_set_deadline(late, in(0.02)), 0);
        CHECK(motet_circuit_barrier(late), -ETIMEDOUT);
        CHECK(motet_circuit_barrier(late), -ETIMEDOUT); /* the deadline is past */
        CHECK(motet_circuit_set_deadline(late, in(0.02)), 0);
        CHECK(motet_circuit_all_reduce(late, &value, 1, MOTET_ATOMIC_U64, MOTET_ATOMIC_SUM), -ETIMEDOUT);
        CHECK(motet_circuit_set_deadline(late, in(0.02)), 0);
        CHECK(motet_circuit_broadcast(late, 0, bytes, 100), -ETIMEDOUT);
        /* Nobody has a function, or an end point. */
        CHECK(motet_circuit_set_deadline(late, in(0.02)), 0);
        CHECK(motet_circuit_send_active(late, 0, 1, "x", 1), -ETIMEDOUT);
        CHECK(motet_circuit_set_deadline(late, in(0.02)), 0);
        CHECK(motet_circuit_send_to(late, &(struct motet_start_point){.number = 1, .rank = 0}, 1, "x", 1), -ETIMEDOUT);
        /* A long message that no member receives. */
        if (rank == 1) {
            CHECK(motet_circuit_set_deadline(late, in(0.2)), 0);
            CHECK(motet_circuit_send(late, 0, 1, bytes, sizeof bytes), -ETIMEDOUT);
        }
        CHECK(motet_circuit_set_deadline(late, INT64_MAX), 0);
        CHECK(motet_circuit_send(late, 0, 2, "x", 1), 0);
    } else
        for (int n = 1; n < 4; n++)
            CHECK(motet_circuit_receive(late, MOTET_ANY_RANK, 2, bytes, 8, SOON, NULL), 0);
    CHECK(motet_circuit_barrier(after), 0);
    CHECK(motet_circuit_close(late), 0);
    CHECK(motet_circuit_close(after), 0);
}

static void collectives(motet_circuit circuit, uint32_t rank, uint32_t size)
{
    static unsigned char bytes[100000], all[4 * 1000];
    size_t lengths[4];
    for (uint32_t root = 0; root < size; root++) {
        if (rank == root) fill(bytes, sizeof bytes, root);
        CHECK(motet_circuit_broadcast(circuit, root, bytes, sizeof bytes), 0);
        CHECK(is_filled(bytes, sizeof bytes, root), 1);
        fill(bytes, 100 * rank, rank);
        CHECK(motet_circuit_gather(circuit, root, bytes, 100 * rank, all, 1000, lengths), 0);
        for (uint32_t from = 0; rank == root && from < size; from++) {
            CHECK(lengths[from], 100 * from);
            CHECK(is_filled(all + 1000 * from, lengths[from], from), 1);
        }
        double value[2] = {rank + 1, -1.0 * rank};
        CHECK(motet_circuit_reduce(circuit, root, value, 2, MOTET_ATOMIC_F64, MOTET_ATOMIC_SUM), 0);
        if (rank == root) CHECK(value[0] == 10 && value[1] == -6, 1);
    }
    uint8_t wrapped = 100;
    CHECK(motet_circuit_all_reduce(circuit, &wrapped, 1, MOTET_ATOMIC_U8, MOTET_ATOMIC_SUM), 0);
    CHECK(wrapped, (uint8_t)400);
    int32_t ends[2] = {(int32_t)rank - 2, (int32_t)rank - 2};
    CHECK(motet_circuit_all_reduce(circuit, &ends[0], 1, MOTET_ATOMIC_I32, MOTET_ATOMIC_MINIMUM), 0);
    CHECK(motet_circuit_all_reduce(circuit, &ends[1], 1, MOTET_ATOMIC_I32, MOTET_ATOMIC_MAXIMUM), 0);
    CHECK(ends[0], -2);
    CHECK(ends[1], 1);
    uint64_t bits = 1u << rank;
    CHECK(motet_circuit_all_reduce(circuit, &bits, 1, MOTET_ATOMIC_U64, MOTET_ATOMIC_BIT_OR), 0);
    CHECK(bits, 15);
    static float many[5000];
    for (int i = 0; i < 5000; i++) many[i] = 2;
    CHECK(motet_circuit_all_reduce(circuit, many, 5000, MOTET_ATOMIC_F32, MOTET_ATOMIC_PRODUCT), 0);
    CHECK(many[4999] == 16, 1);
}

static void calls(void)
{
    motet_circuit circuit, again;
    struct motet_circuit_state state = MOTET_INIT(struct motet_circuit_state);
    struct motet_member members[4];
    join();
    views();
    CHECK(motet_circuit_open(group, "all", SOON, &circuit), 0);
    members[0].size = sizeof members[0];
    CHECK(motet_circuit_info(circuit, &state, members, 4), 0);
    uint32_t rank = state.rank, size = state.members;
    CHECK(motet_circuit_rank(circuit), rank);
    CHECK(motet_circuit_size(circuit), size);
    CHECK(members[rank].pid, getpid());
    uint64_t number = state.number;
    CHECK(motet_circuit_open(group, "all", SOON, &again), 0);
    CHECK(motet_circuit_info(again, &state, NULL, 0), 0);
    CHECK(state.number, number);
    CHECK(motet_circuit_close(again), 0);
    CHECK(motet_circuit_barrier(again), -EBADF);
    messages(circuit, rank, size);
    active_messages(circuit, rank, size);
    end_points(circuit, rank, size);
    deadlines(rank);
    collectives(circuit, rank, size);
    CHECK(motet_circuit_barrier(circuit), 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(motet_circuit_barrier(circuit), -ECHILD);
        CHECK(motet_group_view(group, &(struct motet_view)MOTET_INIT(struct motet_view), NULL, 0), -ECHILD);
        CHECK(motet_session_detach(membership), -ECHILD);
        CHECK(motet_node_close(node), 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0), child);
    CHECK(status, 0);
    CHECK(motet_node_close(node), -EBUSY);
    CHECK(motet_circuit_close(circuit), 0);
    leave();
    printf("rank %u did all calls\n", rank);
}

/* ---- killed */

static void killed(void)
{
    motet_circuit circuit, again;
    struct motet_view view = MOTET_INIT(struct motet_view);
    struct motet_circuit_state state = MOTET_INIT(struct motet_circuit_state);
    join();
    CHECK(motet_circuit_open(group, "c", SOON, &circuit), 0);
    CHECK(motet_group_view(group, &view, NULL, 0), 0);
    CHECK(motet_circuit_barrier(circuit), 0);
    uint32_t rank = (uint32_t)motet_circuit_rank(circuit);
    if (rank == 2) raise(SIGKILL);
    uint64_t one = 1;
    int error;
    /* One waits for a message of the member that dies, one for anything, one takes part in collective operations. */
    if (rank == 0)
        error = motet_circuit_receive(circuit, 2, 1, &one, sizeof one, NEVER, NULL);
    else if (rank == 1)
        error = motet_circuit_receive(circuit, MOTET_ANY_RANK, 1, &one, sizeof one, NEVER, NULL);
    else
        while ((error = motet_circuit_all_reduce(circuit, &one, 1, MOTET_ATOMIC_U64, MOTET_ATOMIC_MAXIMUM)) == 0) {
        }
    CHECK(error, -ECONNRESET);
    CHECK(motet_group_next_view(group, view.number, SOON, &view, NULL, 0), 0);
    CHECK(view.members, 3);
    CHECK(motet_circuit_send(circuit, 2, 1, "x", 1), -ECONNRESET);
    CHECK(motet_circuit_open(group, "c", SOON, &again), 0);
    CHECK(motet_circuit_info(again, &state, NULL, 0), 0);
    CHECK(state.members, 3);
    one = 1;
    CHECK(motet_circuit_all_reduce(again, &one, 1, MOTET_ATOMIC_U64, MOTET_ATOMIC_SUM), 0);
    CHECK(one, 3);
    CHECK(motet_circuit_close(circuit), 0);
    CHECK(motet_circuit_barrier(again), 0);
    CHECK(motet_circuit_close(again), 0);
    leave();
    printf("rank %u goes on\n", rank);
}

/* ---- invalid */

static void invalid(void)
{
    motet_circuit circuit, none;
    motet_group other;
    motet_membership late;
    struct motet_view view = MOTET_INIT(struct motet_view);
    struct motet_member small = MOTET_INIT(struct motet_member);
    struct motet_circuit_message message = {.size = 8};
    struct motet_node_options single = MOTET_INIT(struct motet_node_options);
    uint64_t words[2] = {0, 0};
    join();
    CHECK(motet_circuit_open(group, "c", SOON, &circuit), 0);
    CHECK(motet_session_attach(node, "no/name", &late), -EINVAL);
    CHECK(motet_session_attach(node, "nowhere", &late), -ENOTCONN);
    CHECK(motet_session_attach(0, NULL, &late), -EBADF);
    CHECK(motet_session_attach(node, NULL, NULL), -EINVAL);
    motet_node alone;
    single.flags = MOTET_NODE_SINGLE;
    CHECK(motet_node_open(&single, &alone), 0);
    CHECK(motet_session_attach(alone, NULL, &late), -EINVAL);
    CHECK(motet_node_close(alone), 0);
    CHECK(motet_group_join(membership, "a/b", -1, &other), -EINVAL);
    CHECK(motet_group_join(membership, NULL, -1, &other), -EINVAL);
    CHECK(motet_group_join(membership, "x", -2, &other), -EINVAL);
    CHECK(motet_group_join(membership, "x", INT64_C(1) << 32, &other), -EINVAL);
    CHECK(motet_group_join(circuit, "x", -1, &other), -EBADF); /* a handle of another kind */
    CHECK(motet_group_wait(group, 2, 0), -EAGAIN);
    CHECK(motet_group_wait(group, 2, in(0.01)), -ETIMEDOUT);
    view.size = 4;
    CHECK(motet_group_view(group, &view, NULL, 0), -EINVAL);
    small.size = 8;
    CHECK(motet_group_view(group, NULL, &small, 1), -EINVAL);
    CHECK(motet_group_view(group, NULL, NULL, 1), -EINVAL);
    CHECK(motet_circuit_open(group, "", SOON, &none), -EINVAL);
    CHECK(none, 0);
    CHECK(motet_circuit_send(circuit, 1, 0, "x", 1), -EINVAL);
    CHECK(motet_circuit_send(circuit, MOTET_ANY_RANK, 0, "x", 1), -EINVAL);
    CHECK(motet_circuit_send(circuit, 0, 0, NULL, 1), -EINVAL);
    CHECK(motet_circuit_send_active(circuit, 1, 0, "x", 1), -EINVAL);
    CHECK(motet_circuit_receive(circuit, 1, 0, words, 8, 0, NULL), -EINVAL);
    CHECK(motet_circuit_receive(circuit, 0, 0, NULL, 8, 0, NULL), -EINVAL);
    CHECK(motet_circuit_receive(circuit, MOTET_ANY_RANK, 0, words, 8, 0, &message), -EINVAL);
    CHECK(motet_circuit_broadcast(circuit, 1, words, 8), -EINVAL);
    CHECK(motet_circuit_gather(circuit, 0, words, 16, words, 8, NULL), -EINVAL);
    CHECK(motet_circuit_gather(circuit, 0, words, 8, words, SIZE_MAX, NULL), -EINVAL);
    CHECK(motet_circuit_reduce(circuit, 0, words, 1, 10, MOTET_ATOMIC_SUM), -EINVAL);
    CHECK(motet_circuit_reduce(circuit, 0, words, 1, MOTET_ATOMIC_F64, MOTET_ATOMIC_BIT_OR), -EINVAL);
    CHECK(motet_circuit_reduce(circuit, 0, words, 1, MOTET_ATOMIC_U64, MOTET_ATOMIC_READ), -EINVAL);
    CHECK(motet_circuit_all_reduce(circuit, (char *)words + 1, 1, MOTET_ATOMIC_U64, MOTET_ATOMIC_SUM), -EINVAL);
    CHECK(motet_circuit_all_reduce(circuit, words, SIZE_MAX / 4, MOTET_ATOMIC_U64, MOTET_ATOMIC_SUM), -EINVAL);
    CHECK(motet_circuit_all_reduce(circuit, NULL, 1, MOTET_ATOMIC_U64, MOTET_ATOMIC_SUM), -EINVAL);
    CHECK(motet_circuit_barrier(circuit), 0);
    for (uint64_t handle = 0; handle < 100; handle++)
        if (handle != circuit) CHECK(motet_circuit_barrier(handle), -EBADF);
    /* Handles of a group that was left, and of a node that was detached, fail and can be closed. */
    CHECK(motet_group_join(membership, getenv("MOTET_GROUP"), -1, &other), 0);
    CHECK(motet_group_leave(other), 0);
    CHECK(motet_group_view(group, NULL, NULL, 0), -EINVAL);
    CHECK(motet_circuit_send(circuit, 0, 0, "x", 1), -ECONNRESET);
    CHECK(motet_circuit_open(group, "d", SOON, &none), -EINVAL);
    CHECK(motet_session_detach(membership), 0);
    CHECK(motet_session_detach(membership), -EBADF);
    CHECK(motet_group_join(membership, "x", -1, &other), -EBADF);
    CHECK(motet_node_close(node), -EBUSY);
    CHECK(motet_group_leave(group), 0);
    CHECK(motet_node_close(node), -EBUSY);
    CHECK(motet_circuit_close(circuit), 0);
    CHECK(motet_node_close(node), 0);
    printf("every error was reported\n");
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "calls")) calls();
    else if (!strcmp(what, "killed")) killed();
    else if (!strcmp(what, "invalid")) invalid();
    else return 2;
    return 0;
}
