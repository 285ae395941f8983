// Echo over java.nio (a selector, many channels), a blocking channel or java.net, each in two processes.
// Echo serve nio|net CLIENTS: prints the port, serves that many connections and ends.
// Echo call nio|net PORT CLIENTS ROUNDS: prints a hash of all that came back.
import java.io.DataInputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Random;
import java.security.MessageDigest;

public class Echo {
    public static void main(String[] words) throws Exception {
        boolean nio = words[1].equals("nio");
        if (words[0].equals("serve")) {
            int clients = Integer.parseInt(words[2]);
            if (nio) serveNio(clients); else serveNet(clients);
        } else {
            int port = Integer.parseInt(words[2]), clients = Integer.parseInt(words[3]), rounds = Integer.parseInt(words[4]);
            System.out.println(nio ? callNio(port, clients, rounds) : callNet(port, clients, rounds));
        }
    }

    static void serveNio(int clients) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open().bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        System.out.println("port " + ((InetSocketAddress) listener.getLocalAddress()).getPort());
        int left = clients;
        while (left > 0) {
            selector.select();
            for (var keys = selector.selectedKeys().iterator(); keys.hasNext();) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    if (channel == null) continue;
                    channel.configureBlocking(false);
                    channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(65536));
                    continue;
                }
                SocketChannel channel = (SocketChannel) key.channel();
                ByteBuffer buffer = (ByteBuffer) key.attachment();
                if (key.isReadable() && channel.read(buffer) < 0) {
                    channel.close();
                    left--;
                    continue;
                }
                buffer.flip();
                channel.write(buffer);
                key.interestOps(buffer.hasRemaining() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
                buffer.compact();
            }
        }
    }

    static void serveNet(int clients) throws Exception {
        try (ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            System.out.println("port " + listener.getLocalPort());
            Thread[] threads = new Thread[clients];
            for (int i = 0; i < clients; i++) {
                Socket socket = listener.accept();
                threads[i] = new Thread(() -> {
                    try (socket) {
                        byte[] bytes = new byte[65536];
                        for (int n; (n = socket.getInputStream().read(bytes)) > 0;) socket.getOutputStream().write(bytes, 0, n);
                    } catch (Exception e) {
                        e.printStackTrace();
                        System.exit(1);
                    }
                });
                threads[i].start();
            }
            for (Thread thread : threads) thread.join();
        }
    }

    static byte[] message(Random random, int round) {
        byte[] bytes = new byte[1 + random.nextInt(round % 9 == 0 ? 60000 : 200)];
        random.nextBytes(bytes);
        return bytes;
    }

    static String callNio(int port, int clients, int rounds) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        SocketChannel[] channels = new SocketChannel[clients];
        Random random = new Random(3);
        for (int i = 0; i < clients; i++) channels[i] = SocketChannel.open(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        for (int round = 0; round < rounds; round++) {
            byte[][] sent = new byte[clients][];
            for (int i = 0; i < clients; i++) {
                ByteBuffer out = ByteBuffer.wrap(sent[i] = message(random, round));
                while (out.hasRemaining()) channels[i].write(out);
            }
            for (int i = 0; i < clients; i++) {
                ByteBuffer in = ByteBuffer.allocate(sent[i].length);
                while (in.hasRemaining()) if (channels[i].read(in) < 0) throw new Exception("end of file");
                if (!Arrays.equals(in.array(), sent[i])) throw new Exception("other bytes in round " + round);
                digest.update(in.array());
            }
        }
        for (SocketChannel channel : channels) channel.close();
        return HexFormat.of().formatHex(digest.digest());
    }

    static String callNet(int port, int clients, int rounds) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        Socket[] sockets = new Socket[clients];
        Random random = new Random(4);
        for (int i = 0; i < clients; i++) {
            sockets[i] = new Socket(InetAddress.getLoopbackAddress(), port);
            sockets[i].setTcpNoDelay(true);
            sockets[i].setSoTimeout(30000); // reads then wait in poll()
        }
        for (int round = 0; round < rounds; round++) {
            for (int i = 0; i < clients; i++) {
                byte[] out = message(random, round), in = new byte[out.length];
                OutputStream stream = sockets[i].getOutputStream();
                stream.write(out);
                new DataInputStream(sockets[i].getInputStream()).readFully(in);
                if (!Arrays.equals(in, out)) throw new Exception("other bytes in round " + round);
                digest.update(in);
            }
        }
        for (Socket socket : sockets) socket.close();
        return HexFormat.of().formatHex(digest.digest());
    }
}
