/* interest.c: who is registered in which epoll descriptor.
 *
 * What it is:   the interest list of every epoll descriptor made here, restricted to sockets that are streams or may become
 *               streams. When a candidate becomes a stream it enters the engine's set of each epoll descriptor that holds
 *               it, and the epoll descriptor gets a bell (an eventfd) by which the engine wakes its sleepers.
 * What it isn't: the kernel's list. epoll_ctl's answer is always the kernel's; this only remembers successful calls.
 *
 * Signal safety: every change is made under the table lock (signals blocked). Fork safety: records are copied; in the
 * child they are marked inherited, since the kernel's object is shared, and their streams go plain when first waited for. */
#include "interest.h"

#include <string.h>
#include <sys/eventfd.h>

char interest_marker;

static struct epoll_record records[SHIM_EPOLLS];
static struct interest interests[SHIM_INTERESTS];
static uint32_t first_of_fd[SHIM_SLOTS];
static uint32_t free_interests, fresh_interests = 1;

/* One-shot interests by data: every event of the kernel asks for one, among thousands. The last of all locks. */
#define DATA_LISTS 32768
static uint32_t first_of_data[DATA_LISTS];
static pthread_mutex_t data_lock = PTHREAD_MUTEX_INITIALIZER;

struct interest *interest_at(uint32_t index) { return &interests[index]; }

/* ---------------------------------------------------------------- records */

uint32_t interest_epoll_new(int epfd)
{
    uint32_t found = 0;
    table_lock();
    for (uint32_t i = 1; i < SHIM_EPOLLS && !found; i++)
        if (!records[i].used) found = i;
    if (found) {
        struct epoll_record *record = &records[found];
        memset(record, 0, sizeof *record);
        pthread_mutex_init(&record->lock, NULL);
        record->used = true;
        record->fd = epfd;
        record->bell = -1;
    }
    table_unlock();
    return found;
}

