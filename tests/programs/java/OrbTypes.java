import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.math.BigDecimal;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.Function;
import motet_types.*;
import org.omg.CORBA.Any;
import org.omg.CORBA.BAD_PARAM;
import org.omg.CORBA.CompletionStatus;
import org.omg.CORBA.IntHolder;
import org.omg.CORBA.ORB;
import org.omg.PortableServer.POA;
import org.omg.PortableServer.POAHelper;

/**
 * Every type of orb_types.idl between this ORB, JacORB, and another. The other forms of this program, for other ORBs, have the same words
 * and print the same; orb_types.cc says what. OrbTypesValues has what is sent.
 */
public class OrbTypes {
    static ORB orb;
    static POA poa;

    // ---- the object -------------------------------------------------------------------------------------------------

    static class TheEcho extends EchoPOA {
        private volatile double height;
        private volatile int last;
        // How often echo_longs was called, and the sum of all that it returned: callBack() compares them with its own numbers.
        int calls, returned;

        public String orb() { return "JacORB"; }
        public double level() { return height; }
        public void level(double to) { height = to; }

        public Everything echo_everything(Everything v, EverythingHolder o, EverythingHolder i) { return o.value = v; }
        public byte[] echo_octets(byte[] v, OctetsHolder o, OctetsHolder i) { return o.value = v; }
        public double[] echo_doubles(double[] v, DoublesHolder o, DoublesHolder i) { return o.value = v; }
        public Particle[] echo_particles(Particle[] v, ParticlesHolder o, ParticlesHolder i) { return o.value = v; }

        public synchronized int[] echo_longs(int[] v, LongsHolder o, LongsHolder i) {
            calls++;
            for (int number : v) returned += number;
            return o.value = v;
        }

        public double[] echo_few(double[] v) { return v; }
        public String[] echo_names(String[] v) { return v; }
        public int[][] echo_rows(int[][] v) { return v; }
        public Choice echo_choice(Choice v) { return v; }
        public Sign echo_sign(Sign v) { return v; }
        public Node[] echo_nodes(Node[] v) { return v; }
        public Echo echo_reference(Echo v) { return v; }
        public org.omg.CORBA.Object echo_object(org.omg.CORBA.Object v) { return v; }

        public Any echo_any(Any v, IntHolder kind) {
            kind.value = v.type().kind().value();
            return v;
        }

        public void refuse(String why, int code) throws Refused { throw new Refused(why, code); }
        public void bad_parameter() { throw new BAD_PARAM(77, CompletionStatus.COMPLETED_NO); }
        public void remember(int v) { last = v; }
        public int remembered() { return last; }

        public int call_back(Echo who, int times) {
            int sum = 0;
            for (int number = 0; number < times; number++) {
                int[] back = who.echo_longs(new int[] {number}, new LongsHolder(), new LongsHolder(new int[0]));
                sum += Arrays.stream(back).sum();
            }
            return sum;
        }

        public void end() { new Thread(() -> orb.shutdown(true)).start(); }
    }

    // ---- the checks: what is wrong, or nothing --------------------------------------------------------------------------

    interface Check {
        String wrong() throws Exception;
    }

    /** A call with in, out and inout of one type; the result, `out` and `inout` after it. */
    interface AllWays<T> {
        List<T> call(T in, T inout);
    }

