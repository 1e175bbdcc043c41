package originals;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.apache.storm.scheduler.Cluster;
import org.apache.storm.scheduler.TopologyDetails;
import org.apache.storm.scheduler.WorkerSlot;
import org.apache.storm.utils.ServerUtils;

/**
 * Stands for java.util.Collections in the IsolationScheduler, which shuffles its hosts: here the order is the one that
 * Storm 3 fixed: most slots, then most free slots, then the name. Stands for ServerUtils in the EvenScheduler.
 *
 * Where an original raises, the comparison asks a second time, mended: then what follows the exception is compared too.
 */
public final class Calm {
    static Cluster cluster;
    static boolean mends;
    private static List<TopologyDetails> isolated = List.of();
    private static boolean hasHosts;
    private static int turn;

    private Calm() {
    }

    /** A round begins: the topologies that are isolated, by id, in the order in which they get their hosts. */
    static void begin(Cluster next, List<TopologyDetails> isolatedTopologies) {
        cluster = next;
        isolated = isolatedTopologies;
        hasHosts = false;
        turn = -1;
    }

    /** The hosts are sorted first (Storm 2 then shuffles them), and then each topology's numbers of workers per host. */
    public static <T> void sort(List<T> list, Comparator<? super T> comparator) {
        list.sort(comparator);
        turn += hasHosts ? 1 : 0;
        hasHosts = true;
    }

    /** Whether the topology whose turn it is has all of its workers: as many as asked for, or as it has executors. */
    static boolean isServed() {
        TopologyDetails topology = isolated.get(turn);
        int wanted = Math.min(topology.getNumWorkers(), topology.getExecutors().size());
        return cluster.getAssignedNumWorkers(topology) >= wanted;
    }

    /** EvenScheduler's free slots. Mended, fewer than none are none: there the original raises. */
    public static <T> List<T> interleaveAll(List<List<T>> groups) {
        List<T> found = ServerUtils.interleaveAll(groups);
        if (!mends || found == null) {
            return found;
        }
        return new ArrayList<T>(found) {
            @Override
            public List<T> subList(int from, int to) {
                return super.subList(from, Math.max(from, to));
            }
        };
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
