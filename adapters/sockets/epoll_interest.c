/* epoll_interest.c: which descriptors are registered in which epoll descriptor.
 *
 * What it is:   the interest list of every epoll descriptor that the program created, restricted to sockets that are streams or may become
 *               streams. When a candidate becomes a stream, it enters the engine's set of each epoll descriptor that holds it, and that
 *               epoll descriptor gets a wakeup descriptor (an eventfd) by which the engine wakes its sleepers.
 * What it isn't: the kernel's list. The answer of epoll_ctl is always the kernel's; this file records the successful calls.
 *
 * Signal safety: changes are made under the table lock or a record's lock, both with reentrancy_depth > 0, so signal handlers of the program
 * are deferred. Fork safety: records are copied. In the child they are marked inherited, because the kernel's object is shared, and their
 * streams fall back to TCP when the child first waits on them. errno: kept by the record_ functions and interest_control() on success; the
 * others may change it. */
#include "epoll_interest.h"

#include <string.h>
#include <sys/eventfd.h>

char interest_marker;

static struct epoll_record records[SHIM_EPOLLS_MAX];
static struct interest interests[SHIM_INTERESTS_MAX];
static uint32_t first_of_fd[SHIM_TRACKED_FDS];
static uint32_t free_interests, fresh_interests = 1;

/* One-shot interests by registered data: each event of the kernel is looked up, among thousands. Innermost of all locks. */
#define DATA_LISTS 32768
static uint32_t first_of_data[DATA_LISTS];
static pthread_mutex_t data_lock = PTHREAD_MUTEX_INITIALIZER;

struct interest *interest_at(uint32_t index) { return &interests[index]; }

uint32_t interest_first_of(int fd) { return first_of_fd[fd]; }

struct epoll_record *record_at(uint32_t index) { return &records[index]; }

uint32_t record_number(const struct epoll_record *record) { return (uint32_t)(record - records); }

/* ---------------------------------------------------------------- records */

uint32_t interest_epoll_new(int epfd)
{
    uint32_t found = 0;
    table_lock();
    for (uint32_t i = 1; i < SHIM_EPOLLS_MAX && !found; i++)
        if (!records[i].used) found = i;
    if (found) {
        struct epoll_record *record = &records[found];
        memset(record, 0, sizeof *record);
        pthread_mutex_init(&record->lock, NULL);
        record->used = true;
        record->fd = epfd;
        record->wake_fd = -1;
    }
    table_unlock();
    return found;
}

static void record_free(struct epoll_record *record)
{
    if (record->set && !engine_confined()) ENGINE_DO(engine.epoll_free(record->set));
    record->set = NULL;
    if (record->wake_fd >= 0 && engine_confined()) record->wake_fd = -1; /* a confined process does not close it; the kernel does at exit */
    if (record->wake_fd >= 0) {
        atomic_store(&fd_words[record->wake_fd], 0);
        REAL(close)(record->wake_fd);
    }
    record->used = false;
}

struct epoll_record *record_enter(int epfd)
{
    uint64_t word = table_word(epfd);
    if (word_kind(word) != KIND_EPOLL) return NULL;
    struct epoll_record *record = &records[word_extra(word)];
    atomic_fetch_add(&record->users, 1);
    if (LIKELY(table_word(epfd) == word)) return record;
    record_leave(record);
    return NULL;
}

void record_leave(struct epoll_record *record)
{
    if (atomic_fetch_sub(&record->users, 1) != 1 || LIKELY(!atomic_load(&record->closed))) return;
    table_lock();
    if (record->used && atomic_load(&record->closed) && atomic_load(&record->users) == 0) record_free(record);
    table_unlock();
}

