// messages.cc: ping-pong with messages from C++: two nodes of one process; one of them answers in a handler.
//
//   c++ -std=c++17 -I include examples/cxx/messages.cc -L target/release -lmotet -pthread -o messages
//   LD_LIBRARY_PATH=target/release ./messages [round trips]
//
// Every answer is checked. Prints their number and the driver that carried them.
#include <motet.h>

#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace {

int check(int result, const char* what)
{
    if (result < 0) throw std::system_error(-result, std::generic_category(), what);
    return result;
}

template <typename T>
T sized()
{
    T shape{};
    shape.size = sizeof shape;
    return shape;
}

int64_t in_seconds(int seconds)
{
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec + seconds) * INT64_C(1000000000) + now.tv_nsec;
}

// A node that is closed at the end of its scope.
class Node {
public:
    Node() { check(motet_node_open(nullptr, &handle_), "motet_node_open"); }
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;
    ~Node() { motet_node_close(handle_); }

    operator motet_node() const { return handle_; }

    std::string name() const
    {
        char text[256];
        check(static_cast<int>(motet_node_name(handle_, text, sizeof text)), "motet_node_name");
        return text;
    }

private:
    motet_node handle_ = 0;
};

constexpr uint64_t service = 1;

// Answers at once, with the body in place.
int answer(motet_node node, const motet_arrival* message, void* answered)
{
    if (message->message == 0 && motet_message_inject(node, message->channel, message->tag + 1, message->body, message->length, 0) == 0)
        ++*static_cast<long*>(answered);
    return 0;
}

}  // namespace

int main(int argc, char** argv)
try {
    const long rounds = argc > 1 ? std::atol(argv[1]) : 10000;
    long answered = 0;
    motet_link_state info = sized<motet_link_state>();
    {
        const Node near, far;
        motet_handler handler;
        check(motet_handler_new(far, answer, &answered, &handler), "motet_handler_new");
        motet_receive_mode by_handler = sized<motet_receive_mode>(), by_queue = sized<motet_receive_mode>();
        by_handler.kind = MOTET_RECEIVE_HANDLER;
        by_handler.target = handler;
        by_queue.kind = MOTET_RECEIVE_QUEUE;
        check(motet_service_open(far, service, &by_handler), "motet_service_open");

        motet_cq work; // always empty: waiting for it makes progress until it is signalled
        check(motet_cq_new(far, &work), "motet_cq_new");
        std::thread driver([&] {
            motet_completion end = sized<motet_completion>();
            motet_cq_wait(far, work, &end, 1, INT64_MAX);
        });

        std::string wrong;
        try {
            motet_link link;
            motet_channel channel;
            check(motet_link_open(near, far.name().c_str(), in_seconds(10), &link), "motet_link_open");
            check(motet_channel_open(near, link, service, &by_queue, in_seconds(10), &channel), "motet_channel_open");
            for (long i = 0; i < rounds; i++) {
                const std::string word = "message " + std::to_string(i);
                char back[64];
                motet_completion end = sized<motet_completion>();
                check(motet_message_send(near, channel, i, word.data(), word.size(), in_seconds(10)), "motet_message_send");
                check(motet_message_receive(near, channel, back, sizeof back, in_seconds(10), &end), "motet_message_receive");
                if (end.tag != static_cast<uint64_t>(i) + 1 || std::string(back, end.length) != word) throw std::runtime_error("a wrong answer");
            }
            check(motet_link_info(near, link, &info), "motet_link_info");
        } catch (const std::exception& error) {
            wrong = error.what();
        }
        motet_cq_signal(far, work);
        driver.join();
        if (!wrong.empty()) throw std::runtime_error(wrong);
    }
    if (answered != rounds) throw std::runtime_error("answers are missing");
    std::printf("%ld answers; driver %s\n", answered, info.driver);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "messages: %s\n", error.what());
    return 1;
}
