package originals;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.storm.DaemonConfig;
import org.apache.storm.metric.StormMetricsRegistry;
import org.apache.storm.scheduler.Cluster;
import org.apache.storm.scheduler.IScheduler;
import org.apache.storm.scheduler.IsolationScheduler;
import org.apache.storm.scheduler.Topologies;
import org.apache.storm.scheduler.TopologyDetails;

/**
 * The scheduler inside a BlacklistScheduler, or an IsolationScheduler.
 *
 * It notes the blacklist it is given, since IsolationScheduler adds its own hosts. Mended, an IsolationScheduler sees no executors
 * of isolated topologies that want no workers; the BlacklistScheduler around it sees them, since it counts what they need.
 */
final class Watched implements IScheduler {
    static Set<String> blacklisted;
    private final IScheduler inner;

    Watched(IScheduler inner) {
        this.inner = inner;
    }

    @Override
    public void prepare(Map<String, Object> conf, StormMetricsRegistry metrics) {
        inner.prepare(conf, metrics);
    }

    @Override
    public void schedule(Topologies topologies, Cluster cluster) {
        blacklisted = new TreeSet<>(cluster.getBlacklistedHosts());
        if (Calm.mends && inner instanceof IsolationScheduler) {
            Topologies mended = withoutIdleExecutors(topologies, isolated(topologies, cluster));
            Cluster copy = new Cluster(cluster, mended);
            Calm.begin(copy, isolated(mended, cluster));
            inner.schedule(mended, copy);
        } else {
            inner.schedule(topologies, cluster);
        }
    }

    private static List<TopologyDetails> isolated(Topologies topologies, Cluster cluster) {
        return StormHarness.isolated(topologies, cluster.getConf().get(DaemonConfig.ISOLATION_SCHEDULER_MACHINES));
    }

    /** Isolated topologies that want no workers lose their executors: IsolationScheduler divides by the number of workers. */
    private static Topologies withoutIdleExecutors(Topologies topologies, List<TopologyDetails> isolated) {
        Map<String, TopologyDetails> found = new OrderedMap<>();
        for (TopologyDetails each : topologies) {
            boolean isIdle = isolated.contains(each) && each.getNumWorkers() == 0;
            found.put(each.getId(), !isIdle ? each : new TopologyDetails(each.getId(), each.getConf(), each.getTopology(), 0,
                new OrderedMap<>(), each.getLaunchTime(), each.getTopologySubmitter()));
        }
        return new Topologies(found);
    }

    @Override
    public Map<String, Map<String, Double>> config() {
        return inner.config();
    }

    @Override
    public void cleanup() {
        inner.cleanup();
    }
}
