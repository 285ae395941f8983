// RMI with a registry in a process of its own. Remote serve PORT binds an object; Remote call PORT ROUNDS uses it, ends it
// and prints what it answered.
import java.rmi.NoSuchObjectException;
import java.rmi.RemoteException;
import java.rmi.registry.LocateRegistry;
import java.rmi.registry.Registry;
import java.rmi.server.UnicastRemoteObject;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

public class Remote {
    public interface Desk extends java.rmi.Remote {
        long add(long more) throws RemoteException;
        byte[] reverse(byte[] bytes) throws RemoteException;
        List<String> words(int count) throws RemoteException;
        void fail(String why) throws RemoteException;
        void end() throws RemoteException;
    }

    static class Keeper implements Desk {
        long sum;

        public synchronized long add(long more) { return sum += more; }

        public byte[] reverse(byte[] bytes) {
            byte[] out = new byte[bytes.length];
            for (int i = 0; i < out.length; i++) out[i] = bytes[out.length - 1 - i];
            return out;
        }

        public List<String> words(int count) {
            List<String> words = new ArrayList<>();
            for (int i = 0; i < count; i++) words.add("word " + i);
            return words;
        }

        public void fail(String why) { throw new IllegalStateException(why); }

        public void end() {
            new Thread(() -> {
                try {
                    Thread.sleep(200);
                    UnicastRemoteObject.unexportObject(this, true);
                } catch (InterruptedException | NoSuchObjectException e) {
                    System.exit(1);
                }
            }).start();
        }
    }

    public static void main(String[] words) throws Exception {
        Registry registry = LocateRegistry.getRegistry("127.0.0.1", Integer.parseInt(words[1]));
        if (words[0].equals("serve")) {
            registry.rebind("desk", UnicastRemoteObject.exportObject(new Keeper(), 0));
            System.out.println("bound");
            return;
        }
        Desk desk = (Desk) registry.lookup("desk");
        long sum = 0, hash = 0;
        for (int i = 0; i < Integer.parseInt(words[2]); i++) {
            sum = desk.add(i);
            byte[] bytes = new byte[i % 50 == 0 ? 400000 : i % 300];
            Arrays.fill(bytes, (byte) i);
            if (bytes.length > 0) bytes[0] = 1;
            hash = hash * 31 + Arrays.hashCode(desk.reverse(bytes));
        }
        String said = "";
        try {
            desk.fail("on purpose");
        } catch (IllegalStateException e) {
            said = e.getMessage();
        }
        System.out.println(sum + " " + hash + " " + desk.words(3000).hashCode() + " " + said);
        desk.end();
    }
}
