// `serve FILE` writes its reference to FILE; `ask REFERENCE` calls it from four threads (see the program's file).
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.atomic.*;
import org.omg.CORBA.ORB;
import org.omg.PortableServer.*;

class JacEcho {
    static class Servant extends EchoPOA { public String echoString(String mesg) { return mesg; } }
    public static void main(String[] args) throws Exception {
        ORB orb = ORB.init(new String[0], System.getProperties());
        if (args[0].equals("serve")) {
            POA poa = POAHelper.narrow(orb.resolve_initial_references("RootPOA"));
            poa.the_POAManager().activate();
            Files.writeString(Path.of(args[1] + ".new"), orb.object_to_string(poa.servant_to_reference(new Servant())));
            Files.move(Path.of(args[1] + ".new"), Path.of(args[1]));
            orb.run();
            return;
        }
        Echo echo = EchoHelper.narrow(orb.string_to_object(args[1]));
        AtomicInteger right = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < 4; t++) {
            int seed = t;
            Thread one = new Thread(() -> {
                Random random = new Random(seed);
                for (int i = 0; i < 500; i++) {
                    char[] text = new char[i % 100 == 99 ? 500000 : random.nextInt(3000)];
                    for (int j = 0; j < text.length; j++) text[j] = (char) ('a' + random.nextInt(26));
                    if (echo.echoString(new String(text)).equals(new String(text))) right.incrementAndGet();
                }
            });
            threads.add(one);
            one.start();
        }
        for (Thread one : threads) one.join();
        System.out.println(right + " of 2000");
        System.exit(0);
    }
}
