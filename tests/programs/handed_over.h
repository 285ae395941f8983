/* handed_over.h: what the processes of one cell of handed_over.c share, and how a reader reads, counts and answers.
 *
 * The control file holds 64-bit words. A reader in any language writes its slot with pwrite(2): bytes so far, their CRC-32, their sum, and 1
 * at end of file. */
#ifndef HANDED_ON_H
#define HANDED_ON_H

#include "check.h"

enum { SLOT_BYTES, SLOT_CRC, SLOT_SUM, SLOT_FINISHED, SLOT_WORDS };
enum { PARENT = 0, CHILD = 1 };
enum {
    WORD_OPEN = 2 * SLOT_WORDS, /* the holder watches the connection: the peer may send */
    WORD_LOOKED,                /* the holder has received a first message, and watches the connection again */
    WORD_SENT,                  /* the peer has sent what shall stay unread, or is about to send a large amount */
    WORD_STOP,                  /* the peer may be stopped */
    WORD_STOPPED,
    WORD_HANDED,                /* the holder is about to hand the connection over */
    WORD_MISSED,                /* no byte was outside TCP, which the cell requires */
    WORD_PEER,                  /* 1: the peer got all answers */
    WORD_READ_BEFORE,           /* bytes that the holder read before */
    WORD_ENDED,                 /* the peer has sent everything and called shutdown */
    WORD_STRICT,                /* also of a large send a part must be outside TCP at the hand-over */
    WORDS,
};

enum { RECORD = 64, HELLOS = 16, PRELUDE = 20480, UNREAD = 20480 };

struct counted {
    uint64_t words[SLOT_WORDS];
    uint32_t crc;
};

static inline uint32_t crc_more(uint32_t crc, const unsigned char *bytes, size_t length)
{
    static uint32_t table[256];
    if (table[1] == 0)
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t x = i;
            for (int bit = 0; bit < 8; bit++) x = x & 1 ? x >> 1 ^ 0xedb88320u : x >> 1;
            table[i] = x;
        }
    crc = ~crc;
    while (length--) crc = table[(crc ^ *bytes++) & 0xff] ^ crc >> 8;
    return ~crc;
}

static inline void count_bytes(struct counted *counted, const unsigned char *bytes, size_t length)
{
    counted->crc = crc_more(counted->crc, bytes, length);
    counted->words[SLOT_BYTES] += length;
    counted->words[SLOT_CRC] = counted->crc;
    for (size_t i = 0; i < length; i++) counted->words[SLOT_SUM] += bytes[i];
}

/* The byte that the peer sends at this offset. */
static inline unsigned char byte_at(uint64_t offset)
{
    uint64_t x = (offset / 8 + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
    return (unsigned char)((x ^ (x >> 32)) >> (offset % 8 * 8));
}

static inline void make_bytes(unsigned char *to, uint64_t offset, size_t length)
{
    for (size_t i = 0; i < length; i++) to[i] = byte_at(offset + i);
}

static inline void note(int control, int slot, const struct counted *counted)
{
    CHECK(pwrite(control, counted->words, sizeof counted->words, slot * (off_t)sizeof counted->words) == sizeof counted->words);
}

static inline void write_all(int fd, const void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, (const char *)data + done, length - done);
        CHECK(n > 0);
        done += (size_t)n;
    }
}

static inline void say_hello(int out)
{
    char hello[RECORD * HELLOS];
    memset(hello, 'h', sizeof hello);
    write_all(out, hello, sizeof hello);
}

/* Sends the count and digest of what was read, after `bulk` other bytes. */
static inline void answer(int out, const struct counted *counted, size_t bulk)
{
    static unsigned char data[1 << 16];
    for (size_t done = 0; done < bulk; done += sizeof data) {
        make_bytes(data, done, sizeof data);
        write_all(out, data, sizeof data);
    }
    char line[RECORD] = "";
    memset(line, ' ', sizeof line);
    int n = snprintf(line, sizeof line, "a %llu %llu %llu", (unsigned long long)counted->words[SLOT_BYTES],
                     (unsigned long long)counted->words[SLOT_CRC], (unsigned long long)counted->words[SLOT_SUM]);
    line[n] = ' ';
    write_all(out, line, sizeof line);
}

/* Ends the program at the first byte that is wrong. Only a reader that reads everything can check this. */
static inline void verify_place(int control, uint64_t done, const unsigned char *bytes, size_t length)
{
    uint64_t before;
    CHECK(pread(control, &before, sizeof before, WORD_READ_BEFORE * (off_t)sizeof before) == sizeof before);
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != byte_at(before + done + i)) {
            fprintf(stderr, "a wrong byte at %llu of a stream that was handed on at %llu\n", (unsigned long long)(before + done + i), (unsigned long long)before);
            exit(1);
        }
}

/* Reads to the end of file. `mixed`: by several kinds of calls. */
static inline void read_to_end(int in, int control, int slot, struct counted *counted, int alone, int mixed)
{
    static unsigned char data[1 << 16];
    for (unsigned turn = 0;; turn++) {
        ssize_t n;
        struct pollfd ready = {in, POLLIN, 0};
        if (mixed && turn % 3 == 1) {
            CHECK(poll(&ready, 1, -1) == 1);
            n = recv(in, data, sizeof data, MSG_DONTWAIT);
            if (n < 0 && errno == EAGAIN) continue; /* another process was faster */
        } else if (mixed && turn % 3 == 2) {
            n = recv(in, data, 1000, 0);
        } else {
            n = read(in, data, sizeof data);
        }
        CHECK(n >= 0);
        if (n == 0) break;
        if (alone) verify_place(control, counted->words[SLOT_BYTES], data, (size_t)n);
        count_bytes(counted, data, (size_t)n);
        note(control, slot, counted);
    }
    counted->words[SLOT_FINISHED] = 1;
    note(control, slot, counted);
}

/* What every reader does. */
static inline void serve(int in, int out, int control, int slot, size_t bulk, int mixed)
{
    struct counted counted = {0};
    say_hello(out);
    read_to_end(in, control, slot, &counted, bulk > 0, mixed);
    answer(out, &counted, bulk);
}

static inline void pass(int over, int fd)
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    char byte = 0;
    struct iovec iov = {&byte, 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(over, &message, 0) == 1);
}

static inline int passed(int over)
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    char byte;
    int fd;
    struct iovec iov = {&byte, 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    CHECK(recvmsg(over, &message, 0) == 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    CHECK(header && header->cmsg_type == SCM_RIGHTS);
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

#endif