bool record_ready(struct epoll_record *record)
{
    if (record->set) return true;
    int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd >= 0) wake_fd = fd_move_private(wake_fd);
    if (wake_fd < 0) return false;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = (uintptr_t)&interest_marker};
    if (REAL(epoll_ctl)(record->fd, EPOLL_CTL_ADD, wake_fd, &event) == 0) record->set = ENGINE(engine.epoll_new(wake_fd));
    if (record->set) {
        record->wake_fd = wake_fd;
        return true;
    }
    atomic_store(&fd_words[wake_fd], 0);
    REAL(close)(wake_fd);
    return false;
}

/* ---------------------------------------------------------------- one-shot interests, under the record's lock */

static uint32_t *list_of_data(uint32_t record, uint64_t data)
{
    uint64_t mixed = (data ^ (uint64_t)record << 48) * 0x9e3779b97f4a7c15ull;
    return &first_of_data[(mixed >> 40) % DATA_LISTS];
}

/* Takes the interest out of its list, or enters it into one: its registered data has changed, or is about to. */
static void data_list(struct interest *interest, bool enter)
{
    if (interest->hashed == enter) return;
    uint32_t index = (uint32_t)(interest - interests), *link = list_of_data(interest->record, interest->data);
    pthread_mutex_lock(&data_lock);
    if (enter) {
        interest->next_of_data = *link;
        *link = index;
    } else {
        while (*link != index) link = &interests[*link].next_of_data;
        *link = interest->next_of_data;
    }
    pthread_mutex_unlock(&data_lock);
    interest->hashed = enter;
}

static bool wants_level_write(uint32_t events) { return (events & (EPOLLOUT | EPOLLWRNORM)) && !(events & EPOLLET); }

/* Records that the program has registered these events and data. */
static void reregister(struct epoll_record *record, struct interest *interest, uint32_t events, uint64_t data)
{
    if (interest->data != data || !(events & EPOLLONESHOT)) data_list(interest, false);
    record->one_shots += !!(events & EPOLLONESHOT) - !!(interest->events & EPOLLONESHOT);
    record->level_writers += wants_level_write(events) - wants_level_write(interest->events);
    if ((events & (EPOLLET | EPOLLOUT)) == (EPOLLET | EPOLLOUT)) atomic_store(&record->write_edge_due, true);
    interest->events = events;
    interest->data = data;
    interest->fired = false;
    interest->armed = atomic_fetch_add(&record->arms, 1) + 1;
    if (events & EPOLLONESHOT) data_list(interest, true);
}

struct interest *interest_one_shot(struct epoll_record *record, uint64_t data)
{
    uint32_t number = (uint32_t)(record - records);
    pthread_mutex_lock(&data_lock);
    uint32_t index = *list_of_data(number, data);
    while (index && (interests[index].record != number || interests[index].data != data)) index = interests[index].next_of_data;
    pthread_mutex_unlock(&data_lock);
    return index ? &interests[index] : NULL;
}

/* ---------------------------------------------------------------- sleeping threads */

/* Wakes one thread that sleeps in the epoll descriptor. Async-signal-safe, keeps errno. */
void record_wake(struct epoll_record *record)
{
    uint64_t one = 1;
    int kept = errno;
    if (record->wake_fd >= 0 && REAL(write)(record->wake_fd, &one, sizeof one) < 0) {} /* EAGAIN: the counter is full, the wakeup is already pending */
    errno = kept;
}

/* Under the lock of a record that has a set. Threads that fell asleep before the record had a stream count as one sleeper of the set, so no
 * gate opens until the wakeup descriptor has brought them back. */
void record_cover(struct epoll_record *record)
{
    if (LIKELY(atomic_load(&record->uncovered) == 0)) return; /* COVER */
    if (!atomic_exchange(&record->counted, true)) ENGINE_DO(engine.epoll_asleep(record->set));
    record_wake(record);
    if (atomic_load(&record->uncovered) == 0 && atomic_exchange(&record->counted, false))
        ENGINE_DO(engine.epoll_slept(record->set));
}

