// Measures messages over java.nio and java.net, and calls over RMI. Nothing here knows of Motet.
//
//   PingPong serve nio|net|virtual  prints "port N" and serves until it is ended; nio: a selector, net: a thread a connection,
//                                   virtual: a virtual thread a connection (JDK 21 and later)
//   PingPong call nio|select|net|virtual PORT
//   PingPong call rmi PORT          PORT is that of the registry in which `Remote serve` is bound
//
// A caller measures for each line "SIZE MS HOW" of its input and prints "MEDIAN MEAN COUNT" as tests/bench/peer.h says, in ns for
// one message. HOW is `echo`: each message comes back whole, or `stream`: the last of some hundred is answered by one byte.
// A block of messages begins with its size, its count and whether each is echoed: three ints.
import java.io.BufferedReader;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.rmi.registry.LocateRegistry;
import java.util.Arrays;

public class PingPong {
    static final int HEAD = 12;

    public static void main(String[] words) throws Exception {
        if (words[0].equals("serve")) {
            if (words[1].equals("nio")) serveNio(); else serveNet(words[1].equals("virtual"));
            return;
        }
        if (words[1].equals("virtual")) {
            start(() -> call(words), true).join();
        } else {
            call(words);
        }
        System.exit(0);
    }

    interface Task {
        void run() throws Exception;
    }

