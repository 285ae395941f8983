// A server process, started as a child, and its clients (see the program's file).
import com.sun.net.httpserver.*;
import java.io.*;
import java.net.*;
import java.net.http.*;
import java.security.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;

class Http {
    static byte[] some(int seed, int n) { byte[] data = new byte[n]; new Random(seed).nextBytes(data); return data; }
    static String digest(byte[] data) throws Exception { return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(data)).substring(0, 16); }
    static void serve() throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 50);
        ExecutorService threads = Executors.newFixedThreadPool(8);
        server.setExecutor(threads);
        server.createContext("/", exchange -> {
            try (exchange) {
                byte[] body = exchange.getRequestBody().readAllBytes();
                String path = exchange.getRequestURI().getPath().substring(1);
                byte[] answer = path.isEmpty() ? digest(body).getBytes() : some(Integer.parseInt(path), Integer.parseInt(path));
                exchange.sendResponseHeaders(200, path.isEmpty() ? answer.length : 0);
                try (OutputStream out = exchange.getResponseBody()) { out.write(answer); }
            } catch (IOException e) { throw e; } catch (Exception e) { throw new IOException(e); }
        });
        server.start();
        System.out.println(server.getAddress().getPort());
        System.in.read();
        server.stop(0);
        threads.shutdown();
    }
    public static void main(String[] args) throws Exception {
        if (args.length > 0) { serve(); return; }
        Process server = new ProcessBuilder("java", "-cp", System.getProperty("java.class.path"), "Http", "serve").redirectError(ProcessBuilder.Redirect.INHERIT).start();
        String url = "http://127.0.0.1:" + new Scanner(server.getInputStream()).nextLine() + "/";
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        ExecutorService pool = Executors.newFixedThreadPool(12);
        List<Future<Boolean>> jobs = IntStream.range(0, 600).mapToObj(n -> pool.submit(() -> {
            byte[] data = some(n, n * 500);
            boolean posted = client.send(HttpRequest.newBuilder(URI.create(url)).POST(HttpRequest.BodyPublishers.ofByteArray(data)).build(), HttpResponse.BodyHandlers.ofString()).body().equals(digest(data));
            byte[] got = client.send(HttpRequest.newBuilder(URI.create(url + (n * 300 + 1))).build(), HttpResponse.BodyHandlers.ofByteArray()).body();
            return posted && Arrays.equals(got, some(n * 300 + 1, n * 300 + 1));
        })).collect(Collectors.toList());
        int right = 0;
        for (Future<Boolean> job : jobs) if (job.get()) right++;
        System.out.println(right + " of 600");
        Process curl = new ProcessBuilder("curl", "-sSf", url + "5000000").start();
        System.out.println(Arrays.equals(curl.getInputStream().readAllBytes(), some(5000000, 5000000)));
        pool.shutdown();
        server.getOutputStream().close();
        System.out.println("server " + server.waitFor());
        System.exit(0);
    }
}
