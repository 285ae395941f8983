/* meet.h: connects two processes: a child, which owns the regions, and this one, which accesses them. Include it after what it uses of the test:
   node, link_, channel, keys (the first message on the channel), queue(), SERVICE, and own(), the owner's work. */
#ifndef TESTS_MESSAGES_MEET_H
#define TESTS_MESSAGES_MEET_H

/* The owner's address, for further links. */
static char met_at[256];

/* Starts the owner's process, links to it over "shm" or "tcp", and receives its keys. Returns the process id. */
static pid_t meet(const char *way, const char *mark)
{
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    struct motet_receive_mode mode = queue();
    int to_here[2];
    char name[64], address[256] = "", scheme[16], ready;
    snprintf(name, sizeof name, "%s-%d", mark, getpid());
    snprintf(scheme, sizeof scheme, "%s://", way);
    options.name = name;
    options.listen = "127.0.0.1:0";
    CHECK(pipe(to_here), 0);
    pid_t owner = fork();
    if (owner == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
        CHECK(motet_node_open(&options, &node), 0);
        CHECK(motet_node_address(node, address, sizeof address) > 0, 1);
        CHECK(write(to_here[1], address, sizeof address), sizeof address);
        own(to_here[1]);
        CHECK(motet_node_close(node), 0);
        exit(0);
    }
    CHECK(read(to_here[0], address, sizeof address), sizeof address);
    CHECK(read(to_here[0], &ready, 1), 1);
    close(to_here[0]);
    close(to_here[1]);
    char *only = strstr(address, scheme);
    CHECK(only != NULL, 1);
    if (strchr(only, ','))
        *strchr(only, ',') = 0;
    snprintf(met_at, sizeof met_at, "%s", only);
    CHECK(motet_node_open(NULL, &node), 0);
    CHECK(motet_link_open(node, only, SOON, &link_), 0);
    CHECK(motet_channel_open(node, link_, SERVICE, &mode, SOON, &channel), 0);
    CHECK(motet_message_receive(node, channel, keys, sizeof keys, SOON, NULL), 0);
    return owner;
}

#endif