static void record_free(struct epoll_record *record)
{
    if (record->set && !engine_confined()) ENGINE_DO(engine.set_free(record->set));
    record->set = NULL;
    if (record->bell >= 0 && engine_confined()) record->bell = -1; /* the kernel closes it in its time */
    if (record->bell >= 0) {
        atomic_store(&shim_words[record->bell], 0);
        REAL(close)(record->bell);
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

static bool record_ready(struct epoll_record *record)
{
    if (record->set) return true;
    int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (bell >= 0) bell = shim_private_number(bell);
    if (bell < 0) return false;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = (uintptr_t)&interest_marker};
    if (REAL(epoll_ctl)(record->fd, EPOLL_CTL_ADD, bell, &event) == 0) record->set = ENGINE(engine.set_new(bell));
    if (record->set) {
        record->bell = bell;
        return true;
    }
    atomic_store(&shim_words[bell], 0);
    REAL(close)(bell);
    return false;
}

/* ---------------------------------------------------------------- one-shot ones, under the record's lock */

static uint32_t *list_of_data(uint32_t record, uint64_t data)
{
    uint64_t mixed = (data ^ (uint64_t)record << 48) * 0x9e3779b97f4a7c15ull;
    return &first_of_data[(mixed >> 40) % DATA_LISTS];
}

/* What the program registered has changed, or does now: takes the interest out of its list, or puts it into one. */
static void data_list(struct interest *interest, bool in)
{
    if (interest->hashed == in) return;
    uint32_t index = (uint32_t)(interest - interests), *link = list_of_data(interest->record, interest->data);
    pthread_mutex_lock(&data_lock);
    if (in) {
        interest->next_of_data = *link;
        *link = index;
    } else {
        while (*link != index) link = &interests[*link].next_of_data;
        *link = interest->next_of_data;
    }
    pthread_mutex_unlock(&data_lock);
    interest->hashed = in;
}

static bool asks_for_room(uint32_t events) { return (events & (EPOLLOUT | EPOLLWRNORM)) && !(events & EPOLLET); }

/* The program registers these events and data from now on. */
static void reregister(struct epoll_record *record, struct interest *interest, uint32_t events, uint64_t data)
{
    if (interest->data != data || !(events & EPOLLONESHOT)) data_list(interest, false);
    record->one_shots += !!(events & EPOLLONESHOT) - !!(interest->events & EPOLLONESHOT);
    record->writers += asks_for_room(events) - asks_for_room(interest->events);
    if ((events & (EPOLLET | EPOLLOUT)) == (EPOLLET | EPOLLOUT)) atomic_store(&record->room_anew, true);
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

/* ---------------------------------------------------------------- sleepers */

/* Wakes one thread that sleeps in the epoll descriptor. */
void record_ring(struct epoll_record *record)
{
    uint64_t one = 1;
    int kept = errno;
    if (record->bell >= 0 && REAL(write)(record->bell, &one, sizeof one) < 0) {} /* full: it has been rung */
    errno = kept;
}

/* Under the record's lock, which has a set: threads that fell asleep before there was anything to mirror count as one that sleeps, so
 * that no gate opens, until the bell has brought them back. */
static void record_cover(struct epoll_record *record)
{
    if (LIKELY(atomic_load(&record->uncovered) == 0)) return; /* COVER */
    if (!atomic_exchange(&record->counted, true)) ENGINE_DO(engine.set_asleep(record->set));
    record_ring(record);
    if (atomic_load(&record->uncovered) == 0 && atomic_exchange(&record->counted, false))
        ENGINE_DO(engine.set_slept(record->set));
}

void record_uncover(struct epoll_record *record)
{
    if (atomic_fetch_sub(&record->uncovered, 1) != 1 || LIKELY(!atomic_load(&record->counted))) return;
    shim_enter(); /* a handler that runs now must not want this lock */
    pthread_mutex_lock(&record->lock);
    if (atomic_load(&record->uncovered) == 0 && atomic_exchange(&record->counted, false)) ENGINE_DO(engine.set_slept(record->set));
    pthread_mutex_unlock(&record->lock);
    shim_exit();
    signals_due();
}

/* Somebody who waits on the epoll descriptor itself sees the kernel's readiness only. As long as data is left in a ring the bell lends
 * it some. */
void record_lend(struct epoll_record *record)
{
    struct motet_wait wait;
    if (!record->set) return;
    ENGINE_DO(engine.wait_begin_set(&wait, record->set));
    if (ENGINE(engine.wait_step(&wait, 0)) == MOTET_WAIT_READY) record_ring(record);
    ENGINE_DO(engine.wait_end(&wait));
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
    else if (fresh_interests < SHIM_INTERESTS)
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

/* Under the table lock. Whoever changes one registration all the time leaves the lock to this (control_quick). */
static void record_lock(struct epoll_record *record)
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
        if (record->set) ENGINE(engine.set_remove(record->set, interest->stream));
        atomic_fetch_sub(&record->streams, 1);
    }
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

/* Before a confinement: its registrations are for confined.c to look at. */
void interest_confined(int fd)
{
    for (uint32_t index = first_of_fd[fd]; index; index = interests[index].next_of_fd) {
        struct epoll_record *record = &records[interests[index].record];
        record_lock(record);
        if (interests[index].stream) {
            if (record->set) ENGINE(engine.set_remove(record->set, interests[index].stream));
            atomic_fetch_sub(&record->streams, 1);
            interests[index].stream = 0;
        }
        pthread_mutex_unlock(&record->lock);
    }
}

bool interest_epoll_confined(uint32_t index)
{
    struct epoll_record *record = &records[index];
    if (record->bell < 0) return true;
    if (record->inherited) return false; /* the bell is the parent's, too */
    struct epoll_event none = {0};
    REAL(epoll_ctl)(record->fd, EPOLL_CTL_DEL, record->bell, &none);
    return true;
}

/* Whether another descriptor of the same stream is registered here. */
static bool has_twin(const struct epoll_record *record, const struct interest *interest)
{
    if (LIKELY(!(table_word(interest->fd) & WORD_SHARED))) return false;
    for (uint32_t index = record->first; index; index = interests[index].next_in_epoll)
        if (&interests[index] != interest && interests[index].stream == interest->stream) return true;
    return false;
}

/* Under the record's lock. */
void interest_arm(struct epoll_record *record, struct interest *interest)
{
    if (!interest->stream || !record->set) return;
    int wanted = !interest_wants_data(interest) ? MOTET_SET_NONE : interest->events & EPOLLET ? MOTET_SET_EDGE : MOTET_SET_LEVEL;
    if (UNLIKELY(has_twin(record, interest))) { /* one event per descriptor cannot be mirrored: the engine knows streams */
        ENGINE(engine.plain(interest->stream, REASON_UNSEEN_WAIT));
        if (wanted == MOTET_SET_NONE) return; /* what is left in the ring is the other's to hear of */
    }
    ENGINE(engine.set_put(record->set, interest->stream, interest, wanted));
}

/* ---------------------------------------------------------------- from candidate to stream, under the table lock */

enum upgradable interest_may_upgrade(int fd)
{
    enum upgradable answer = UPGRADABLE;
    for (uint32_t index = first_of_fd[fd]; index; index = interests[index].next_of_fd) {
        struct epoll_record *record = &records[interests[index].record];
        atomic_fetch_add(&record->streams, 1); /* COVER */
        if (record->inherited && answer == UPGRADABLE) answer = UPGRADABLE_LATER;
        if (atomic_load(&record->nested)) answer = UPGRADABLE_NEVER;
    }
    return answer;
}

void interest_undo(int fd)
{
    for (uint32_t index = first_of_fd[fd]; index; index = interests[index].next_of_fd)
        atomic_fetch_sub(&records[interests[index].record].streams, 1);
}

void interest_upgraded(int fd, motet_stream s)
{
    for (uint32_t index = first_of_fd[fd]; index; index = interests[index].next_of_fd) {
        struct epoll_record *record = &records[interests[index].record];
        record_lock(record);
        interests[index].stream = s;
        if (record_ready(record)) {
            record_cover(record);
            interest_arm(record, &interests[index]);
        } else {
            ENGINE(engine.plain(s, REASON_UNSEEN_WAIT));
        }
        pthread_mutex_unlock(&record->lock);
    }
}

/* ---------------------------------------------------------------- epoll_ctl */

/* The same for a stream that this epoll descriptor knows, without the table lock (two system calls): some programs delete and
 * add around every request. The hand-over is behind it, and the record's lock keeps the kernel's answer and the note of it together.
 * A deleted entry stays in its lists, absent, until it is added again or one of the descriptors is closed. 1: not that simple. */
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
    shim_enter(); /* a handler that runs now must not want this lock */
    pthread_mutex_lock(&record->lock);
    bool ours = interest->record == number && interest->fd == fd && record->set && !atomic_load(&record->nested);
    motet_stream stream = table_handle(fd);
    if (word_kind(table_word(fd)) != KIND_STREAM) ours = false;
    if (operation == EPOLL_CTL_ADD)
        ours &= interest->absent;
    else
        ours &= interest->stream && interest->stream == stream;
    if (ours) {
        result = REAL(epoll_ctl)(epfd, operation, fd, event);
        if (result == 0) {
            interest->absent = operation == EPOLL_CTL_DEL;
            reregister(record, interest, interest->absent ? 0 : event->events, interest->absent ? interest->data : event->data.u64);
            if (operation == EPOLL_CTL_DEL) {
                int kept = errno;
                engine.set_remove(record->set, stream);
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
                if (atomic_load(&record->nested)) ENGINE(engine.plain(stream, REASON_NESTED_EPOLL));
            }
        }
    }
    pthread_mutex_unlock(&record->lock);
    shim_exit();
    signals_due();
    return result;
}

/* The kernel decides, under the table lock so that no hand-over falls in between; then the answer is remembered.
 * fd is fresh, a candidate or a stream. */
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
    bool known = word_kind(word) >= KIND_STREAM || word_kind(word) == KIND_CANDIDATE || word_kind(word) == KIND_FRESH;
    bool once = operation != EPOLL_CTL_DEL && (event->events & EPOLLONESHOT);
    /* Locked, and a first one-shot counted before: another thread may get the event before this one knows the answer. */
    record_lock(record);
    record->one_shots += once;
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
                atomic_fetch_add(&record->streams, 1); /* COVER */
                if (record_ready(record)) record_cover(record);
                else unfit = true;
            }
            interest_arm(record, interest); /* a new registration reports what is there already */
        }
    }
    record->one_shots -= once; /* reregister() has counted what is true now */
    pthread_mutex_unlock(&record->lock);
    if (result == 0 && known && operation == EPOLL_CTL_DEL && index) erase(index);
    bool nested = remembered && atomic_load(&record->nested);
    if ((unfit || nested) && word_kind(word) == KIND_STREAM)
        ENGINE(engine.plain(table_handle(fd), nested ? REASON_NESTED_EPOLL : REASON_UNSEEN_WAIT));
    if (unfit && word_kind(word) != KIND_STREAM) {
        interest_forget(fd);
        table_replace(fd, 0);
    }
    table_unlock();
    if (unfit && word_kind(word) != KIND_STREAM) engine_stayed_plain(REASON_UNSEEN_WAIT);
    errno = kept;
    return result;
}

