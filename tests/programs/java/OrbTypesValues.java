import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import motet_types.*;
import org.omg.CORBA.Any;
import org.omg.CORBA.ORB;
import org.omg.CORBA.TCKind;

/** What OrbTypes sends: values of every type of orb_types.idl, the least and the greatest of each, empty and large ones. */
class OrbTypesValues {
    static final int LARGE = 600 * 1000; // bytes: in, out and inout together stay below omniORB's 2 MiB for a message
    static final String WIDE = "Gr\u00fc\u00dfe, \u039a\u03cc\u03c3\u03bc\u03b5, \u6f22\u5b57, \ud83d\ude00";

    /** The value type of the IDL: the compiler leaves a class to write. */
    static class ANode extends Node {
        ANode() {}

        ANode(int value, Node next) {
            this.value = value;
            this.next = next;
        }
    }

    static Particle particle(int id) {
        double[] at = new double[3];
        for (int i = 0; i < 3; i++) at[i] = id / 7.0 + i;
        return new Particle(id, at, id % 2 != 0, (byte) id);
    }

    static List<byte[]> octets() {
        byte[] large = new byte[LARGE];
        for (int i = 0; i < large.length; i++) large[i] = (byte) (i * 7);
        return List.of(new byte[0], new byte[] {0, 1, 127, -128, -1}, large);
    }

    static List<int[]> longs() {
        int[] large = new int[LARGE / 4];
        for (int i = 0; i < large.length; i++) large[i] = i * 0x9e3779b1;
        return List.of(new int[0], new int[] {Integer.MIN_VALUE, -1, 0, 1, Integer.MAX_VALUE}, large);
    }

    static List<double[]> doubles() {
        double[] large = new double[LARGE / 8];
        for (int i = 0; i < large.length; i++) large[i] = i / 3.0;
        double infinite = Double.POSITIVE_INFINITY, most = Double.MAX_VALUE;
        return List.of(new double[0], new double[] {-most, -0.0, 0.0, Double.MIN_VALUE, Double.MIN_NORMAL, most, infinite, -infinite}, large);
    }

    static List<double[]> few() { return List.of(new double[0], new double[] {1.5, -2, 0, 4e300}); }

    static List<String[]> names() { return List.of(new String[0], new String[] {"", "one", "", "n".repeat(100000)}); }

    static List<int[][]> rows() { return List.of(new int[0][], longs().toArray(new int[0][])); }

    static List<Particle[]> particles() {
        Particle[] large = new Particle[LARGE / 40];
        for (int i = 0; i < large.length; i++) large[i] = particle(i);
        return List.of(new Particle[0], new Particle[] {particle(-1)}, large);
    }

    static List<Choice> choices() {
        List<Choice> made = List.of(new Choice(), new Choice(), new Choice());
        made.get(0).number(Integer.MIN_VALUE);
        made.get(1).several(names().get(1));
        made.get(2).one(particle(5));
        return made;
    }

    static List<Sign> signs() {
        List<Sign> made = List.of(new Sign(), new Sign(), new Sign());
        made.get(0).reason("");
        made.get(1).reason("with a reason");
        made.get(2).__default();
        return made;
    }

    /** Every number is the least or the greatest of its type; of those without a sign -1 is the greatest, for Java. */
    static Everything extreme(boolean great) {
        Everything v = new Everything();
        v.b = great;
        v.o = (byte) (great ? -1 : 0);
        v.c = great ? '~' : 'a';
        v.w = great ? '\u6f22' : '\u00e9';
        v.s = great ? Short.MAX_VALUE : Short.MIN_VALUE;
        v.us = (short) (great ? -1 : 0);
        v.l = great ? Integer.MAX_VALUE : Integer.MIN_VALUE;
        v.ul = great ? -1 : 0;
        v.ll = great ? Long.MAX_VALUE : Long.MIN_VALUE;
        v.ull = great ? -1 : 0;
        v.f = great ? Float.MAX_VALUE : Float.MIN_VALUE;
        v.d = great ? Double.MAX_VALUE : -Double.MAX_VALUE;
        v.text = great ? "all that \"ASCII\" has: ~!@#$%^&*()" : "";
        v.wide = great ? WIDE : "";
        v.shade = great ? Colour.blue : Colour.red;
        v.name = great ? "eight ch" : "";
        v.cost = new BigDecimal(great ? "999999.999" : "-999999.999");
        v.cells = new int[2][3];
        for (int i = 0; i < 6; i++) v.cells[i / 3][i % 3] = great ? i : -i;
        v.one = particle(great ? Integer.MAX_VALUE : Integer.MIN_VALUE);
        return v;
    }

