/* files.c: reads a file of an export with 8 reads under way, and adds up its bytes.
 *
 *   cc -O2 -I include examples/c/files.c -L target/release -lmotet -o files
 *   motet export /data --as results                      # in another shell
 *   LD_LIBRARY_PATH=target/release ./files results a/file
 *
 * One thread, no mount. Prints the length, the sum, and which way the data came. */
#include <motet_file.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

enum { AHEAD = 8, BLOCK = 64 << 10 };

static long long check(long long result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "files: %s: %s\n", what, strerror((int)-result));
        exit(1);
    }
    return result;
}

int main(int count, char **arguments)
{
    motet_files files;
    motet_file file;
    motet_file_cq cq;
    unsigned long long sum = 0, next = 0, done = 0;
    if (count != 3) {
        fprintf(stderr, "usage: files EXPORT PATH\n");
        return 2;
    }
    check(motet_files_connect(arguments[1], INT64_MAX, 0, &files), arguments[1]);
    check(motet_file_open(files, arguments[2], O_RDONLY, 0, &file), arguments[2]);
    check(motet_file_cq_open(files, AHEAD, &cq), "a completion queue");

    unsigned long long length = (unsigned long long)check(motet_file_size(file), "its length");
    unsigned char *memory = motet_buffer_alloc(AHEAD * BLOCK); /* its pages are present */
    if (!memory)
        return 1;
    unsigned char *free_blocks[AHEAD];
    int n = 0;
    while (n < AHEAD)
        free_blocks[n] = memory + n * BLOCK, n++;

    while (next < length || n < AHEAD) { /* until all is submitted, and no read is under way */
        while (n > 0 && next < length) { /* submit as many as there are blocks */
            struct motet_file_request read = MOTET_INIT(struct motet_file_request);
            read.operation = MOTET_FILE_READ, read.offset = next;
            read.memory = read.user = free_blocks[n - 1], read.length = BLOCK;
            int submitted = motet_file_submit(cq, file, &read, 1);
            if (submitted == -EAGAIN)
                break; /* no room now */
            check(submitted, "a read");
            next += BLOCK, n--;
        }
        struct motet_file_completion completion = MOTET_INIT(struct motet_file_completion);
        check(motet_file_cq_wait(cq, &completion, 1, INT64_MAX), "a completion");
        check(completion.result, "a read");
        unsigned char *block = completion.user;
        for (int64_t at = 0; at < completion.result; at++)
            sum += block[at];
        done += (unsigned long long)completion.result;
        free_blocks[n++] = block;
    }
    printf("%llu bytes, sum %llu, %s\n", done, sum, motet_files_is_direct(files) ? "the directory itself" : "by messages");
    motet_file_cq_close(cq);
    motet_buffer_free(memory);
    motet_file_close(file);
    motet_files_close(files);
    return 0;
}