/* ---------------------------------------------------------------- nesting and fork */

void record_all_plain(struct epoll_record *record, uint32_t reason)
{
    table_lock();
    for (uint32_t index = record->first; index; index = interests[index].next_in_epoll)
        if (interests[index].stream) ENGINE(engine.plain(interests[index].stream, reason));
    table_unlock();
}

void interest_epoll_nested(int epfd)
{
    struct epoll_record *record = record_enter(epfd);
    if (!record) return;
    if (!atomic_exchange(&record->nested, true) && atomic_load(&record->streams) > 0) {
        record_all_plain(record, REASON_NESTED_EPOLL);
        record_lend(record);
    }
    record_leave(record);
}

/* The child must not find a set locked by a thread that it does not have. A handler that forks may have interrupted the
 * holder of such a lock. */
static bool held_for_fork;

void interest_before_fork(void)
{
    held_for_fork = shim_depth == 0;
    for (uint32_t i = 1; i < SHIM_EPOLLS && held_for_fork; i++)
        if (records[i].used) pthread_mutex_lock(&records[i].lock);
    if (held_for_fork) pthread_mutex_lock(&data_lock);
}

void interest_after_fork(bool child)
{
    if (held_for_fork) pthread_mutex_unlock(&data_lock);
    else if (child) pthread_mutex_init(&data_lock, NULL);
    for (uint32_t i = 1; i < SHIM_EPOLLS && held_for_fork && !child; i++)
        if (records[i].used) pthread_mutex_unlock(&records[i].lock);
    if (!child) return;
    for (uint32_t i = 1; i < SHIM_EPOLLS; i++) {
        if (!records[i].used) continue;
        pthread_mutex_init(&records[i].lock, NULL);
        atomic_store(&records[i].users, 0);
        atomic_store(&records[i].uncovered, 0);
        atomic_store(&records[i].counted, false);
        records[i].inherited = true;
    }
}