    /** Equal in all parts. What the compiler of the IDL generates has no equals(). */
    static boolean same(Object left, Object right) throws IllegalAccessException {
        if (left == right) return true;
        if (left == null || right == null || left.getClass() != right.getClass()) return false;
        if (left instanceof Object[] many) {
            Object[] others = (Object[]) right;
            boolean equal = many.length == others.length;
            for (int i = 0; equal && i < many.length; i++) equal = same(many[i], others[i]);
            return equal;
        }
        if (left.getClass().isArray()) return Arrays.deepEquals(new Object[] {left}, new Object[] {right});
        if (left instanceof String || left instanceof Number || left instanceof Character || left instanceof Boolean) return left.equals(right);
        if (left instanceof Any any) return any.equal((Any) right);
        for (Field field : left.getClass().getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers())) continue;
            field.setAccessible(true);
            if (!same(field.get(left), field.get(right))) return false;
        }
        return true;
    }

    static <T> String oneWay(List<T> values, Function<T, T> call) throws Exception {
        for (int i = 0; i < values.size(); i++) {
            if (!same(values.get(i), call.apply(values.get(i)))) return "the result of value " + i + " is another";
        }
        return "";
    }

    /** Each value as `in`, beside its neighbour as `inout`. */
    static <T> String allWays(List<T> values, AllWays<T> call) throws Exception {
        String[] names = {"the result", "out", "inout"};
        for (int i = 0; i < values.size(); i++) {
            T in = values.get(i), beside = values.get((i + 1) % values.size());
            List<T> expected = List.of(in, in, beside), came = call.call(in, beside);
            for (int j = 0; j < names.length; j++) {
                if (!same(expected.get(j), came.get(j))) return names[j] + " of value " + i + " is another";
            }
        }
        return "";
    }

    static String level(Echo echo) {
        for (double height : new double[] {1.25, -0.0, Double.MAX_VALUE}) {
            echo.level(height);
            if (!Double.valueOf(height).equals(echo.level())) return "it is " + echo.level();
        }
        return "";
    }

    static String any(Echo echo) {
        List<Any> all = OrbTypesValues.anys(orb, echo, echo.orb().startsWith("omniORBpy"));
        for (int i = 0; i < all.size(); i++) {
            IntHolder kind = new IntHolder(-1);
            Any back = echo.echo_any(all.get(i), kind);
            if (kind.value != all.get(i).type().kind().value()) return "the server sees kind " + kind.value + " for any " + i;
            if (!all.get(i).equal(back)) return "any " + i + " is another: " + all.get(i).type() + " " + back.type();
        }
        return "";
    }

    /** Nodes in words: the value of each down its list, and at which of the others the very same one stands. */
    static String shape(Node[] nodes) {
        StringBuilder told = new StringBuilder();
        for (Node head : nodes) {
            for (Node node = head; node != null; node = node.next) {
                told.append(node.value);
                for (int j = 0; j < nodes.length; j++) told.append(node == nodes[j] ? " is " + j : "");
                told.append(node.next != null ? ", " : "");
            }
            told.append("; ");
        }
        return told.toString();
    }

    static String nodes(Echo echo) {
        if (echo.echo_nodes(new Node[0]).length != 0) return "none came back as some";
        Node[] sent = OrbTypesValues.nodes(), back = echo.echo_nodes(sent);
        return shape(sent).equals(shape(back)) ? "" : "they came back as " + shape(back);
    }

    static String references(Echo echo, Echo own, Function<Echo, org.omg.CORBA.Object> call) {
        org.omg.CORBA.Object nil = call.apply(null), theirs = call.apply(echo), mine = call.apply(own);
        if (nil != null) return "nil is no longer nil";
        if (theirs == null || mine == null || !theirs._is_equivalent(echo) || !mine._is_equivalent(own)) return "another object came back";
        return !theirs._non_existent() && theirs._is_a(BaseHelper.id()) ? "" : "the object is another";
    }

    static String refuse(Echo echo) {
        for (String why : new String[] {"", "there is no more"}) {
            try {
                echo.refuse(why, Integer.MIN_VALUE);
                return "nothing was thrown";
            } catch (Refused e) {
                if (!e.why.equals(why) || e.code != Integer.MIN_VALUE) return "it says " + e.why;
            }
        }
        return "";
    }

    static String badParameter(Echo echo) {
        try {
            echo.bad_parameter();
            return "nothing was thrown";
        } catch (BAD_PARAM e) {
            boolean right = e.minor == 77 && e.completed == CompletionStatus.COMPLETED_NO;
            return right ? "" : "its minor code is " + e.minor + ", completed " + e.completed.value();
        }
    }

    /** A call without an answer arrives some time: the server may have several threads. */
    static String remembered(Echo echo, int expected) throws InterruptedException {
        echo.remember(expected);
        for (int i = 0; i < 1000 && echo.remembered() != expected; i++) Thread.sleep(5);
        return echo.remembered() == expected ? "" : "it is " + echo.remembered();
    }

    static String callBack(Echo echo, TheEcho own, Echo reference) {
        final int times = 50;
        int sum = echo.call_back(reference, times);
        if (own.calls != times) return own.calls + " calls came back";
        return sum == own.returned && sum != 0 ? "" : "the sum is " + sum + ", not " + own.returned;
    }

    static boolean call(Echo echo) throws Exception {
        TheEcho own = new TheEcho();
        Echo mine = EchoHelper.narrow(poa.servant_to_reference(own));
        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("orb", () -> echo.orb().isEmpty() ? "it is empty" : "");
        checks.put("level", () -> level(echo));
        checks.put("echo_everything", () -> allWays(OrbTypesValues.everything(), (v, i) -> {
            EverythingHolder out = new EverythingHolder(), kept = new EverythingHolder(i);
            return List.of(echo.echo_everything(v, out, kept), out.value, kept.value);
        }));
        checks.put("echo_octets", () -> allWays(OrbTypesValues.octets(), (v, i) -> {
            OctetsHolder out = new OctetsHolder(), kept = new OctetsHolder(i);
            return List.of(echo.echo_octets(v, out, kept), out.value, kept.value);
        }));
        checks.put("echo_longs", () -> allWays(OrbTypesValues.longs(), (v, i) -> {
            LongsHolder out = new LongsHolder(), kept = new LongsHolder(i);
            return List.of(echo.echo_longs(v, out, kept), out.value, kept.value);
        }));
        checks.put("echo_doubles", () -> allWays(OrbTypesValues.doubles(), (v, i) -> {
            DoublesHolder out = new DoublesHolder(), kept = new DoublesHolder(i);
            return List.of(echo.echo_doubles(v, out, kept), out.value, kept.value);
        }));
        checks.put("echo_few", () -> oneWay(OrbTypesValues.few(), echo::echo_few));
        checks.put("echo_names", () -> oneWay(OrbTypesValues.names(), echo::echo_names));
        checks.put("echo_rows", () -> oneWay(OrbTypesValues.rows(), echo::echo_rows));
        checks.put("echo_particles", () -> allWays(OrbTypesValues.particles(), (v, i) -> {
            ParticlesHolder out = new ParticlesHolder(), kept = new ParticlesHolder(i);
            return List.of(echo.echo_particles(v, out, kept), out.value, kept.value);
        }));
        checks.put("echo_choice", () -> oneWay(OrbTypesValues.choices(), echo::echo_choice));
        checks.put("echo_sign", () -> oneWay(OrbTypesValues.signs(), echo::echo_sign));
        checks.put("echo_any", () -> any(echo));
        checks.put("echo_nodes", () -> nodes(echo));
        checks.put("echo_reference", () -> references(echo, mine, echo::echo_reference));
        checks.put("echo_object", () -> references(echo, mine, echo::echo_object));
        checks.put("refuse", () -> refuse(echo));
        checks.put("bad_parameter", () -> badParameter(echo));
        checks.put("remember", () -> remembered(echo, -5));
        checks.put("remembered", () -> remembered(echo, 6));
        checks.put("call_back", () -> callBack(echo, own, mine));

        boolean right = true;
        for (Map.Entry<String, Check> check : checks.entrySet()) {
            String wrong;
            try {
                wrong = check.getValue().wrong();
            } catch (Exception e) {
                wrong = "it throws " + e;
            }
            System.out.println(check.getKey() + (wrong.isEmpty() ? " ok" : " WRONG " + wrong));
            right = right && wrong.isEmpty();
        }
        if (right) System.out.println("all ok");
        return right;
    }

    // ---- the rest -------------------------------------------------------------------------------------------------------

    static void serve() throws Exception {
        System.out.println("object " + orb.object_to_string(poa.servant_to_reference(new TheEcho())));
        orb.run();
        System.out.println("ended");
    }

    static void time(Echo echo, int count) {
        for (int i = 0; i < 20000; i++) echo.remembered();
        long[] took = new long[count];
        for (int i = 0; i < count; i++) {
            long began = System.nanoTime();
            echo.remembered();
            took[i] = System.nanoTime() - began;
        }
        Arrays.sort(took);
        System.out.println(took[count / 2]);
    }

    public static void main(String[] words) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("OAIAddr", "127.0.0.1");
        orb = ORB.init(new String[0], properties);
        ((org.omg.CORBA_2_3.ORB) orb).register_value_factory(NodeHelper.id(), stream -> stream.read_value(new OrbTypesValues.ANode()));
        poa = POAHelper.narrow(orb.resolve_initial_references("RootPOA"));
        poa.the_POAManager().activate();
        boolean right = true;
        if (words[0].equals("serve")) {
            serve();
        } else {
            Echo echo = EchoHelper.narrow(orb.string_to_object(words[1]));
            switch (words[0]) {
                case "call" -> right = call(echo);
                case "time" -> time(echo, Integer.parseInt(words[2]));
                case "end" -> echo.end();
                default -> throw new IllegalArgumentException(words[0]);
            }
        }
        orb.destroy();
        System.exit(right ? 0 : 1);
    }
}
