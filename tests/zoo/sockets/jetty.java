// `serve PORT` and `ask PORT` (see the program's file).
import jakarta.servlet.http.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import okhttp3.OkHttpClient;
import okhttp3.Protocol;
import okhttp3.RequestBody;
import org.eclipse.jetty.http2.server.HTTP2CServerConnectionFactory;
import org.eclipse.jetty.server.*;
import org.eclipse.jetty.server.handler.AbstractHandler;

class JettyEcho {
    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[1]);
        if (args[0].equals("serve")) { serve(port); return; }
        for (Protocol protocol : List.of(Protocol.HTTP_1_1, Protocol.H2_PRIOR_KNOWLEDGE)) {
            OkHttpClient client = new OkHttpClient.Builder().protocols(List.of(protocol)).readTimeout(60, TimeUnit.SECONDS).build();
            ExecutorService pool = Executors.newFixedThreadPool(8);
            List<Future<Boolean>> jobs = IntStream.range(0, 300).mapToObj(n -> pool.submit(() -> {
                byte[] data = new byte[n * 1000]; new Random(n).nextBytes(data);
                try (okhttp3.Response got = client.newCall(new okhttp3.Request.Builder().url("http://127.0.0.1:" + port + "/").post(RequestBody.create(data)).build()).execute()) {
                    return Arrays.equals(got.body().bytes(), data);
                }
            })).collect(Collectors.toList());
            int right = 0;
            for (Future<Boolean> job : jobs) if (job.get()) right++;
            System.out.println(protocol + " " + right);
            pool.shutdown();
        }
        System.exit(0);
    }
    static void serve(int port) throws Exception {
        Server server = new Server();
        HttpConfiguration http = new HttpConfiguration();
        ServerConnector at = new ServerConnector(server, new HttpConnectionFactory(http), new HTTP2CServerConnectionFactory(http));
        at.setHost("127.0.0.1"); at.setPort(port);
        server.addConnector(at);
        server.setHandler(new AbstractHandler() {
            public void handle(String target, org.eclipse.jetty.server.Request base, HttpServletRequest request, HttpServletResponse response) throws java.io.IOException {
                base.setHandled(true);
                request.getInputStream().transferTo(response.getOutputStream());
            }
        });
        server.start();
        server.join();
    }
}