void record_uncover(struct epoll_record *record)
{
    if (atomic_fetch_sub(&record->uncovered, 1) != 1 || LIKELY(!atomic_load(&record->counted))) return;
    reentrancy_enter(); /* defers handlers, which might need this lock */
    pthread_mutex_lock(&record->lock);
    if (atomic_load(&record->uncovered) == 0 && atomic_exchange(&record->counted, false)) ENGINE_DO(engine.epoll_slept(record->set));
    pthread_mutex_unlock(&record->lock);
    reentrancy_exit();
    signals_deliver_pending();
}

bool record_has_ring_data(struct epoll_record *record)
{
    struct motet_wait wait;
    if (!record->set) return false;
    ENGINE_DO(engine.wait_begin_set(&wait, record->set));
    bool ready = ENGINE(engine.wait_step(&wait, 0)) == MOTET_WAIT_READY;
    ENGINE_DO(engine.wait_end(&wait));
    return ready;
}

/* A thread that waits on the epoll descriptor itself by poll sees the kernel's readiness only. While a ring holds data, the wakeup
 * descriptor makes the epoll descriptor readable. */
void record_signal_ring_data(struct epoll_record *record)
{
    if (record_has_ring_data(record)) record_wake(record);
}

/* ---------------------------------------------------------------- members */

static uint32_t find(int fd, uint32_t record)
{
    uint32_t index = first_of_fd[fd];
    while (index && interests[index].record != record) index = interests[index].next_of_fd;
    return index;
}

static struct interest *insert(int fd, uint32_t record)
{
    uint32_t index = free_interests;
    if (index)
        free_interests = interests[index].next_of_fd;
    else if (fresh_interests < SHIM_INTERESTS_MAX)
        index = fresh_interests++;
    else
        return NULL;
    struct interest *interest = &interests[index];
    *interest = (struct interest){.record = record, .fd = fd, .next_of_fd = first_of_fd[fd], .next_in_epoll = records[record].first};
    if (interest->next_in_epoll) interests[interest->next_in_epoll].previous_in_epoll = index;
    records[record].first = index;
    first_of_fd[fd] = index;
    return interest;
}

/* Locks a record, under the table lock. control_quick() gives way to it. */
void record_lock(struct epoll_record *record)
{
    atomic_store(&record->wanted, true);
    pthread_mutex_lock(&record->lock);
    atomic_store(&record->wanted, false);
}

static void erase(uint32_t index)
{
    struct interest *interest = &interests[index];
    struct epoll_record *record = &records[interest->record];
    record_lock(record);
    if (interest->stream) {
        if (record->set) ENGINE(engine.epoll_remove(record->set, interest->stream));
        nesting_count(record, -1);
    }
    if (UNLIKELY(interest->inner)) nesting_erase(record, interest);
    reregister(record, interest, 0, interest->data);
    if (interest->previous_in_epoll)
        interests[interest->previous_in_epoll].next_in_epoll = interest->next_in_epoll;
    else
        record->first = interest->next_in_epoll;
    if (interest->next_in_epoll) interests[interest->next_in_epoll].previous_in_epoll = interest->previous_in_epoll;
    uint32_t *link = &first_of_fd[interest->fd];
    while (*link != index) link = &interests[*link].next_of_fd;
    *link = interest->next_of_fd;
    interest->record = 0;
    interest->stream = 0;
    interest->next_of_fd = free_interests;
    free_interests = index;
    pthread_mutex_unlock(&record->lock);
}

bool interest_forget(int fd)
{
    bool any = false;
    while (UNLIKELY(first_of_fd[fd])) {
        any |= !interests[first_of_fd[fd]].absent;
        erase(first_of_fd[fd]);
    }
    return any;
}

void interest_epoll_closed(uint32_t index)
{
    struct epoll_record *record = &records[index];
    while (record->first) erase(record->first);
    atomic_store(&record->closed, true);
    if (atomic_load(&record->users) == 0) record_free(record);
}

