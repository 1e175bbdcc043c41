package originals;

import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.Map;

/**
 * Runs a harness in a class loader that gives the original scheduler classes ordered hash maps.
 *
 * The originals walk HashMaps and HashSets, so their answers depend on hash codes. Nothing of their code is changed:
 * while a class is loaded, the class names java.util.HashMap and HashSet in its constant pool become our subclasses,
 * which hold the same entries and are walked in a fixed order (see Order).
 */
public final class Launcher extends ClassLoader {
    private static final Map<String, String> ORDERED = Map.of(
        "java/util/HashMap", "originals/OrderedMap",
        "java/util/HashSet", "originals/OrderedSet");

    private Launcher(ClassLoader parent) {
        super(parent);
    }

    public static void main(String[] args) throws Exception {
        Launcher loader = new Launcher(Launcher.class.getClassLoader());
        Thread.currentThread().setContextClassLoader(loader);
        loader.loadClass(args[0]).getMethod("main", String[].class).invoke(null, (Object) new String[0]);
    }

    @Override
    protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
        synchronized (getClassLoadingLock(name)) {
            Class<?> found = findLoadedClass(name);
            if (found == null) {
                byte[] bytes = isOfTheJdk(name) ? null : bytesOf(name);
                if (bytes == null) {
                    return super.loadClass(name, resolve);
                }
                byte[] shown = isOriginal(name) ? renamed(bytes, replacements(name)) : bytes;
                found = defineClass(name, shown, 0, shown.length);
            }
            return found;
        }
    }

    private static boolean isOfTheJdk(String name) {
        for (String prefix : new String[] {"java.", "javax.", "jdk.", "sun.", "com.sun.", "org.w3c.", "org.xml."}) {
            if (name.startsWith(prefix)) {
                return true;
            }
        }
        return false;
    }

    private static boolean isOriginal(String name) {
        return name.startsWith("org.apache.storm.scheduler.") || name.equals("org.apache.storm.utils.Utils")
            || name.startsWith("com.alibaba.jstorm.schedule.") || name.equals("com.alibaba.jstorm.cluster.Common")
            || name.equals("com.alibaba.jstorm.utils.JStormUtils")
            || name.equals("com.alibaba.jstorm.daemon.supervisor.SupervisorInfo");
    }

    private static Map<String, String> replacements(String name) {
        Map<String, String> names = new java.util.HashMap<>(ORDERED);
        if (name.equals("org.apache.storm.scheduler.IsolationScheduler")) {
            names.put("java/util/Collections", "originals/Calm");
            names.put("java/util/HashSet", "originals/CalmSet");
            names.put("java/util/LinkedList", "originals/CalmHosts");
        }
        if (name.equals("org.apache.storm.scheduler.EvenScheduler")) {
            names.put("org/apache/storm/utils/ServerUtils", "originals/Calm");
        }
        if (name.equals("org.apache.storm.scheduler.multitenant.MultitenantScheduler")) {
            for (String pool : new String[] {"FreePool", "DefaultPool", "IsolatedPool"}) {
                names.put("org/apache/storm/scheduler/multitenant/" + pool, "originals/Seen" + pool);
            }
        }
        return names;
    }

    private byte[] bytesOf(String name) throws ClassNotFoundException {
        try (InputStream in = getParent().getResourceAsStream(name.replace('.', '/') + ".class")) {
            return in == null ? null : in.readAllBytes();
        } catch (IOException e) {
            throw new ClassNotFoundException(name, e);
        }
    }

    /** Copies a class file; names in its constant pool that stand for classes of the map are replaced. */
    private static byte[] renamed(byte[] bytes, Map<String, String> names) {
        try {
            DataInputStream in = new DataInputStream(new ByteArrayInputStream(bytes));
            ByteArrayOutputStream copy = new ByteArrayOutputStream();
            DataOutputStream out = new DataOutputStream(copy);
            out.writeLong(in.readLong());
            int count = in.readUnsignedShort();
            out.writeShort(count);
            for (int at = 1; at < count; at++) {
                int tag = in.readUnsignedByte();
                out.writeByte(tag);
                if (tag == 1) {
                    String text = in.readUTF();
                    out.writeUTF(names.getOrDefault(text, text));
                } else {
                    out.write(in.readNBytes(sizeOf(tag)));
                    at += tag == 5 || tag == 6 ? 1 : 0;
                }
            }
            in.transferTo(out);
            return copy.toByteArray();
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private static int sizeOf(int tag) {
        switch (tag) {
            case 7: case 8: case 16: case 19: case 20:
                return 2;
            case 15:
                return 3;
            case 5: case 6:
                return 8;
            default:
                return 4;
        }
    }
}
