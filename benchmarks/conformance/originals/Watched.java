package originals;

import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.storm.metric.StormMetricsRegistry;
import org.apache.storm.scheduler.Cluster;
import org.apache.storm.scheduler.IScheduler;
import org.apache.storm.scheduler.Topologies;

/** The scheduler inside a BlacklistScheduler: notes the blacklist it is given, since IsolationScheduler adds its own hosts. */
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
        inner.schedule(topologies, cluster);
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
