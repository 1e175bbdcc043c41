package originals;

import org.apache.storm.scheduler.multitenant.IsolatedPool;

/** An IsolatedPool that can be looked at afterwards. */
public class SeenIsolatedPool extends IsolatedPool {
    public SeenIsolatedPool(int maxNodes) {
        super(maxNodes);
        Pools.MADE.add(this);
    }
}