    /** Starts a thread. The compiler may be older than virtual threads, which are found by name. */
    static Thread start(Task task, boolean virtual) throws Exception {
        Runnable guarded = () -> {
            try {
                task.run();
            } catch (EOFException end) {
                // the caller has closed the connection
            } catch (Exception e) {
                e.printStackTrace();
                System.exit(1);
            }
        };
        if (virtual) return (Thread) Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, guarded);
        Thread thread = new Thread(guarded);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    static void call(String[] words) throws Exception {
        Peer peer = connect(words[1], Integer.parseInt(words[2]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null;) {
            String[] asked = line.split(" ");
            measure(peer, Integer.parseInt(asked[0]), Double.parseDouble(asked[1]), asked[2].equals("echo"));
        }
    }

    // ---- measuring ----

    interface Peer {
        void block(int size, int count, boolean echo) throws Exception;
    }

    static void measure(Peer peer, int size, double ms, boolean echo) throws Exception {
        int count = echo ? 64 : Math.max(1, Math.min(4096, (16 << 20) / size));
        long start = System.nanoTime(), last;
        do {
            last = System.nanoTime();
            peer.block(size, count, echo);
            last = System.nanoTime() - last;
        } while (System.nanoTime() - start < ms * 2e5);
        if (echo) count = (int) Math.max(1, Math.min(1e6, 3e5 * count / last));
        double[] blocks = new double[1 << 16];
        int n = 0;
        long begun = System.nanoTime(), before = begun, end;
        do {
            peer.block(size, count, echo);
            end = System.nanoTime();
            blocks[n++] = (double) (end - before) / count;
            before = end;
        } while (n < blocks.length && end - begun < ms * 1e6);
        Arrays.sort(blocks, 0, n);
        System.out.println(blocks[n / 2] + " " + (double) (end - begun) / n / count + " " + (long) n * count);
        System.out.flush();
    }

    static ByteBuffer head(int size, int count, boolean echo) {
        return ByteBuffer.allocateDirect(HEAD).putInt(size).putInt(count).putInt(echo ? 1 : 0).flip();
    }

    static Peer connect(String kind, int port) throws Exception {
        switch (kind) {
            case "rmi":
                Remote.Desk desk = (Remote.Desk) LocateRegistry.getRegistry("127.0.0.1", port).lookup("desk");
                return (size, count, echo) -> { while (count-- > 0) desk.add(1); };
            case "net": case "virtual":
                Socket socket = new Socket(InetAddress.getLoopbackAddress(), port);
                socket.setTcpNoDelay(true);
                return new NetPeer(socket.getInputStream(), socket.getOutputStream());
            default:
                SocketChannel channel = SocketChannel.open(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
                channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
                return new NioPeer(channel, kind.equals("select"));
        }
    }

    record NetPeer(InputStream in, OutputStream out) implements Peer {
        public void block(int size, int count, boolean echo) throws IOException {
            byte[] head = new byte[HEAD], data = new byte[size];
            head(size, count, echo).get(head);
            out.write(head);
            while (count-- > 0) {
                out.write(data);
                if (echo) fill(in, data);
            }
            if (!echo && in.read() < 0) throw new EOFException();
        }
    }

    static class NioPeer implements Peer {
        final SocketChannel channel;
        final Selector selector; // or null: the channel blocks
        final SelectionKey key;

        NioPeer(SocketChannel channel, boolean selects) throws IOException {
            this.channel = channel;
            selector = selects ? Selector.open() : null;
            if (selects) channel.configureBlocking(false);
            key = selects ? channel.register(selector, SelectionKey.OP_READ) : null;
        }

        void wait(int operation) throws IOException {
            if (selector == null) return;
            if (key.interestOps() != operation) key.interestOps(operation);
            selector.select();
            selector.selectedKeys().clear();
        }

        void put(ByteBuffer data) throws IOException {
            for (channel.write(data); data.hasRemaining(); channel.write(data)) wait(SelectionKey.OP_WRITE);
        }

        void take(ByteBuffer data) throws IOException {
            while (data.hasRemaining()) {
                wait(SelectionKey.OP_READ);
                if (channel.read(data) < 0) throw new EOFException();
            }
        }

        ByteBuffer data = ByteBuffer.allocateDirect(64);

        public void block(int size, int count, boolean echo) throws IOException {
            if (data.capacity() != size) data = ByteBuffer.allocateDirect(size);
            put(head(size, count, echo));
            while (count-- > 0) {
                put(data.clear());
                if (echo) take(data.clear());
            }
            if (!echo) take(ByteBuffer.allocateDirect(1));
        }
    }

    // ---- serving ----

    static void fill(InputStream in, byte[] data) throws IOException {
        for (int done = 0; done < data.length;) {
            int n = in.read(data, done, data.length - done);
            if (n < 0) throw new EOFException();
            done += n;
        }
    }

    static void serveNet(boolean virtual) throws Exception {
        ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        System.out.println("port " + listener.getLocalPort());
        for (;;) {
            Socket socket = listener.accept();
            socket.setTcpNoDelay(true);
            start(() -> serveOne(socket), virtual);
        }
    }

    static void serveOne(Socket socket) throws IOException {
        try (socket) {
            InputStream in = socket.getInputStream();
            OutputStream out = socket.getOutputStream();
            for (byte[] head = new byte[HEAD];;) {
                fill(in, head);
                ByteBuffer plan = ByteBuffer.wrap(head);
                byte[] data = new byte[plan.getInt()];
                int count = plan.getInt();
                boolean echo = plan.getInt() != 0;
                while (count-- > 0) {
                    fill(in, data);
                    if (echo) out.write(data);
                }
                if (!echo) out.write(1);
            }
        } catch (java.net.SocketException e) {
            // the caller has closed the connection
        }
    }

    /** The state of a connection of the server with a selector. */
    static class Served {
        final ByteBuffer head = ByteBuffer.allocateDirect(HEAD);
        ByteBuffer data = ByteBuffer.allocateDirect(64);
        int left;
        boolean echo;

        /** Makes one read or one write. Returns what to wait for next, 0 if the caller has closed the connection. */
        int step(SocketChannel channel, boolean writes) throws IOException {
            if (!writes) {
                ByteBuffer into = left == 0 ? head : data;
                if (channel.read(into) < 0) return 0;
                if (into.hasRemaining()) return SelectionKey.OP_READ;
                if (left == 0) {
                    head.flip();
                    int size = head.getInt();
                    left = head.getInt();
                    echo = head.getInt() != 0;
                    head.clear();
                    if (data.capacity() != size) data = ByteBuffer.allocateDirect(size);
                    data.clear();
                    return SelectionKey.OP_READ;
                }
                left--;
                data.flip();
                if (!echo && left > 0) {
                    data.clear();
                    return SelectionKey.OP_READ;
                }
                if (!echo) data.limit(1);
            }
            channel.write(data);
            if (data.hasRemaining()) return SelectionKey.OP_WRITE;
            data.clear();
            return SelectionKey.OP_READ;
        }
    }

    static void serveNio() throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open().bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        System.out.println("port " + ((InetSocketAddress) listener.getLocalAddress()).getPort());
        for (;;) {
            selector.select();
            for (var keys = selector.selectedKeys().iterator(); keys.hasNext();) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    if (channel == null) continue;
                    channel.configureBlocking(false);
                    channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
                    channel.register(selector, SelectionKey.OP_READ, new Served());
                    continue;
                }
                int next;
                try {
                    next = ((Served) key.attachment()).step((SocketChannel) key.channel(), key.isWritable());
                } catch (IOException e) {
                    next = 0;
                }
                if (next == 0) key.channel().close(); else if (key.interestOps() != next) key.interestOps(next);
            }
        }
    }
}
