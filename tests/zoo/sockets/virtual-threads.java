// A server process, started as a child, and its clients (see the program's file). The compiler is older than virtual threads, which are found by name.
import java.io.*;
import java.net.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.zip.CRC32;

class Virtual {
    static final int CLIENTS = 200, EXCHANGES = 200;

    static ExecutorService threads() throws Exception {
        return (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
    }

    static byte[] some(int seed, int n) {
        byte[] data = new byte[n];
        new Random(seed).nextBytes(data);
        return data;
    }

    /** Answers each frame, a length and bytes, with the same frame backwards. */
    static void answer(Socket socket) {
        try (socket) {
            DataInputStream in = new DataInputStream(socket.getInputStream());
            DataOutputStream out = new DataOutputStream(new BufferedOutputStream(socket.getOutputStream()));
            while (true) {
                byte[] data = in.readNBytes(in.readInt());
                for (int a = 0, b = data.length - 1; a < b; a++, b--) { byte kept = data[a]; data[a] = data[b]; data[b] = kept; }
                out.writeInt(data.length);
                out.write(data);
                out.flush();
            }
        } catch (EOFException end) {
            return;
        } catch (IOException e) {
            e.printStackTrace();
        }
    }

    static void serve() throws Exception {
        ServerSocket listener = new ServerSocket(0, 256, InetAddress.getByName("127.0.0.1"));
        ExecutorService threads = threads();
        threads.submit(() -> {
            while (true) {
                Socket socket = listener.accept();
                threads.submit(() -> answer(socket));
            }
        });
        System.out.println(listener.getLocalPort());
        System.in.read();
        System.exit(0);
    }

    /** Exchanges of all sizes up to 300 kB, and a pause now and then, in which the carrier thread serves others. */
    static long call(int port, int client) throws Exception {
        CRC32 sum = new CRC32();
        try (Socket socket = new Socket("127.0.0.1", port)) {
            socket.setTcpNoDelay(true);
            DataInputStream in = new DataInputStream(socket.getInputStream());
            DataOutputStream out = new DataOutputStream(new BufferedOutputStream(socket.getOutputStream()));
            for (int n = 0; n < EXCHANGES; n++) {
                byte[] data = some(client * EXCHANGES + n, n % 40 == 39 ? 300_000 : n * 7 % 3000);
                out.writeInt(data.length);
                out.write(data);
                out.flush();
                sum.update(in.readNBytes(in.readInt()));
                if (n % 50 == client % 50) Thread.sleep(5);
            }
        }
        return sum.getValue();
    }

    public static void main(String[] args) throws Exception {
        if (args.length > 0) { serve(); return; }
        String java = System.getProperty("java.home") + "/bin/java";
        Process server = new ProcessBuilder(java, "-cp", System.getProperty("java.class.path"), "Virtual", "serve")
            .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        int port = new Scanner(server.getInputStream()).nextInt();
        ExecutorService threads = threads();
        List<Future<Long>> calls = new ArrayList<>();
        for (int n = 0; n < CLIENTS; n++) {
            int client = n;
            calls.add(threads.submit(() -> call(port, client)));
        }
        CRC32 all = new CRC32();
        for (Future<Long> call : calls) all.update(Long.toString(call.get()).getBytes());
        System.out.println(CLIENTS + " clients " + Long.toHexString(all.getValue()));
        server.getOutputStream().close();
        System.out.println("server " + server.waitFor());
        System.exit(0);
    }
}
