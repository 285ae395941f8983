// Argument: epoll or nio. A server process, started as a child, and its clients (see the program's file).
import io.netty.bootstrap.*;
import io.netty.buffer.*;
import io.netty.channel.*;
import io.netty.channel.epoll.*;
import io.netty.channel.nio.*;
import io.netty.channel.socket.*;
import io.netty.channel.socket.nio.*;
import io.netty.handler.codec.*;
import java.net.InetSocketAddress;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;

class Netty {
    static void pipe(Channel c, ChannelHandler last) {
        c.pipeline().addLast(new LengthFieldPrepender(4), new LengthFieldBasedFrameDecoder(1 << 26, 0, 4, 0, 4), last);
    }
    static class Echo extends SimpleChannelInboundHandler<ByteBuf> {
        protected void channelRead0(ChannelHandlerContext c, ByteBuf m) { c.writeAndFlush(m.retain()); }
    }
    static class Ask extends SimpleChannelInboundHandler<ByteBuf> {
        final Random source; final int rounds; int done; byte[] sent; final CountDownLatch end; final AtomicInteger wrong;
        Ask(int seed, int rounds, CountDownLatch end, AtomicInteger wrong) { source = new Random(seed); this.rounds = rounds; this.end = end; this.wrong = wrong; }
        public void channelActive(ChannelHandlerContext c) { next(c); }
        void next(ChannelHandlerContext c) {
            if (done++ == rounds) { c.close(); end.countDown(); return; }
            sent = new byte[done % 50 == 0 ? 2_000_000 : source.nextInt(done % 5 == 0 ? 100_000 : 300)];
            source.nextBytes(sent);
            c.writeAndFlush(Unpooled.wrappedBuffer(sent));
        }
        protected void channelRead0(ChannelHandlerContext c, ByteBuf m) {
            byte[] got = new byte[m.readableBytes()]; m.readBytes(got);
            if (!Arrays.equals(got, sent)) wrong.incrementAndGet();
            next(c);
        }
    }
    public static void main(String[] args) throws Exception {
        boolean epoll = args[0].equals("epoll");
        EventLoopGroup group = epoll ? new EpollEventLoopGroup(2) : new NioEventLoopGroup(2);
        if (args.length > 1) {
            Channel c = new ServerBootstrap().group(group).channel(epoll ? EpollServerSocketChannel.class : NioServerSocketChannel.class)
                .childHandler(new ChannelInitializer<SocketChannel>() { protected void initChannel(SocketChannel s) { pipe(s, new Echo()); } })
                .bind("127.0.0.1", 0).sync().channel();
            System.out.println(((InetSocketAddress) c.localAddress()).getPort());
            System.in.read();
            group.shutdownGracefully(0, 1, TimeUnit.SECONDS).sync();
            return;
        }
        Process server = new ProcessBuilder("java", "-cp", System.getProperty("java.class.path"), "Netty", args[0], "serve").redirectError(ProcessBuilder.Redirect.INHERIT).start();
        int port = Integer.parseInt(new Scanner(server.getInputStream()).nextLine());
        CountDownLatch end = new CountDownLatch(24); AtomicInteger wrong = new AtomicInteger();
        for (int i = 0; i < 24; i++) {
            int seed = i;
            new Bootstrap().group(group).channel(epoll ? EpollSocketChannel.class : NioSocketChannel.class)
                .handler(new ChannelInitializer<SocketChannel>() { protected void initChannel(SocketChannel s) { pipe(s, new Ask(seed, 200, end, wrong)); } })
                .connect("127.0.0.1", port).sync();
        }
        System.out.println(args[0] + " ended " + end.await(60, TimeUnit.SECONDS) + ", wrong " + wrong);
        server.getOutputStream().close();
        group.shutdownGracefully(0, 1, TimeUnit.SECONDS).sync();
        System.out.println("server " + server.waitFor());
    }
}