    static List<Everything> everything() { return List.of(extreme(false), extreme(true)); }

    /** A list in which two have the same next, one that stands there twice, and nil. */
    static Node[] nodes() {
        Node last = new ANode(Integer.MAX_VALUE, null), first = new ANode(1, last), second = new ANode(Integer.MIN_VALUE, last);
        return new Node[] {first, second, first, last, null};
    }

    /**
     * Anys of basic types, of types of the IDL, of references, of a type code and of an any. JacORB 3.9 cannot send so that another ORB reads
     * it, or the reverse: value types and exceptions in an any, a fixed with leading zeros; nor compare recursive type codes. omniORBpy 4.3
     * receives a wchar as if it were a char, so there is nothing that has one within `toPython`; it returns a nil object as one of a type
     * without a name, and the type of a union over an enumeration in a form that JacORB refuses.
     */
    static List<Any> anys(ORB orb, Echo echo, boolean toPython) {
        List<Any> made = new ArrayList<>();
        Consumer<Consumer<Any>> add = insert -> {
            Any any = orb.create_any();
            insert.accept(any);
            made.add(any);
        };
        add.accept(any -> {});
        add.accept(any -> any.insert_short(Short.MIN_VALUE));
        add.accept(any -> any.insert_ushort((short) -1));
        add.accept(any -> any.insert_long(Integer.MIN_VALUE));
        add.accept(any -> any.insert_ulong(-1));
        add.accept(any -> any.insert_longlong(Long.MIN_VALUE));
        add.accept(any -> any.insert_ulonglong(-1));
        add.accept(any -> any.insert_float(Float.MAX_VALUE));
        add.accept(any -> any.insert_double(-Double.MAX_VALUE));
        add.accept(any -> any.insert_boolean(true));
        add.accept(any -> any.insert_octet((byte) -1));
        add.accept(any -> any.insert_char('c'));
        for (String text : new String[] {"a string", ""}) add.accept(any -> any.insert_string(text));
        add.accept(any -> any.insert_wstring(WIDE));
        add.accept(any -> Short_nameHelper.insert(any, "bounded"));
        add.accept(any -> PriceHelper.insert(any, new BigDecimal("-123456.789")));
        add.accept(any -> ColourHelper.insert(any, Colour.green));
        add.accept(any -> MatrixHelper.insert(any, new int[][] {{1, 2, 3}, {4, 5, 6}}));
        add.accept(any -> ParticleHelper.insert(any, particle(3)));
        add.accept(any -> EchoesHelper.insert(any, new Echo[] {echo, null}));
        add.accept(any -> any.insert_Object(echo));
        add.accept(any -> EchoHelper.insert(any, echo));
        add.accept(any -> any.insert_TypeCode(ParticleHelper.type()));
        add.accept(any -> any.insert_TypeCode(orb.get_primitive_tc(TCKind.tk_long)));
        if (!toPython) {
            add.accept(any -> any.insert_wchar('\u6f22'));
            add.accept(any -> any.insert_TypeCode(EverythingHelper.type()));
            add.accept(any -> EchoHelper.insert(any, null));
            everything().forEach(v -> add.accept(any -> EverythingHelper.insert(any, v)));
            choices().forEach(v -> add.accept(any -> ChoiceHelper.insert(any, v)));
        }
        octets().forEach(v -> add.accept(any -> OctetsHelper.insert(any, v)));
        longs().forEach(v -> add.accept(any -> LongsHelper.insert(any, v)));
        doubles().forEach(v -> add.accept(any -> DoublesHelper.insert(any, v)));
        few().forEach(v -> add.accept(any -> FewHelper.insert(any, v)));
        names().forEach(v -> add.accept(any -> NamesHelper.insert(any, v)));
        rows().forEach(v -> add.accept(any -> RowsHelper.insert(any, v)));
        particles().forEach(v -> add.accept(any -> ParticlesHelper.insert(any, v)));
        signs().forEach(v -> add.accept(any -> SignHelper.insert(any, v)));
        Any inner = made.get(made.size() - 1);
        add.accept(any -> any.insert_any(inner));
        return made;
    }
}
