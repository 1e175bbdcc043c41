package originals;

import java.lang.reflect.Field;
import java.util.Comparator;
import java.util.List;
import org.apache.storm.scheduler.Cluster;
import org.apache.storm.scheduler.WorkerSlot;

/**
 * Stands for java.util.Collections in the IsolationScheduler, which shuffles its hosts: here the order is the one that
 * Storm 3 fixed: most slots, then most free slots, then the name.
 */
public final class Calm {
    static Cluster cluster;

    private Calm() {
    }

    public static <T> void sort(List<T> list, Comparator<? super T> comparator) {
        list.sort(comparator);
    }

    public static void shuffle(List<?> hosts) {
        hosts.sort(Comparator.<Object>comparingInt(host -> -slots(host).size())
            .thenComparingInt(host -> -(int) slots(host).stream().filter(slot -> !cluster.isSlotOccupied(slot)).count())
            .thenComparing(host -> (String) field(host, "hostName")));
    }

    @SuppressWarnings("unchecked")
    private static List<WorkerSlot> slots(Object host) {
        return (List<WorkerSlot>) field(host, "workerSlots");
    }

    private static Object field(Object host, String name) {
        try {
            Field field = host.getClass().getDeclaredField(name);
            field.setAccessible(true);
            return field.get(host);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }
}