/* Before a confinement: takes the stream out of the engine's sets and keeps its registrations for confined.c. */
void interest_confined(int fd)
{
    for (uint32_t index = first_of_fd[fd]; index; index = interests[index].next_of_fd) {
        struct epoll_record *record = &records[interests[index].record];
        record_lock(record);
        if (interests[index].stream) {
            if (record->set) ENGINE(engine.epoll_remove(record->set, interests[index].stream));
            nesting_count(record, -1);
            interests[index].stream = 0;
        }
        pthread_mutex_unlock(&record->lock);
    }
}

bool interest_epoll_confined(uint32_t index)
{
    struct epoll_record *record = &records[index];
    if (record->wake_fd < 0) return true;
    if (record->inherited) return false; /* the parent uses the same wakeup descriptor */
    struct epoll_event none = {0};
    REAL(epoll_ctl)(record->fd, EPOLL_CTL_DEL, record->wake_fd, &none);
    return true;
}

/* True when another descriptor of the same stream is registered in this record. */
static bool has_duplicate(const struct epoll_record *record, const struct interest *interest)
{
    if (LIKELY(!(table_word(interest->fd) & WORD_SHARED))) return false;
    for (uint32_t index = record->first; index; index = interests[index].next_in_epoll)
        if (&interests[index] != interest && interests[index].stream == interest->stream) return true;
    return false;
}

/* Tells the engine which readiness the interest wants. Under the record's lock. */
void interest_arm(struct epoll_record *record, struct interest *interest)
{
    if ((!interest->stream && !interest->inner) || !record->set) return;
    int wanted = !interest_wants_data(interest) ? MOTET_EPOLL_NONE : interest->events & EPOLLET ? MOTET_EPOLL_EDGE : MOTET_EPOLL_LEVEL;
    if (UNLIKELY(interest->inner)) {
        motet_epoll *inner = records[interest->inner].set;
        if (inner) ENGINE(engine.epoll_nest(record->set, inner, interest, wanted));
        return;
    }
    if (UNLIKELY(has_duplicate(record, interest))) { /* the engine reports streams, not descriptors, so two of one stream cannot both be reported */
        ENGINE(engine.set_tcp_only(interest->stream, REASON_UNSEEN_WAIT));
        if (wanted == MOTET_EPOLL_NONE) return; /* the other registration reports what the ring still holds */
    }
    ENGINE(engine.epoll_put(record->set, interest->stream, interest, wanted));
}

/* ---------------------------------------------------------------- upgrade of a candidate, under the table lock */

enum upgradable interest_may_upgrade(int fd)
{
    enum upgradable answer = UPGRADABLE;
    for (uint32_t index = first_of_fd[fd]; index; index = interests[index].next_of_fd) {
        struct epoll_record *record = &records[interests[index].record];
        nesting_count(record, 1);
        if (record->inherited && answer == UPGRADABLE) answer = UPGRADABLE_LATER;
        if (atomic_load(&record->nested)) answer = UPGRADABLE_NEVER;
    }
    return answer;
}

void interest_upgrade_aborted(int fd)
{
    for (uint32_t index = first_of_fd[fd]; index; index = interests[index].next_of_fd)
        nesting_count(&records[interests[index].record], -1);
}

void interest_upgraded(int fd, motet_stream s)
{
    for (uint32_t index = first_of_fd[fd]; index; index = interests[index].next_of_fd) {
        struct epoll_record *record = &records[interests[index].record];
        record_lock(record);
        interests[index].stream = s;
        bool ready = record_ready(record);
        if (ready) {
            record_cover(record);
            interest_arm(record, &interests[index]);
        }
        pthread_mutex_unlock(&record->lock);
        if (!ready || !nesting_enter(record)) ENGINE(engine.set_tcp_only(s, REASON_UNSEEN_WAIT));
    }
}

