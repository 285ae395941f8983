// A forked server process and its clients (see the program's file).
#include <boost/asio.hpp>
#include <boost/asio/spawn.hpp>
#include <boost/beast.hpp>
#include <boost/beast/websocket.hpp>
#include <atomic>
#include <cstdio>
#include <random>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
namespace asio = boost::asio;
namespace beast = boost::beast;
using tcp = asio::ip::tcp;
using Socket = beast::websocket::stream<beast::tcp_stream>;

static void talk(Socket& ws, unsigned seed, std::atomic<int>& right, asio::yield_context yield) {
    std::minstd_rand random(seed);
    ws.binary(true);
    for (int i = 0; i < 300; i++) {
        std::string data(i % 50 == 49 ? 3000000 : random() % (i % 5 ? 200 : 70000), 0);
        for (auto& c : data) c = char(random());
        ws.async_write(asio::buffer(data), yield);
        beast::flat_buffer got;
        ws.async_read(got, yield);
        if (beast::buffers_to_string(got.data()) == data) right++;
    }
    ws.async_close(beast::websocket::close_code::normal, yield);
}

static void serve(tcp::acceptor& at, asio::io_context& io) {
    asio::spawn(io, [&](asio::yield_context yield) {
        for (;;) {
            tcp::socket socket(io);
            at.async_accept(socket, yield);
            auto ws = std::make_shared<Socket>(std::move(socket));
            asio::spawn(io, [ws](asio::yield_context yield) {
                boost::system::error_code error;
                ws->read_message_max(1 << 26);
                ws->binary(true);
                ws->async_accept(yield[error]);
                while (!error) {
                    beast::flat_buffer got;
                    ws->async_read(got, yield[error]);
                    if (!error) ws->async_write(got.data(), yield[error]);
                }
            });
        }
    });
}

int main() {
    asio::io_context io;
    tcp::acceptor at(io, {asio::ip::address_v4::loopback(), 0});
    auto where = at.local_endpoint();
    io.notify_fork(asio::execution_context::fork_prepare);
    pid_t child = fork();
    io.notify_fork(child ? asio::execution_context::fork_parent : asio::execution_context::fork_child);
    if (!child) {
        asio::signal_set term(io, SIGTERM);
        term.async_wait([&](auto, auto) { io.stop(); });
        serve(at, io);
        io.run();
        exit(0);
    }
    at.close();
    std::atomic<int> right{0};
    for (unsigned seed = 1; seed <= 8; seed++)
        asio::spawn(io, [&, seed](asio::yield_context yield) {
            Socket ws(asio::make_strand(io));
            ws.read_message_max(1 << 26);
            beast::get_lowest_layer(ws).async_connect(where, yield);
            ws.async_handshake("localhost", "/", yield);
            talk(ws, seed, right, yield);
        });
    std::thread other([&] { io.run(); });
    io.run();
    other.join();
    printf("%d of 2400\n", right.load());
    int status;
    kill(child, SIGTERM);
    waitpid(child, &status, 0);
    printf("server %d\n", status);
}
