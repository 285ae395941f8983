/* Threads on one socket: threads cancel | senders | close-while-receiving */
#include "check.h"

enum { SENDERS = 4, RECORDS = 3000 };
static const char *how;
static int shared;
static int clean_ups;

static void cleaned(void *unused)
{
    (void)unused;
    clean_ups++;
}

static void *blocked(void *unused)
{
    (void)unused;
    char data[64];
    pthread_cleanup_push(cleaned, NULL);
    recv(shared, data, sizeof data, 0);
    pthread_cleanup_pop(0);
    return "returned";
}

static void *poller(void *unused)
{
    (void)unused;
    pthread_cleanup_push(cleaned, NULL);
    struct pollfd in = {.fd = shared, .events = POLLIN};
    poll(&in, 1, -1);
    pthread_cleanup_pop(0);
    return "returned";
}

static void cancelled(void *(*body)(void *))
{
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
    nap_ms(20);
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
}

struct record {
    uint32_t sender, number;
    char body[56];
};

static void *sender(void *argument)
{
    struct record record = {.sender = (uint32_t)(uintptr_t)argument};
    memset(record.body, 'a' + (int)record.sender, sizeof record.body);
    for (; record.number < RECORDS; record.number++) CHECK(send(shared, &record, sizeof record, 0) == sizeof record);
    return NULL;
}

static void accepted(int fd)
{
    exchange_until_settled(fd, 0);
    shared = fd;
    if (strcmp(how, "cancel") == 0) {
        for (int i = 0; i < 10; i++) {
            cancelled(blocked);
            cancelled(poller);
            exchange(fd, 1, 20);
        }
        printf("%d threads cancelled, the connection lives\n", clean_ups);
    } else if (strcmp(how, "senders") == 0) {
        pthread_t threads[SENDERS];
        for (uintptr_t i = 0; i < SENDERS; i++) CHECK(pthread_create(&threads[i], NULL, sender, (void *)i) == 0);
        for (int i = 0; i < SENDERS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        char byte;
        CHECK(recv(fd, &byte, 1, 0) == 1);
    } else {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, blocked, NULL) == 0);
        nap_ms(20);
        shutdown(fd, SHUT_RDWR); /* a bare close() leaves the reader asleep, in the kernel too */
        CHECK(close(fd) == 0);
        CHECK(pthread_join(thread, &result) == 0 && result != PTHREAD_CANCELED);
        printf("closed under a reader\n");
        return;
    }
    close(fd);
}

static void connected(int fd)
{
    char byte;
    exchange_until_settled(fd, 1);
    if (strcmp(how, "cancel") == 0) {
        for (int i = 0; i < 10; i++) exchange(fd, 0, 20);
    } else if (strcmp(how, "senders") == 0) {
        uint32_t next[SENDERS] = {0};
        for (int i = 0; i < SENDERS * RECORDS; i++) {
            struct record record;
            receive_all(fd, &record, sizeof record);
            CHECK(record.sender < SENDERS && record.number == next[record.sender]++);
            for (size_t k = 0; k < sizeof record.body; k++) CHECK(record.body[k] == 'a' + (int)record.sender);
        }
        send_all(fd, "x", 1);
        printf("%d records of %d senders, each in its order\n", SENDERS * RECORDS, SENDERS);
    }
    CHECK(recv(fd, &byte, 1, 0) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    how = argv[1];
    two_processes("4", accepted, connected);
}