/* ---------------------------------------------------------------- epoll_ctl */

/* epoll_ctl on a stream that is registered here, without the table lock (which costs two system calls): some programs delete and add a
 * descriptor around every request. The record's lock keeps the kernel's state and the record together. A deleted interest stays in its
 * lists, marked absent, until it is added again or one of the descriptors closes. Returns 1 when the general path must be taken. */
static int control_quick(struct epoll_record *record, int epfd, int operation, int fd, struct epoll_event *event)
{
    uint32_t number = (uint32_t)(record - records), index = first_of_fd[fd];
    for (int steps = 0; index && interests[index].record != number; steps++) {
        if (steps == 8) return 1;
        index = interests[index].next_of_fd;
    }
    struct interest *interest = &interests[index];
    if (!index || atomic_load(&record->wanted)) return 1;
    int result = 1;
    reentrancy_enter(); /* defers handlers, which might need this lock */
    pthread_mutex_lock(&record->lock);
    bool quick = interest->record == number && interest->fd == fd && record->set && !atomic_load(&record->nested) && !nesting_is_inner(record);
    motet_stream stream = table_handle(fd);
    if (word_kind(table_word(fd)) != KIND_STREAM) quick = false;
    if (operation == EPOLL_CTL_ADD)
        quick &= interest->absent;
    else
        quick &= interest->stream && interest->stream == stream;
    if (quick) {
        result = REAL(epoll_ctl)(epfd, operation, fd, event);
        if (result == 0) {
            interest->absent = operation == EPOLL_CTL_DEL;
            reregister(record, interest, interest->absent ? 0 : event->events, interest->absent ? interest->data : event->data.u64);
            if (operation == EPOLL_CTL_DEL) {
                int kept = errno;
                engine.epoll_remove(record->set, stream);
                errno = kept;
                interest->stream = 0;
                atomic_fetch_sub(&record->streams, 1);
            } else {
                if (!interest->stream) {
                    interest->stream = stream;
                    atomic_fetch_add(&record->streams, 1);
                }
                record_cover(record);
                interest_arm(record, interest);
                if (atomic_load(&record->nested)) ENGINE(engine.set_tcp_only(stream, REASON_NESTED_EPOLL));
            }
        }
    }
    pthread_mutex_unlock(&record->lock);
    reentrancy_exit();
    signals_deliver_pending();
    return result;
}

/* epoll_ctl on a socket that is unconnected, a candidate or a stream. The kernel decides, under the table lock so that no upgrade can
 * intervene; then the answer is recorded. */
int interest_control(struct epoll_record *record, int epfd, int operation, int fd, struct epoll_event *event)
{
    if (word_kind(table_word(fd)) == KIND_STREAM) {
        int quick = control_quick(record, epfd, operation, fd, event);
        if (quick <= 0) return quick;
    }
    table_lock();
    uint64_t word = table_word(fd);
    uint32_t number = (uint32_t)(record - records);
    uint32_t index = find(fd, number);
    bool known = word_kind(word) >= KIND_STREAM || word_kind(word) == KIND_CANDIDATE || word_kind(word) == KIND_UNCONNECTED;
    known |= word_kind(word) == KIND_EPOLL;
    bool one_shot = operation != EPOLL_CTL_DEL && (event->events & EPOLLONESHOT);
    /* Under the record's lock, and with a new one-shot counted in advance: another thread may get the event before this thread knows the answer. */
    record_lock(record);
    record->one_shots += one_shot;
    int result = REAL(epoll_ctl)(epfd, operation, fd, event);
    int kept = errno;
    bool remembered = result == 0 && known && operation != EPOLL_CTL_DEL;
    struct interest *interest = !remembered ? NULL : index ? &interests[index] : insert(fd, number);
    bool unfit = remembered && !interest;
    if (interest) {
        interest->absent = false;
        reregister(record, interest, event->events, event->data.u64);
        if (word_kind(word) == KIND_STREAM) {
            if (!interest->stream) {
                interest->stream = table_handle(fd);
                nesting_count(record, 1);
                if (record_ready(record)) record_cover(record);
                else unfit = true;
            }
            interest_arm(record, interest); /* a new registration reports data that is already there */
        }
        if (interest->inner) interest_arm(record, interest);
    }
    record->one_shots -= one_shot; /* reregister() has counted the final state */
    pthread_mutex_unlock(&record->lock);
    if (interest && word_kind(word) == KIND_STREAM && !unfit && UNLIKELY(!nesting_enter(record))) unfit = true;
    if (interest && word_kind(word) == KIND_EPOLL && !interest->inner) {
        interest->inner = word_extra(word);
        unfit = !nesting_added(record, interest);
    }
    if (result == 0 && known && operation == EPOLL_CTL_DEL && index) erase(index);
    bool nested = remembered && atomic_load(&record->nested);
    if ((unfit || nested) && word_kind(word) == KIND_STREAM)
        ENGINE(engine.set_tcp_only(table_handle(fd), nested ? REASON_NESTED_EPOLL : REASON_UNSEEN_WAIT));
    bool socket_stays = unfit && word_kind(word) != KIND_STREAM && word_kind(word) != KIND_EPOLL;
    if (socket_stays) {
        interest_forget(fd);
        table_replace(fd, 0);
    }
    table_unlock();
    if (unfit && word_kind(word) == KIND_EPOLL) interest_epoll_nested(fd);
    if (socket_stays) engine_count_tcp_only(REASON_UNSEEN_WAIT);
    errno = kept;
    return result;
}

/* ---------------------------------------------------------------- nesting and fork */

static void force_tcp(const struct epoll_record *record, uint32_t reason)
{
    for (uint32_t index = record->first; index; index = interests[index].next_in_epoll) {
        if (interests[index].stream) ENGINE(engine.set_tcp_only(interests[index].stream, reason));
        if (interests[index].inner) force_tcp(&records[interests[index].inner], reason);
    }
}

void record_force_tcp(struct epoll_record *record, uint32_t reason)
{
    table_lock();
    force_tcp(record, reason);
    table_unlock();
}

void interest_epoll_nested(int epfd)
{
    struct epoll_record *record = record_enter(epfd);
    if (!record) return;
    if (!atomic_exchange(&record->nested, true) && atomic_load(&record->streams) > 0) {
        record_force_tcp(record, REASON_NESTED_EPOLL);
        record_signal_ring_data(record);
    }
    record_leave(record);
}

/* Locks of records and lists are held across fork, so that the child does not inherit one held by a thread that it lacks. False: a handler
 * that interrupted a holder of such a lock forks; the child then initialises them anew. */
static bool held_for_fork;

void interest_before_fork(void)
{
    held_for_fork = reentrancy_depth == 0;
    for (uint32_t i = 1; i < SHIM_EPOLLS_MAX && held_for_fork; i++)
        if (records[i].used) pthread_mutex_lock(&records[i].lock);
    if (held_for_fork) pthread_mutex_lock(&data_lock);
}

void interest_after_fork(bool child)
{
    if (held_for_fork) pthread_mutex_unlock(&data_lock);
    else if (child) pthread_mutex_init(&data_lock, NULL);
    for (uint32_t i = 1; i < SHIM_EPOLLS_MAX && held_for_fork && !child; i++)
        if (records[i].used) pthread_mutex_unlock(&records[i].lock);
    if (!child) return;
    for (uint32_t i = 1; i < SHIM_EPOLLS_MAX; i++) {
        if (!records[i].used) continue;
        pthread_mutex_init(&records[i].lock, NULL);
        atomic_store(&records[i].users, 0);
        atomic_store(&records[i].uncovered, 0);
        atomic_store(&records[i].counted, false);
        records[i].inherited = true;
    }
}
